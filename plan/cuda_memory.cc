#include "plan/cuda_memory.h"

#include <algorithm>

namespace headrace {
namespace {

constexpr int64_t kPiece = 256;  // what ops align their pieces of scratch memory to
// Of sums over rows: worker/backend/cuda/column_sums.h.
constexpr int64_t kMostChunks = 128, kChunkRows = 64;
// Of a norm: worker/backend/cuda/squared_norm.cu.
constexpr int64_t kNormElements = 1 << 16;

int64_t Pieces(int64_t bytes) { return (bytes + kPiece - 1) / kPiece * kPiece; }

// Two sums of each column of a [rows, width] tensor.
int64_t ColumnSumBytes(int64_t rows, int64_t width) {
  const int64_t chunks = std::min((rows + kChunkRows - 1) / kChunkRows, kMostChunks);
  return Pieces(4 * 2 * chunks * width);
}

// A linear layer's weight and bias, rounded for a product.
int64_t ProductBytes(int64_t in, int64_t out) { return Pieces(2 * in * out) + Pieces(2 * out); }

// In bfloat16 without a kernel for heads of this size (worker/backend/cuda/attention.h) all is
// widened.
int64_t AttentionBytes(const Model& m, int64_t tokens, bool bf16) {
  const int64_t delta = Pieces(4 * tokens * m.heads);
  const int64_t size = m.head_size;
  if (!bf16 || size == 32 || size == 64 || size == 96 || size == 128) return delta;
  const int64_t in = tokens * (m.heads + 2 * m.kv_heads) * size;
  const int64_t out = tokens * m.heads * size;
  return delta + 2 * Pieces(4 * in) + 2 * Pieces(4 * out);
}

}  // namespace

int64_t CudaScratchBytes(const Model& model, const LayerSpec& layer, const MicroBatchShape& shape,
                         Precision precision) {
  const bool bf16 = precision != Precision::kFp32;
  const bool head = layer.kind == LayerKind::kHead;
  const int64_t rows = head ? std::min(shape.tokens(), kHeadRows) : shape.tokens();
  int64_t bytes = Pieces(8) + Pieces(8 * rows);  // losses
  const auto visit = [&](const std::vector<ParameterSpec>& parameters) {
    int64_t joined_rows = 0;
    for (const ParameterSpec& p : parameters) {
      joined_rows = p.joins_previous ? joined_rows + p.shape.front() : p.shape.front();
      bytes = std::max(
          bytes, Pieces(8) + Pieces(8 * ((p.elements() + kNormElements - 1) / kNormElements)));
      bytes = std::max(bytes, ColumnSumBytes(rows, std::max(joined_rows, model.width)));
      if (bf16 && p.shape.size() == 2 && layer.kind != LayerKind::kEmbedding) {
        bytes = std::max(bytes, ProductBytes(p.shape.back(), joined_rows));
      }
    }
  };
  visit(layer.parameters);
  visit(layer.borrowed);
  if (layer.kind == LayerKind::kGpt2Block || layer.kind == LayerKind::kLlamaBlock) {
    bytes = std::max(bytes, AttentionBytes(model, rows, bf16));
  }
  return bytes;
}

int64_t CudaScratchBytes(const StageShape& shape) {
  int64_t bytes = 0;
  for (const LayerSpec& layer : shape.layers) {
    bytes = std::max(bytes, CudaScratchBytes(shape.model, layer, shape.largest, shape.precision));
  }
  return bytes;
}

int64_t CudaTransferBytes(const StageShape& shape) {
  if (shape.stage < shape.num_stages - 1) return 0;
  if (!shape.training) return AlignUp(4 * shape.model.vocabulary);
  return AlignUp(4 * shape.largest.tokens()) + AlignUp(8 * shape.micro_batches) + AlignUp(8);
}

int64_t CudaNormBytes(int64_t own_parameters) { return AlignUp(8 * own_parameters); }

int64_t OwnParameters(const std::vector<LayerSpec>& layers) {
  int64_t count = 0;
  for (const LayerSpec& layer : layers) count += static_cast<int64_t>(layer.parameters.size());
  return count;
}

}  // namespace headrace

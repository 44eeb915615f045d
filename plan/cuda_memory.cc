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

// Heads that tensor cores have no kernel for are computed in fp32, on widened copies.
int64_t AttentionBytes(const Model& m, int64_t tokens, bool bf16) {
  const int64_t delta = Pieces(4 * tokens * m.heads);
  if (!bf16 || HasTensorCoreAttention(m.head_size)) return delta;
  const int64_t in = tokens * (m.heads + 2 * m.kv_heads) * m.head_size;
  const int64_t out = tokens * m.heads * m.head_size;
  return delta + 2 * Pieces(4 * in) + 2 * Pieces(4 * out);
}

}  // namespace

int64_t CudaScratchBytes(const Model& model, const LayerSpec& layer, const MicroBatchShape& shape,
                         Precision precision) {
  const bool bf16 = precision != Precision::kFp32;
  const bool head = layer.kind == LayerKind::kHead;
  const int64_t rows = head ? std::min(shape.tokens(), kCudaHeadRows) : shape.tokens();
  int64_t bytes = Pieces(8 * rows);  // losses
  const auto visit = [&](const std::vector<ParameterSpec>& parameters) {
    int64_t joined_rows = 0;
    for (const ParameterSpec& p : parameters) {
      joined_rows = p.joins_previous ? joined_rows + p.shape.front() : p.shape.front();
      bytes = std::max(bytes, Pieces(8 * ((p.elements() + kNormElements - 1) / kNormElements)));
      bytes = std::max(bytes, ColumnSumBytes(rows, std::max(joined_rows, model.width)));
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

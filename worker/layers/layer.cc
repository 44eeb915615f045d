#include "worker/layers/layer.h"

namespace headrace {

RandomStream Layer::Mask(const MicroBatch& mb, DropoutSite site) const {
  return MakeStream(mb.seed, RandomPurpose::kDropout, static_cast<uint32_t>(mb.step),
                    static_cast<uint32_t>(mb.micro_batch),
                    static_cast<uint32_t>(index_) * kDropoutSites + static_cast<uint32_t>(site));
}

AttentionShape Layer::Attention(const MicroBatch& mb) const {
  AttentionShape shape;
  shape.sequences = mb.shape.sequences;
  shape.length = mb.shape.length;
  shape.heads = model_.heads;
  shape.kv_heads = model_.kv_heads;
  shape.size = model_.head_size;
  shape.dropout = mb.training ? static_cast<float>(model_.attention_dropout) : 0.0f;
  shape.mask = Mask(mb, DropoutSite::kAttention);
  return shape;
}

ConstAct Layer::Drop(const LayerCall& call, DropoutSite site, double p, ConstAct x, Act y) const {
  if (!Drops(call, p)) return x;
  call.ops->Dropout(x, y, call.mb.shape.tokens() * model_.width, static_cast<float>(p),
                    Mask(call.mb, site));
  return y;
}

}  // namespace headrace

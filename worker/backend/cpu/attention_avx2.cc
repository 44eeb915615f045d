#define HEADRACE_WIDTH 8
#define HEADRACE_ROWS 6
#include "worker/backend/cpu/attention_bf16_kernel.h"
#include "worker/backend/cpu/attention_kernel.h"

namespace headrace {

const AttentionKernel kAttentionAvx2 = {Forward, Backward, Bf16Forward, Bf16Backward};

}  // namespace headrace

#define HEADRACE_WIDTH 16
#define HEADRACE_ROWS 14
#include "worker/backend/cpu/attention_bf16_kernel.h"
#include "worker/backend/cpu/attention_kernel.h"

namespace headrace {

const AttentionKernel kAttentionAvx512 = {Forward, Backward, Bf16Forward, Bf16Backward};

}  // namespace headrace

#define HEADRACE_WIDTH 4
#define HEADRACE_ROWS 4
#include "worker/backend/cpu/attention_bf16_kernel.h"
#include "worker/backend/cpu/attention_kernel.h"

namespace headrace {

const AttentionKernel kAttentionGeneric = {Forward, Backward, Bf16Forward, Bf16Backward};

}  // namespace headrace

// The roof of a compute-bound program on this machine.
#pragma once

namespace headrace {

// Floating-point operations a second of this thread doing nothing but fused multiply-adds of fp32
// in the widest vectors the processor has, all in registers: the best of `attempts` of about 0.05 s
// each, by processor time. 0 if unknown: no x86-64, or no FMA.
double FmaRoof(int attempts);

}  // namespace headrace

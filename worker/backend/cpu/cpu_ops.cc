#include "worker/backend/cpu/cpu_ops.h"

#include <omp.h>

#include <algorithm>
#include <memory>

namespace headrace {

std::unique_ptr<Ops> CreateCpuOps(int threads, Precision precision, void* panels) {
  threads = std::max(threads, 1);
  // Reaches only regions started from this thread: ours and, inside dnnl_sgemm, oneDNN's.
  omp_set_num_threads(threads);
  return std::make_unique<CpuOps>(threads, CreateProducts(precision, threads, panels));
}

}  // namespace headrace

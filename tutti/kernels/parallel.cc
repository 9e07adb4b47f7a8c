#include "tutti/kernels/parallel.h"

namespace tutti::kernels {

// LibTorch's template uses threads only where the compiler knows OpenMP, so that this file alone is compiled
// with it.
void on_threads(int64_t count, int64_t grain, c10::function_ref<void(int64_t, int64_t)> work) {
  at::parallel_for(0, count, grain, work);
}

}  // namespace tutti::kernels

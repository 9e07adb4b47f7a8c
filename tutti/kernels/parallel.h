#pragma once

#include <algorithm>
#include <cstdint>

#include <ATen/Parallel.h>
#include <c10/util/FunctionRef.h>

namespace tutti::kernels {

// Returns how many threads in_parallel() can use here.
inline int64_t threads() { return at::in_parallel_region() ? 1 : at::get_num_threads(); }

// Calls work(first, last) for ranges of at least `grain` pieces that cover pieces 0 to `count`, on LibTorch's
// threads.
void on_threads(int64_t count, int64_t grain, c10::function_ref<void(int64_t, int64_t)> work);

// The same, but threads are not used for less than they cost; `cost` is the number of elementary operations
// of one piece. How many pieces a thread gets depends on the number of threads, so no piece may depend on
// another one, and the cut into pieces may change bits only if it does not depend on the number of threads.
template <class Work>
void in_parallel(int64_t count, int64_t cost, const Work& work) {
  constexpr int64_t kWorthAThread = 1 << 18;
  const int64_t grain = std::max<int64_t>(1, kWorthAThread / std::max<int64_t>(1, cost));
  if (count <= grain || threads() == 1)
    work(int64_t{0}, count);
  else
    on_threads(count, grain, work);
}

}  // namespace tutti::kernels

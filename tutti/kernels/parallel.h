#pragma once

#include <algorithm>
#include <cstdint>

#include <ATen/Parallel.h>

namespace tutti::kernels {

// Returns how many threads in_parallel() can use here.
inline int64_t threads() { return at::in_parallel_region() ? 1 : at::get_num_threads(); }

// Calls work(first, last) for ranges that cover pieces 0 to `count`, on LibTorch's threads. How many pieces a
// thread gets depends on the number of threads, so no piece may depend on another one, and the cut into
// pieces may change bits only if it does not depend on the number of threads. `cost` is the number of
// elementary operations of one piece: threads are not used for less than they cost.
template <class Work>
void in_parallel(int64_t count, int64_t cost, const Work& work) {
  constexpr int64_t kWorthAThread = 1 << 16;
  const int64_t grain = std::max<int64_t>(1, kWorthAThread / std::max<int64_t>(1, cost));
  if (count <= grain || threads() == 1)
    work(int64_t{0}, count);
  else
    at::parallel_for(0, count, grain, work);
}

}  // namespace tutti::kernels

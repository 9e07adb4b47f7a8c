#pragma once

// For tests: the same computation on every target of Highway that this machine has, and with several numbers
// of threads.

#include <cstring>
#include <hwy/targets.h>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/types.h>

namespace tutti::kernels {

// Calls `work` once for each target, which is forced meanwhile, with a name for messages.
template <class Work>
void on_every_target(const Work& work) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    work();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

// Returns true if both have the same shape and bits.
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const at::Tensor x = a.contiguous();
  const at::Tensor y = b.contiguous();
  return x.numel() == 0 || std::memcmp(x.data_ptr(), y.data_ptr(), static_cast<size_t>(x.nbytes())) == 0;
}

// Calls `compute`, which returns a tensor, on every target and with 1 to 4 threads, expects the same bits
// from all, and returns them.
template <class Compute>
at::Tensor computed_everywhere(const Compute& compute) {
  at::Tensor first;
  const int before = at::get_num_threads();
  for (int threads = 1; threads <= 4; ++threads) {
    at::set_num_threads(threads);
    on_every_target([&] {
      const at::Tensor result = compute();
      if (!first.defined())
        first = result;
      else
        EXPECT_TRUE(same_bits(first, result)) << threads << " threads";
    });
  }
  at::set_num_threads(before);
  return first;
}

}  // namespace tutti::kernels

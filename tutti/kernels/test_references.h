#pragma once

// For tests: results of this module's operators against those of LibTorch in float64.

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/kernels/same_kernels.h"
#include "tutti/kernels/test_targets.h"

namespace tutti::kernels {

// Numbers that are drawn before any kernel is replaced.
class Inputs {
 public:
  explicit Inputs(uint64_t seed) {
    torch::manual_seed(seed);
    numbers_ = torch::randn({1 << 18}, at::kDouble);
  }

  // The numbers are rounded to `stored`, and given in `type`, from the first one on.
  void start(at::ScalarType stored, at::ScalarType type) {
    stored_ = stored;
    type_ = type;
    next_ = 0;
  }

  at::Tensor operator()(at::IntArrayRef sizes, double deviation = 1, double mean = 0) {
    const int64_t count = c10::multiply_integers(sizes);
    const at::Tensor result = numbers_.narrow(0, next_, count).view(sizes) * deviation + mean;
    next_ += count;
    return result.to(stored_).to(type_).clone();
  }

 private:
  at::Tensor numbers_;
  at::ScalarType stored_ = at::kDouble;
  at::ScalarType type_ = at::kDouble;
  int64_t next_ = 0;
};

inline at::Tensor flat(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& each : tensors)
    if (each.defined()) all.push_back(each.detach().reshape({-1}).to(at::kDouble));
  return torch::cat(all);
}

// Half a unit in the last place of 1.
inline double rounding_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return std::pow(2, -24);
    case at::kDouble:
      return std::pow(2, -53);
    case at::kHalf:
      return std::pow(2, -11);
    default:
      return std::pow(2, -8);
  }
}

// Calls `compute` with Inputs; it returns tensors. Expects of each one the same bits on every target and with
// any number of threads; errors against LibTorch's result in float64 of at most `roundings`, relative to the
// largest element, or of at most twice the error of LibTorch's own kernels; and, if there are enough
// elements, a mean error of at most `of_theirs` times theirs and a part of a rounding. LibTorch's results in
// float64 have errors too, so doubles may differ by more roundings.
template <class Compute>
void expect_like_libtorch(at::ScalarType type, double roundings, const Compute& compute,
                          double of_theirs = 1.1) {
  SCOPED_TRACE(at::toString(type));
  Inputs inputs(36);
  const auto results = [&](at::ScalarType computed) {
    inputs.start(type, computed);
    return std::vector<at::Tensor>(compute(inputs));
  };
  const std::vector<at::Tensor> exact = results(at::kDouble);
  const std::vector<at::Tensor> libtorch = results(type);
  const SameKernels same;
  const std::vector<at::Tensor> types = results(type);
  const at::Tensor all = computed_everywhere([&] { return flat(results(type)); });
  int64_t at = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    if (!exact[i].defined()) continue;
    EXPECT_EQ(types[i].scalar_type(), libtorch[i].scalar_type()) << "result " << i;
    ASSERT_EQ(types[i].sizes(), exact[i].sizes()) << "result " << i;
    const at::Tensor want = flat({exact[i]});
    const at::Tensor got = all.narrow(0, at, want.numel());
    at += want.numel();
    if (want.numel() == 0) continue;
    EXPECT_TRUE(torch::equal(got.isnan(), want.isnan())) << "result " << i;
    const at::Tensor finite = want.isfinite().logical_and(got.isfinite());
    const double largest = torch::where(finite, want, 0).abs().max().item<double>();
    const double unit = rounding_of(type) * std::max(largest, 0.01);
    const auto error = [&](const at::Tensor& of) { return torch::where(finite, of - want, 0).abs(); };
    const at::Tensor ours = error(got);
    if (type == at::kDouble) {
      EXPECT_LE(ours.max().item<double>() / unit, 1024 * roundings) << "result " << i;
      continue;
    }
    const at::Tensor theirs = error(flat({libtorch[i]}));
    EXPECT_LE(ours.max().item<double>() / unit, std::max(roundings, 2 * theirs.max().item<double>() / unit))
        << "result " << i;
    if (want.numel() < 100) continue;
    EXPECT_LE(ours.mean().item<double>() / unit, of_theirs * theirs.mean().item<double>() / unit + 0.1)
        << "result " << i;
  }
}

inline const std::vector<at::ScalarType> kReducedTypes = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};

}  // namespace tutti::kernels

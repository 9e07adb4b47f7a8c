#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/kernels/same_kernels.h"
#include "tutti/kernels/test_targets.h"

namespace tutti::kernels::interpolations_test {
namespace {

struct Resize {
  std::vector<int64_t> size;
  bool align_corners;
  c10::optional<double> factor;
};

const std::vector<Resize> kResizes = {{{9, 17}, false, {}}, {{9, 17}, true, {}},   {{3, 4}, false, {}},
                                      {{1, 1}, true, {}},   {{14, 9}, false, 2.0}, {{7, 5}, false, {}}};

// Returns the result and the gradient, one after the other.
at::Tensor resized(const at::Tensor& images, const Resize& to) {
  const at::Tensor x = images.detach().clone().requires_grad_();
  const at::Tensor y =
      at::upsample_bilinear2d(x, at::IntArrayRef(to.size), to.align_corners, to.factor, to.factor);
  const at::Tensor weight = torch::arange(y.numel(), at::kLong).bitwise_and(15).sub(5).to(y.scalar_type());
  y.backward(weight.reshape(y.sizes()));
  return torch::cat({y.detach().flatten(), x.grad().flatten()});
}

TEST(Interpolations, are_those_of_libtorch_in_float64_and_have_the_same_bits_everywhere) {
  torch::manual_seed(3);
  const at::Tensor images = torch::randn({2, 3, 7, 5}, at::kDouble);
  for (const Resize& to : kResizes) {
    const at::Tensor exact = resized(images, to);
    const SameKernels same;
    for (const auto& [type, bound] : {std::tuple(at::kFloat, 2e-5), std::tuple(at::kDouble, 1e-12)}) {
      const at::Tensor x = images.to(type);
      const at::Tensor plain =
          computed_everywhere([&, &type = type] { return resized(images.to(type), to); });
      EXPECT_LT((plain.to(at::kDouble) - exact).abs().max().item<double>(), bound);
      const at::Tensor last = x.contiguous(at::MemoryFormat::ChannelsLast);
      EXPECT_TRUE(same_bits(plain, resized(last, to)));
    }
  }
}

TEST(Interpolations, of_short_floats_are_rounded_once) {
  torch::manual_seed(4);
  const at::Tensor images = torch::randn({1, 2, 4, 4}).to(at::kBFloat16);
  const SameKernels same;
  const auto enlarged = [](const at::Tensor& x) {
    return at::upsample_bilinear2d(x, at::IntArrayRef({6, 7}), false, {}, {});
  };
  EXPECT_TRUE(same_bits(enlarged(images), enlarged(images.to(at::kFloat)).to(at::kBFloat16)));
}

}  // namespace
}  // namespace tutti::kernels::interpolations_test

#include "tutti/kernels/largest.h"

#include <limits>
#include <tuple>
#include <vector>

#include <torch/nn/functional.h>
#include <torch/types.h>

#include "tutti/kernels/same_kernels.h"
#include "tutti/kernels/test_targets.h"

namespace tutti::kernels::largest_test {
namespace {

struct Pool {
  std::vector<int64_t> input;
  std::vector<int64_t> kernel;
  std::vector<int64_t> stride;
  std::vector<int64_t> padding;
  std::vector<int64_t> dilation;
  bool ceil_mode = false;
};

const Pool kPools[] = {
    {{2, 3, 24, 24}, {2}, {}, {0}, {1}},
    {{3, 5, 8, 8}, {2, 2}, {2, 2}, {0, 0}, {1, 1}},
    {{1, 2, 32, 33}, {3}, {2}, {1}, {1}},
    {{1, 2, 40, 37}, {3}, {1}, {1}, {1}},
    {{2, 1, 19, 50}, {3, 2}, {2, 1}, {1, 0}, {2, 3}},
    {{2, 1, 19, 50}, {2, 5}, {1, 2}, {1, 2}, {1, 1}, true},
    {{7, 23, 29}, {4}, {3}, {2}, {1}, true},
    {{4, 1, 5, 5}, {5}, {}, {0}, {1}},
    {{1, 1, 1, 70}, {1, 2}, {1, 2}, {0, 0}, {1, 1}},
};

std::tuple<at::Tensor, at::Tensor> pooled(const at::Tensor& input, const Pool& of) {
  return at::max_pool2d_with_indices(input, of.kernel, of.stride, of.padding, of.dilation, of.ceil_mode);
}

// Numbers, some of which are equal to others, with NaN and infinities.
at::Tensor input_of(const Pool& of, bool with_nan) {
  at::Tensor input = at::empty(of.input);
  auto* const values = input.data_ptr<float>();
  uint32_t seed = 7;
  for (int64_t i = 0; i < input.numel(); ++i) {
    seed = seed * 1664525U + 1013904223U;
    values[i] = static_cast<float>(static_cast<int32_t>(seed >> 20) % 40 - 20);
    if (with_nan && seed % 7 == 0) values[i] = std::numeric_limits<float>::quiet_NaN();
    if (with_nan && seed % 5 == 0) values[i] = -std::numeric_limits<float>::infinity();
  }
  return input;
}

TEST(LargestOfWindows, have_the_bits_and_places_of_libtorch_on_every_target) {
  for (const bool with_nan : {false, true}) {
    for (const Pool& pool : kPools) {
      const at::Tensor input = input_of(pool, with_nan);
      const auto [values, places] = pooled(input, pool);
      const SameKernels same;
      const at::Tensor ours = computed_everywhere([&] { return std::get<0>(pooled(input, pool)); });
      EXPECT_TRUE(same_bits(values, ours)) << input.sizes();
      const at::Tensor ours_places = computed_everywhere([&] { return std::get<1>(pooled(input, pool)); });
      EXPECT_TRUE(same_bits(places, ours_places)) << input.sizes();
    }
  }
}

TEST(LargestOfWindows, of_other_tensors_are_those_of_libtorch) {
  const at::Tensor input = input_of(kPools[2], false);
  const at::Tensor inputs[] = {input.to(at::kDouble), input.to(at::kBFloat16),
                               input.contiguous(at::MemoryFormat::ChannelsLast), input.transpose(2, 3),
                               input.narrow(0, 0, 0)};
  for (const at::Tensor& each : inputs) {
    const auto [values, places] = pooled(each, kPools[2]);
    const SameKernels same;
    const auto [ours, ours_places] = pooled(each, kPools[2]);
    EXPECT_TRUE(same_bits(values, ours)) << each.options();
    EXPECT_EQ(values.strides(), ours.strides());
    EXPECT_TRUE(same_bits(places, ours_places)) << each.options();
  }
}

TEST(LargestOfWindows, are_written_into_given_tensors) {
  const at::Tensor input = input_of(kPools[0], false);
  const auto [values, places] = pooled(input, kPools[0]);
  const SameKernels same;
  at::Tensor out = at::empty({0});
  at::Tensor indices = at::empty({0}, at::kLong);
  at::max_pool2d_with_indices_out(out, indices, input, 2);
  EXPECT_TRUE(same_bits(values, out));
  EXPECT_TRUE(same_bits(places, indices));
  EXPECT_THROW(at::max_pool2d_with_indices(input, 2, 2, 2), c10::Error);  // too much padding
}

TEST(LargestOfWindows, have_gradients_in_autograd) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const auto gradient = [&] {
      const at::Tensor input = input_of(kPools[0], false).to(type).requires_grad_(true);
      torch::max_pool2d(input, 2).sum().backward();
      return input.grad();
    };
    const at::Tensor expected = gradient();
    const SameKernels same;
    EXPECT_TRUE(same_bits(expected, gradient()));
  }
}

}  // namespace
}  // namespace tutti::kernels::largest_test

// Tests operators of LibTorch that are exact for most arguments, and what is done about the other ones.
#include <cmath>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tutti/kernels/coverage.h"
#include "tutti/kernels/same_kernels.h"
#include "tutti/kernels/test_targets.h"

namespace tutti::kernels::almost_exact_test {
namespace {

TEST(Extremes, are_zero_and_never_minus_zero) {
  const SameKernels same;
  for (const bool minus_first : {false, true}) {
    at::Tensor zeros = torch::zeros({2, 5000});
    zeros.select(1, minus_first ? 0 : 4999).fill_(-0.0);
    for (const at::Tensor& each : {zeros, -zeros}) {
      const auto [greatest, places] = each.max(1);
      const auto [least, other_places] = each.min(1);
      const auto [least_of_all, greatest_of_all] = each.aminmax();
      at::Tensor given = torch::empty({2});
      torch::amax_out(given, each, 1);
      for (const at::Tensor& found : {each.amax(1), each.amin(1), each.max(), each.min(), greatest, least,
                                      least_of_all, greatest_of_all, given}) {
        EXPECT_FALSE(found.signbit().any().item<bool>());
        EXPECT_TRUE(found.eq(0).all().item<bool>());
      }
    }
  }
  const at::Tensor numbers = torch::tensor(std::vector<double>{3, -2, std::nan(""), -7.5, 0.25});
  EXPECT_EQ(numbers.narrow(0, 0, 2).amin().item<double>(), -2);
  EXPECT_EQ(numbers.narrow(0, 3, 2).amax().item<double>(), 0.25);
  EXPECT_TRUE(numbers.amax().isnan().item<bool>());
}

TEST(Linspace, of_integers_is_the_nearest_number_towards_zero_everywhere) {
  const SameKernels same;
  for (const at::ScalarType type : {at::kInt, at::kLong, at::kByte}) {
    const at::Tensor found =
        computed_everywhere([&] { return torch::linspace(3, 250, 7, at::TensorOptions(type)); });
    EXPECT_EQ(found.scalar_type(), type);
    EXPECT_TRUE(found.to(at::kLong).equal(torch::tensor({3, 44, 85, 126, 167, 208, 250}, at::kLong)))
        << found;
  }
}

bool is_named(std::string_view name) {
  for (const NotCovered& each : not_covered_operators())
    if (each.name == name) return true;
  return false;
}

// A process remembers each operator that it has named, so each operator has one test.
TEST(RepeatedIndices, of_copies_are_named_where_threads_may_write_to_one_place) {
  const SameKernels same;
  const CoverageCheck check;
  const at::Tensor values = torch::arange(3000.0);
  const at::Tensor once = torch::arange(3000);
  at::Tensor twice = once.clone();
  twice[500] = 17;
  at::Tensor table = torch::zeros({3000});
  table.index_copy_(0, once, values);
  EXPECT_TRUE(table.equal(values));
  table.index_copy_(0, twice.slice(0, 0, 1000), values.slice(0, 0, 1000));  // one thread writes so few
  EXPECT_FALSE(is_named("aten::index_copy"));
  table.index_copy_(0, twice, values);
  EXPECT_TRUE(is_named("aten::index_copy"));
}

TEST(RepeatedIndices, of_several_dimensions_are_those_that_meet_in_all_of_them) {
  const SameKernels same;
  const CoverageCheck check;
  at::Tensor table = torch::zeros({60, 50});
  const at::Tensor rows = torch::arange(60).repeat_interleave(50);
  at::Tensor columns = torch::arange(50).repeat({60});
  const at::Tensor values = torch::rand({3000});
  table.index_put_({rows, columns}, values);
  EXPECT_TRUE(table.flatten().equal(values));
  table.index_put_({table.gt(0.5)}, torch::tensor(1.0));
  const at::Tensor next = columns[8].clone();
  columns[7] = next - 50;  // counted from the end
  table.index_put_({rows, columns}, values, /*accumulate=*/true);
  EXPECT_FALSE(is_named("aten::_index_put_impl_"));
  table.index_put_({rows, columns}, values);
  EXPECT_TRUE(is_named("aten::_index_put_impl_"));
}

TEST(KaiserWindow, is_named) {
  const SameKernels same;
  const CoverageCheck check;
  torch::kaiser_window(8);
  EXPECT_TRUE(is_named("aten::kaiser_window"));
}

}  // namespace
}  // namespace tutti::kernels::almost_exact_test

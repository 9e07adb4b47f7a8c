#include "tutti/comm/reduce_on_device.h"

#include <vector>

#include <gtest/gtest.h>

namespace tutti::comm::reduce_on_device_test {
namespace {

constexpr int64_t kCount = 3001;

// Signed types get values below zero as well, and floating-point types get fractions.
std::vector<torch::Tensor> inputs_of(torch::ScalarType type, size_t count) {
  std::vector<torch::Tensor> inputs;
  for (size_t i = 0; i < count; ++i) {
    const torch::Tensor values = torch::randn({kCount}) * 100;
    inputs.push_back(type == torch::kBool ? values > 0 : values.to(type));
  }
  return inputs;
}

torch::Tensor reduced(const std::vector<torch::Tensor>& inputs, const Reduction& reduction,
                      const Program& program) {
  std::vector<const std::byte*> from;
  for (const torch::Tensor& input : inputs)
    from.push_back(input.defined() ? static_cast<const std::byte*>(input.data_ptr()) : nullptr);
  const torch::Tensor result =
      torch::empty({kCount}, torch::TensorOptions().dtype(scalar_type(reduction.type)));
  auto* const to = static_cast<std::byte*>(result.data_ptr());
  reduce(from, {&to, 1}, reduction, program);
  return result;
}

void expect_same_bits(const std::vector<torch::Tensor>& inputs, const Reduction& reduction,
                      const Program& program) {
  EXPECT_TRUE(torch::equal(reduce_on_device(inputs, reduction, program).view(torch::kByte),
                           reduced(inputs, reduction, program).view(torch::kByte)))
      << name_of(reduction.type) << ", operation " << static_cast<int>(reduction.op) << " of "
      << inputs.size();
}

TEST(ReduceOnDevice, gives_the_bits_of_reduce) {
  for (const auto type : {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf, torch::kInt,
                          torch::kLong, torch::kByte, torch::kBool}) {
    for (const size_t count : {1, 2, 3, 5, 8}) {
      const auto inputs = inputs_of(type, count);
      for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product})
        expect_same_bits(inputs, {element_type(type), op, kCount},
                         one_by_rank(static_cast<int>(count)).program);
      for (const ReduceOp op : {ReduceOp::BitAnd, ReduceOp::BitOr, ReduceOp::BitXor}) {
        if (c10::isFloatingType(type)) break;
        expect_same_bits(inputs, {element_type(type), op, kCount},
                         one_by_rank(static_cast<int>(count)).program);
      }
      if (!c10::isFloatingType(type)) continue;
      expect_same_bits(inputs, {element_type(type), ReduceOp::Average, kCount},
                       one_by_rank(static_cast<int>(count)).program);
      expect_same_bits(inputs, {element_type(type), ReduceOp::Average, kCount, 0, 7},
                       one_by_rank(static_cast<int>(count)).program);
      expect_same_bits(inputs, {element_type(type), ReduceOp::Sum, kCount, 37},
                       one_by_rank(static_cast<int>(count)).program);
      expect_same_bits(inputs, {element_type(type), ReduceOp::Sum, kCount, 37, 0, /*round_each=*/true},
                       one_by_rank(static_cast<int>(count)).program);
    }
  }
}

TEST(ReduceOnDevice, leaves_inputs_alone_and_out) {
  auto inputs = inputs_of(torch::kFloat, 3);
  const torch::Tensor before = inputs[2].clone();
  inputs[0] = torch::Tensor();
  expect_same_bits(inputs, {ElementType::Float32, ReduceOp::Sum, kCount}, {1, 2, kCombine});
  expect_same_bits(inputs, {ElementType::Float32, ReduceOp::Sum, kCount, 3}, {2});
  EXPECT_TRUE(torch::equal(inputs[2], before));
}

// Then it does not matter where the first inputs are added.
TEST(ReduceOnDevice, half_precision_that_is_rounded_each_time_can_be_added_in_parts) {
  for (const auto type : {torch::kBFloat16, torch::kHalf}) {
    const auto inputs = inputs_of(type, 4);
    const Reduction reduction{
        .type = element_type(type), .op = ReduceOp::Sum, .count = kCount, .round_each = true};
    const torch::Tensor expected = (inputs[0] + inputs[1]) + (inputs[2] + inputs[3]);
    EXPECT_TRUE(torch::equal(reduced(inputs, reduction, one_by_rank(4).program), expected));
    const Reduction once{.type = element_type(type), .op = ReduceOp::Sum, .count = kCount};
    EXPECT_FALSE(torch::equal(reduced(inputs, once, one_by_rank(4).program), expected));
  }
}

// bfloat16 cannot represent 257.
TEST(ReduceOnDevice, half_precision_is_divided_by_what_it_cannot_hold) {
  const auto inputs = inputs_of(torch::kBFloat16, 1);
  const torch::Tensor divided = inputs[0].clone();
  divide(divided, 257);
  const torch::Tensor expected = (inputs[0].to(torch::kFloat) / 257.0).to(torch::kBFloat16);
  EXPECT_TRUE(torch::equal(divided, expected));
  EXPECT_TRUE(torch::equal(
      divided, reduced(inputs, {ElementType::BFloat16, ReduceOp::Sum, kCount, 257}, one_by_rank(1).program)));
}

TEST(ReduceOnDevice, divides_in_place) {
  const torch::Tensor values = torch::randn({kCount});
  const torch::Tensor expected = values / 3.0;
  divide(values, 3);
  EXPECT_TRUE(torch::equal(values, expected));
}

}  // namespace
}  // namespace tutti::comm::reduce_on_device_test

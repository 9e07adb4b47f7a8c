#include "tutti/data/source.h"

#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/test_errors.h"

namespace tutti::data {
namespace {

void expect_rows(const torch::Tensor& from, const std::vector<int64_t>& rows) {
  const auto source = from_tensors({{"x", from}});
  const torch::Tensor expected = from.index_select(0, torch::tensor(rows, torch::kLong));
  const Batch batch = source->read(rows);
  EXPECT_TRUE(batch["x"].equal(expected));
  EXPECT_EQ(batch["x"].dtype(), from.dtype());
}

TEST(TensorSource, gives_rows_in_the_order_asked_for) {
  const torch::Tensor floats = torch::arange(60, torch::kFloat).reshape({10, 2, 3});
  expect_rows(floats, {3, 4, 5, 0, 9, 9, 1, 2});
  expect_rows(floats, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  expect_rows(floats, {9, 8, 7});
  expect_rows(floats, {});
  expect_rows(torch::arange(10, torch::kByte), {7, 1});
  expect_rows(torch::arange(10, torch::kLong), {7, 8});
  expect_rows(torch::arange(20, torch::kHalf).reshape({10, 2}), {7, 8});
  expect_rows(torch::ones({5, 0}), {4, 0});
}

TEST(TensorSource, takes_tensors_that_are_not_contiguous) {
  expect_rows(torch::arange(12, torch::kFloat).reshape({3, 4}).t(), {3, 0, 1});
}

TEST(TensorSource, gives_memory_of_its_own) {
  const torch::Tensor original = torch::zeros({4, 2});
  const auto source = from_tensors({{"x", original}});
  const std::vector<int64_t> rows = {0, 1, 2, 3};
  source->read(rows)["x"].add_(1);
  EXPECT_TRUE(original.equal(torch::zeros({4, 2})));
}

TEST(TensorSource, refuses_examples_that_are_not_there) {
  const auto source = from_tensors({{"x", torch::zeros({4})}});
  for (const int64_t example : {int64_t{-1}, int64_t{4}, INT64_MAX, INT64_MIN}) {
    error_of(ErrorKind::Bug, [&] { source->read(std::vector<int64_t>{0, example}); });
  }
}

TEST(TensorSource, refuses_tensors_that_do_not_go_together) {
  error_of(ErrorKind::InvalidArgument, [] { from_tensors({}); });
  error_of(ErrorKind::InvalidArgument, [] {
    from_tensors({{"x", torch::ones({2})}, {"y", torch::ones({3})}});
  });
}

}  // namespace
}  // namespace tutti::data

#include "tutti/store/named_tensor.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace tutti::store {
namespace {

std::string collected(const torch::Tensor& tensor) {
  std::string bytes;
  for_each_piece(tensor, [&bytes](std::span<const std::byte> piece) {
    bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  });
  return bytes;
}

std::string memory_of(const torch::Tensor& contiguous) {
  return {static_cast<const char*>(contiguous.data_ptr()), static_cast<size_t>(contiguous.nbytes())};
}

TEST(ForEachPiece, gives_the_elements_in_order_whatever_the_strides) {
  const torch::Tensor tensor = torch::arange(24, torch::kInt).reshape({2, 3, 4});
  EXPECT_EQ(collected(tensor), memory_of(tensor));
  EXPECT_EQ(collected(tensor.permute({2, 0, 1})), memory_of(tensor.permute({2, 0, 1}).contiguous()));
  EXPECT_EQ(collected(torch::ones({0, 3}).t()), "");
}

TEST(ForEachPiece, cuts_large_views_without_losing_an_element) {
  // 40 MB, which gives several pieces, of one row and of many rows.
  const torch::Tensor tensor = torch::arange(5'000'000, torch::kLong);
  EXPECT_EQ(collected(tensor.reshape({2, 2'500'000}).t()),
            memory_of(tensor.reshape({2, 2'500'000}).t().contiguous()));
  EXPECT_EQ(collected(tensor.reshape({2'500'000, 2}).t()),
            memory_of(tensor.reshape({2'500'000, 2}).t().contiguous()));
  const torch::Tensor within_one = tensor.reshape({1, 2'500'000, 2}).transpose(1, 2);
  EXPECT_EQ(collected(within_one), memory_of(within_one.contiguous()));
}

}  // namespace
}  // namespace tutti::store

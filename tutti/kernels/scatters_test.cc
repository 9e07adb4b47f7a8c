#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/kernels/same_kernels.h"
#include "tutti/kernels/test_references.h"
#include "tutti/kernels/test_targets.h"

namespace tutti::kernels::scatters_test {
namespace {

namespace F = torch::nn::functional;
using Tensors = std::vector<at::Tensor>;

constexpr double kRoundings = 16;

// Indices that come again and again.
at::Tensor indices_below(int64_t rows, int64_t count, at::ScalarType type = at::kLong) {
  return (torch::arange(count) * 7919 % 10007 % rows).to(type);
}

TEST(EmbeddingBag, is_that_of_libtorch) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    for (const int64_t width : {1, 16, 37, 200}) {
      for (const at::ScalarType index : {at::kLong, at::kInt}) {
        for (const bool weighted : {false, true}) {
          for (const bool by_frequency : {false, true}) {
            SCOPED_TRACE(testing::Message() << width << " weighted " << weighted << by_frequency);
            expect_like_libtorch(type, kRoundings, [&](Inputs& draw) -> Tensors {
              const at::Tensor table = draw({50, width}).requires_grad_();
              const at::Tensor samples = draw({300}).requires_grad_();
              const at::Tensor indices = indices_below(50, 300, index);
              const at::Tensor offsets = torch::tensor({0, 0, 7, 100, 299, 300}).to(index);
              F::EmbeddingBagFuncOptions options;
              options.offsets(offsets).scale_grad_by_freq(by_frequency).padding_idx(3);
              if (weighted)
                options.mode(torch::kSum).per_sample_weights(samples);
              else if (width % 2 == 0)
                options.mode(torch::kMean);
              else
                options.mode(torch::kSum);
              const at::Tensor result = F::embedding_bag(indices, table, options);
              result.backward(draw(result.sizes()));
              const torch::NoGradGuard no_gradients;
              return {result, table.grad(), weighted ? samples.grad() : at::Tensor(),
                      F::embedding_bag(indices, table, options)};
            });
          }
        }
      }
    }
  }
}

TEST(EmbeddingBag, of_wrong_indices_is_refused_by_libtorch) {
  const SameKernels same;
  const at::Tensor table = torch::randn({5, 3});
  const auto bag = [&](const at::Tensor& indices, const at::Tensor& offsets) {
    return torch::embedding_bag(table, indices, offsets, false, 1);
  };
  EXPECT_THROW(bag(torch::tensor({0, 5}), torch::tensor({0})), c10::Error);
  EXPECT_THROW(bag(torch::tensor({0, 1}), torch::tensor({1})), c10::Error);
}

TEST(Embedding, divides_gradients_by_frequency_as_libtorch_does) {
  expect_like_libtorch(at::kFloat, kRoundings, [](Inputs& draw) -> Tensors {
    const at::Tensor gradient = draw({10, 30, 21});
    const at::Tensor indices = indices_below(40, 300).view({10, 30});
    return {torch::embedding_dense_backward(gradient, indices, 40, 2, true),
            torch::embedding_dense_backward(gradient, indices, 40, -1, false)};
  });
}

TEST(IndexAdd, is_that_of_libtorch_with_a_factor) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    expect_like_libtorch(type, kRoundings, [](Inputs& draw) -> Tensors {
      const at::Tensor to = draw({40, 9});
      const at::Tensor from = draw({300, 9});
      const at::Tensor index = indices_below(40, 300);
      Tensors result = {torch::index_add(to, 0, index, from, 0.3), torch::index_add(to, 0, index, from),
                        torch::index_add(to.t(), 1, index, from.t(), -2.5)};
      to.index_add_(0, index, from, 0.7);
      result.push_back(to);
      return result;
    });
  }
}

// Sums in the order of positions.
TEST(IndexPut, adds_in_the_order_of_the_indices) {
  torch::manual_seed(3);
  const at::Tensor to = torch::randn({7, 5});
  const at::Tensor values = torch::randn({4000, 5});
  const at::Tensor index = indices_below(7, 4000);
  at::Tensor want = to.clone();
  for (int64_t i = 0; i < 4000; ++i) want[index[i].item<int64_t>()] += values[i];
  const SameKernels same;
  const at::Tensor got = computed_everywhere([&] { return torch::index_put(to, {index}, values, true); });
  EXPECT_TRUE(same_bits(got, want));
}

TEST(IndexPut, takes_indices_of_any_dimensions_as_libtorch_does) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    expect_like_libtorch(type, kRoundings, [](Inputs& draw) -> Tensors {
      using torch::indexing::Slice;
      const at::Tensor to = draw({6, 5, 4, 3});
      const at::Tensor a = indices_below(6, 50) - 2;
      const at::Tensor b = indices_below(5, 50);
      const at::Tensor c = indices_below(4, 20).view({20, 1});
      const at::Tensor mask = torch::arange(30).view({6, 5}) % 3 == 0;
      const c10::optional<at::Tensor> all;
      const auto put = [&](const at::Tensor& on, const std::vector<c10::optional<at::Tensor>>& given,
                           const at::Tensor& values) {
        at::Tensor result = on.clone();
        c10::List<c10::optional<at::Tensor>> list;
        for (const auto& each : given) list.push_back(each);
        torch::index_put_(result, list, values, true);
        return result;
      };
      Tensors result = {put(to, {a, b}, draw({50, 4, 3})),
                        put(to, {all, b, c}, draw({6, 20, 50, 3})),
                        put(to, {a, all, indices_below(4, 50)}, draw({50, 5, 3})),
                        put(to, {mask}, draw({10, 4, 3})),
                        put(to, {all, mask.t()[0].narrow(0, 0, 5)}, draw({6, 1, 4, 3})),
                        put(to.transpose(0, 3), {all, all, indices_below(4, 50)}, draw({1})),
                        put(to, {torch::tensor(2)}, draw({5, 4, 3}))};
      const at::Tensor x = draw({6, 7}).requires_grad_();
      x.index({a, Slice(1, 4)}).pow(2).sum().backward();
      result.push_back(x.grad());
      return result;
    });
  }
}

TEST(IndexPut, of_wrong_indices_is_refused_by_libtorch) {
  const SameKernels same;
  const at::Tensor to = torch::randn({3, 2});
  EXPECT_THROW(torch::index_put(to, {torch::tensor({3})}, torch::ones({1, 2}), true), c10::Error);
  EXPECT_ANY_THROW(torch::index_put(to, {torch::tensor({0, 1})}, torch::ones({3, 2}), true));
}

// Kernels of LibTorch that only add in the order of the indices.
TEST(ExactScatters, have_the_same_bits_with_any_number_of_threads) {
  torch::manual_seed(4);
  const SameKernels same;
  const at::Tensor index = indices_below(50, 4000);
  const at::Tensor values = torch::randn({4000, 33});
  const at::Tensor wide = index.unsqueeze(1).expand({4000, 33}).contiguous();
  computed_everywhere([&] { return torch::zeros({50, 33}).scatter_add(0, wide, values); });
  computed_everywhere([&] { return torch::zeros({50}).scatter_add(0, index, values.select(1, 0)); });
  computed_everywhere([&] { return torch::zeros({50, 33}).index_add(0, index, values); });
  computed_everywhere([&] { return torch::bincount(index, values.select(1, 0)); });
  computed_everywhere([&] { return torch::embedding_dense_backward(values, index, 50, -1, false); });
  computed_everywhere([&] { return torch::cumsum(values, 0); });
  computed_everywhere([&] { return torch::cumprod(values, 1); });
}

TEST(ExactPools, have_the_same_bits_with_any_number_of_threads) {
  torch::manual_seed(5);
  const SameKernels same;
  const at::Tensor images = torch::randn({4, 19, 33, 31});
  for (const at::MemoryFormat format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
    const auto with_gradient = [&](const auto& pool) {
      return computed_everywhere([&] {
        const at::Tensor x = images.clone(format).requires_grad_();
        const at::Tensor result = pool(x);
        (result * result).sum().backward();
        return flat({result, x.grad()});
      });
    };
    with_gradient([](const at::Tensor& x) { return torch::avg_pool2d(x, 3, 2, 1); });
    with_gradient([](const at::Tensor& x) { return torch::adaptive_avg_pool2d(x, {5, 7}); });
    with_gradient([](const at::Tensor& x) { return torch::adaptive_avg_pool2d(x, {1, 1}); });
    with_gradient([](const at::Tensor& x) { return torch::max_pool2d(x, 3, 2, 1); });
    with_gradient([](const at::Tensor& x) { return torch::upsample_nearest2d(x, {50, 60}); });
  }
}

}  // namespace
}  // namespace tutti::kernels::scatters_test

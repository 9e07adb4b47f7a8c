// The attention that scaled_dot_product_attention calls without dropout. LibTorch makes the one with dropout
// of bmm, softmax and dropout.
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

#if __has_include(<ATen/ops/_scaled_dot_product_flash_attention_for_cpu_cpu_dispatch.h>)
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_cpu_dispatch.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#define TUTTI_HAS_ATTENTION 1
#endif

#include "tutti/kernels/operators.h"
#include "tutti/kernels/parallel.h"
#include "tutti/kernels/products.h"
#include "tutti/kernels/results.h"
#include "tutti/kernels/softmax.h"

namespace tutti::kernels {

#ifdef TUTTI_HAS_ATTENTION
namespace {

using Optional = c10::optional<at::Tensor>;

// The operands of all heads: [batch, heads, length, features].
struct Attention {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
  at::Tensor mask;  // undefined, or expanded to [batch, heads, queries, keys]
  double scale;
  bool causal;

  int64_t heads() const { return query.size(0) * query.size(1); }
  int64_t queries() const { return query.size(2); }
  int64_t keys() const { return key.size(2); }
};

// Queries are handled in blocks of one chain of products.h. The gradients of keys and values, which are sums
// over queries, are made of one chain for each block, which are added from the last block to the first.
constexpr int64_t kQueries = kChain;

template <class T>
Matrix<T> matrix_of(const at::Tensor& tensor, int64_t head, int64_t row = 0) {
  const int64_t heads = tensor.size(1);
  T* const data = tensor.data_ptr<std::remove_const_t<T>>() + head / heads * tensor.stride(0) +
                  head % heads * tensor.stride(1) + row * tensor.stride(2);
  return {data, tensor.stride(2), tensor.stride(3)};
}

template <class T>
Matrix<T> transposed(Matrix<T> matrix) {
  return {matrix.data, matrix.column, matrix.row};
}

template <class T>
void multiply_in_thread(const Product<T>& product) {
  const Product<T> order = arranged(product);
  const Cut cut(order.m, order.n, sizeof(T), 1);
  multiply(order, cut, 0, cut.count());
}

// A block of queries of one head. `keys` is how many keys they attend to at most.
struct QueryBlock {
  QueryBlock(const Attention& of, int64_t head_, int64_t first_)
      : head(head_),
        first(first_),
        count(std::min(kQueries, of.queries() - first_)),
        keys(of.causal ? std::min(of.keys(), first_ + count) : of.keys()) {}

  int64_t head;
  int64_t first;
  int64_t count;
  int64_t keys;
};

// Writes the weights of keys, count rows of `keys` elements. A query that may attend to no key has weights of
// 0.
template <class T>
void weigh(const Attention& of, const QueryBlock& block, T* weights, T* logarithms) {
  Product<T> product{block.count,
                     block.keys,
                     of.query.size(3),
                     matrix_of<const T>(of.query, block.head, block.first),
                     transposed(matrix_of<const T>(of.key, block.head)),
                     {weights, block.keys, 1}};
  product.alpha = static_cast<T>(of.scale);
  if (of.mask.defined()) {
    product.beta = 1;
    product.addend = matrix_of<const T>(of.mask, block.head, block.first);
  }
  multiply_in_thread(product);
  for (int64_t i = 0; i < block.count; ++i) {
    T* const row = weights + i * block.keys;
    const int64_t length = of.causal ? std::min(block.keys, block.first + i + 1) : block.keys;
    std::fill(row + length, row + block.keys, T(0));
    apply(RowFunction::Softmax, Rows<T>{{row, nullptr}, row, 1, length, logarithms + i});
    if (of.mask.defined() && std::isnan(logarithms[i])) {
      // Without a key the scores are all -infinity, and the weights NaN, which has to come from the mask
      // alone.
      const Matrix<const T> mask = matrix_of<const T>(of.mask, block.head, block.first + i);
      bool none = true;
      for (int64_t j = 0; j < length && none; ++j)
        none = mask.data[j * mask.column] == -std::numeric_limits<T>::infinity();
      if (none) std::fill_n(row, length, T(0));
    }
  }
}

template <class T>
void attend(const Attention& of, const at::Tensor& out, const at::Tensor& logarithms) {
  const int64_t cost = of.queries() * of.keys() * of.query.size(3);
  const int64_t blocks = (of.queries() + kQueries - 1) / kQueries;
  in_parallel(of.heads() * blocks, cost / blocks, [&](int64_t begin, int64_t end) {
    std::vector<T> weights(static_cast<size_t>(std::min(kQueries, of.queries()) * of.keys()));
    for (int64_t i = begin; i < end; ++i) {
      const QueryBlock block(of, i / blocks, i % blocks * kQueries);
      weigh(of, block, weights.data(), logarithms.data_ptr<T>() + block.head * of.queries() + block.first);
      multiply_in_thread(Product<T>{block.count,
                                    of.value.size(3),
                                    block.keys,
                                    {weights.data(), block.keys, 1},
                                    matrix_of<const T>(of.value, block.head),
                                    matrix_of<T>(out, block.head, block.first)});
    }
  });
}

// The gradients of query, key and value.
struct Gradients {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
};

// Adds a product to rows of a gradient.
template <class T>
void add_product(Product<T> product, T* space, bool first) {
  const Matrix<T> to = product.out;
  if (!first) product.out = {space, product.n, 1};
  multiply_in_thread(product);
  if (first) return;
  for (int64_t i = 0; i < product.m; ++i)
    for (int64_t j = 0; j < product.n; ++j) to.data[i * to.row + j] += space[i * product.n + j];
}

template <class T>
void differentiate(const Attention& of, const at::Tensor& gradient, const Gradients& out) {
  const int64_t features = of.query.size(3);
  const int64_t wide = of.value.size(3);
  const int64_t cost = 4 * of.queries() * of.keys() * features;
  in_parallel(of.heads(), cost, [&](int64_t begin, int64_t end) {
    const auto size = static_cast<size_t>(std::min(kQueries, of.queries()) * of.keys());
    std::vector<T> weights(size);
    std::vector<T> of_weights(size);
    std::vector<T> space(static_cast<size_t>(of.keys() * std::max(features, wide)));
    std::vector<T> logarithms(static_cast<size_t>(kQueries));
    for (int64_t head = begin; head < end; ++head) {
      // The last block comes first: it reaches all keys, so that it can store its sums.
      for (int64_t first = (of.queries() - 1) / kQueries * kQueries; first >= 0; first -= kQueries) {
        const QueryBlock block(of, head, first);
        const bool stores = first + kQueries >= of.queries();
        weigh(of, block, weights.data(), logarithms.data());
        const Matrix<const T> weight{weights.data(), block.keys, 1};
        const Matrix<const T> score{of_weights.data(), block.keys, 1};
        const auto of_result = matrix_of<const T>(gradient, head, first);
        multiply_in_thread(Product<T>{block.count,
                                      block.keys,
                                      wide,
                                      of_result,
                                      transposed(matrix_of<const T>(of.value, head)),
                                      {of_weights.data(), block.keys, 1}});
        apply(RowFunction::SoftmaxBackward,
              Rows<T>{{of_weights.data(), weights.data()}, of_weights.data(), block.count, block.keys});
        add_product(Product<T>{block.keys, wide, block.count, transposed(weight), of_result,
                               matrix_of<T>(out.value, head)},
                    space.data(), stores);
        Product<T> of_query{block.count,
                            features,
                            block.keys,
                            score,
                            matrix_of<const T>(of.key, head),
                            matrix_of<T>(out.query, head, first)};
        of_query.alpha = static_cast<T>(of.scale);
        multiply_in_thread(of_query);
        Product<T> of_key{block.keys,
                          features,
                          block.count,
                          transposed(score),
                          matrix_of<const T>(of.query, head, first),
                          matrix_of<T>(out.key, head)};
        of_key.alpha = static_cast<T>(of.scale);
        add_product(of_key, space.data(), stores);
      }
    }
  });
}

std::optional<Attention> attention_of(std::string_view name, const at::Tensor& query, const at::Tensor& key,
                                      const at::Tensor& value, double dropout, bool causal,
                                      const Optional& mask, c10::optional<double> scale) {
  if (query.dim() != 4 || key.dim() != 4 || value.dim() != 4 || query.numel() == 0 || key.numel() == 0)
    return std::nullopt;
  if (!are_reduced(name, query, key, value)) return std::nullopt;
  if (dropout > 0 || key.size(1) != query.size(1) || value.size(1) != query.size(1) ||
      key.size(0) != query.size(0) || value.size(0) != query.size(0) || value.size(2) != key.size(2) ||
      key.size(3) != query.size(3)) {
    not_covered(name, "dropout or grouped heads");
    return std::nullopt;
  }
  Attention of{widened(query), widened(key), widened(value), {}, 0, causal};
  of.scale = scale.value_or(1 / std::sqrt(static_cast<double>(query.size(3))));
  if (mask.has_value() && mask->defined()) {
    if (!is_reduced_type(mask->scalar_type())) {
      not_covered(name, at::toString(mask->scalar_type()));
      return std::nullopt;
    }
    of.mask =
        mask->to(of.query.scalar_type()).expand({query.size(0), query.size(1), query.size(2), key.size(2)});
  }
  return of;
}

// A tensor [batch, heads, length, features] that lies in memory as `like` does, which LibTorch's result does.
at::Tensor empty_heads(const at::Tensor& like, int64_t features) {
  const at::Tensor out = at::empty_like(like);
  if (out.stride(3) == 1 && out.size(3) == features) return out;
  return at::empty({like.size(0), like.size(1), like.size(2), features}, like.options());
}

std::tuple<at::Tensor, at::Tensor> attention(const at::Tensor& query, const at::Tensor& key,
                                             const at::Tensor& value, double dropout, bool causal,
                                             const Optional& mask, c10::optional<double> scale) {
  const auto of = attention_of("aten::_scaled_dot_product_flash_attention_for_cpu", query, key, value,
                               dropout, causal, mask, scale);
  if (!of)
    return at::cpu::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout, causal, mask,
                                                                scale);
  const at::Tensor out = empty_heads(of->query, value.size(3));
  const at::Tensor logarithms = at::empty({query.size(0), query.size(1), query.size(2)}, of->query.options());
  if (of->query.scalar_type() == at::kFloat)
    attend<float>(*of, out, logarithms);
  else
    attend<double>(*of, out, logarithms);
  return {out.to(query.scalar_type()), logarithms};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(
    const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& out, const at::Tensor& logarithms, double dropout, bool causal, const Optional& mask,
    c10::optional<double> scale) {
  const auto of = attention_of("aten::_scaled_dot_product_flash_attention_for_cpu_backward", query, key,
                               value, dropout, causal, mask, scale);
  if (!of)
    return at::cpu::_scaled_dot_product_flash_attention_for_cpu_backward(
        gradient, query, key, value, out, logarithms, dropout, causal, mask, scale);
  const Gradients to{empty_heads(of->query, query.size(3)), empty_heads(of->key, key.size(3)),
                     empty_heads(of->value, value.size(3))};
  if (causal && of->keys() > of->queries()) {
    // The keys behind the last query are attended to by none.
    to.key.zero_();
    to.value.zero_();
  }
  const at::Tensor gradients = widened(gradient);
  if (of->query.scalar_type() == at::kFloat)
    differentiate<float>(*of, gradients, to);
  else
    differentiate<double>(*of, gradients, to);
  const at::ScalarType type = query.scalar_type();
  return {to.query.to(type), to.key.to(type), to.value.to(type)};
}

}  // namespace
#endif

void register_attention([[maybe_unused]] Registrar& library) {
#ifdef TUTTI_HAS_ATTENTION
  library.impl("_scaled_dot_product_flash_attention_for_cpu", attention);
  library.impl("_scaled_dot_product_flash_attention_for_cpu_backward", attention_backward);
#endif
}

}  // namespace tutti::kernels

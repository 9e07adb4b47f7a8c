// Embedding bags, and sums into rows that indices choose. Those of LibTorch that only add, in the order of
// the indices, are exact, and stay: embedding_dense_backward, index_add, scatter_add, bincount, and bags of
// mode max.
#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include <ATen/ExpandUtils.h>
#include <ATen/ops/_embedding_bag_cpu_dispatch.h>
#include <ATen/ops/_embedding_bag_dense_backward_cpu_dispatch.h>
#include <ATen/ops/_embedding_bag_forward_only_cpu_dispatch.h>
#include <ATen/ops/_embedding_bag_per_sample_weights_backward_cpu_dispatch.h>
#include <ATen/ops/_index_put_impl_cpu_dispatch.h>
#include <ATen/ops/embedding_dense_backward_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_add_cpu_dispatch.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "tutti/kernels/operators.h"
#include "tutti/kernels/parallel.h"
#include "tutti/kernels/repeated_indices.h"
#include "tutti/kernels/results.h"
#include "tutti/kernels/scatters.h"
#include "tutti/kernels/sums.h"

namespace tutti::kernels {
namespace {

using Optional = c10::optional<at::Tensor>;
using Four = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

constexpr int64_t kSumOfBag = 0;  // the modes of LibTorch
constexpr int64_t kMeanOfBag = 1;

bool is_computed(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided &&
         (tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble);
}

bool is_index(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided &&
         (tensor.scalar_type() == at::kLong || tensor.scalar_type() == at::kInt);
}

at::Tensor as_long(const at::Tensor& tensor) { return tensor.to(at::kLong).contiguous(); }

// Adds the rows of all positions. Threads take ranges of targets, so each sum is made by one of them.
template <class T>
void add_in_parallel(const ScatteredRows<T>& all, int64_t targets) {
  const int64_t parts = all.count * all.width < (1 << 15) ? 1 : std::max<int64_t>(1, threads());
  in_parallel(parts, all.count * all.width, [&](int64_t first, int64_t last) {
    ScatteredRows<T> part = all;
    part.first = first * targets / parts;
    part.last = last * targets / parts;
    add_rows(part);
  });
}

// Returns `targets` rows, to which row sources[i] of `from` is added at targets[i].
at::Tensor scattered(const at::Tensor& from, const at::Tensor& sources, const at::Tensor& targets,
                     const at::Tensor& scales, const at::Tensor& to) {
  const auto add = [&](auto zero) {
    using T = decltype(zero);
    const ScatteredRows<T> all{from.data_ptr<T>(),
                               to.numel() / to.size(0),
                               sources.defined() ? sources.data_ptr<int64_t>() : nullptr,
                               targets.data_ptr<int64_t>(),
                               scales.defined() ? scales.data_ptr<T>() : nullptr,
                               targets.numel(),
                               0,
                               to.size(0),
                               to.data_ptr<T>()};
    add_in_parallel(all, to.size(0));
  };
  if (to.numel() == 0 || targets.numel() == 0) return to;
  if (to.scalar_type() == at::kFloat)
    add(float());
  else
    add(double());
  return to;
}

// The bags of an embedding: which indices belong to which bag, and how many each has without the padding.
struct Bags {
  at::Tensor indices;  // -1 where there is padding
  at::Tensor offsets;  // one more than there are bags
  at::Tensor bag_of;   // the bag of each position
  at::Tensor sizes;    // without padding
};

std::optional<Bags> bags_of(const at::Tensor& weight, const at::Tensor& indices, const at::Tensor& offsets,
                            bool include_last_offset, int64_t padding) {
  const int64_t bags = offsets.size(0) - (include_last_offset ? 1 : 0);
  if (bags < 0) return std::nullopt;
  Bags result{as_long(indices).clone(), at::empty({bags + 1}, at::kLong),
              at::empty(indices.sizes(), at::kLong), at::zeros({bags}, at::kLong)};
  const at::Tensor given = as_long(offsets);
  int64_t* const begin = result.offsets.data_ptr<int64_t>();
  std::copy_n(given.data_ptr<int64_t>(), bags, begin);
  begin[bags] = indices.numel();
  int64_t* const index = result.indices.data_ptr<int64_t>();
  int64_t* const bag_of = result.bag_of.data_ptr<int64_t>();
  int64_t* const size = result.sizes.data_ptr<int64_t>();
  const int64_t rows = weight.size(0);
  if (bags > 0 && begin[0] != 0) return std::nullopt;
  if (bags == 0 && indices.numel() > 0) return std::nullopt;
  for (int64_t b = 0; b < bags; ++b) {
    if (begin[b] > begin[b + 1]) return std::nullopt;
    for (int64_t i = begin[b]; i < begin[b + 1]; ++i) {
      if (index[i] < 0 || index[i] >= rows) return std::nullopt;
      bag_of[i] = b;
      if (index[i] == padding)
        index[i] = -1;
      else
        ++size[b];
    }
  }
  return result;
}

// Returns the sums or means of the bags, or nothing if LibTorch's kernel is to compute them, or to refuse
// wrong operands.
std::optional<Four> embedded(std::string_view name, const at::Tensor& weight, const at::Tensor& indices,
                             const at::Tensor& offsets, int64_t mode, const Optional& of_samples,
                             bool include_last_offset, int64_t padding) {
  const at::Tensor samples = of_samples.has_value() ? *of_samples : at::Tensor();
  if ((mode != kSumOfBag && mode != kMeanOfBag) || (mode == kMeanOfBag && samples.defined()))
    return std::nullopt;
  if (weight.dim() != 2 || indices.dim() != 1 || offsets.dim() != 1 || !is_index(indices) ||
      !is_index(offsets))
    return std::nullopt;
  if (!is_computed(weight)) {
    not_covered(name,
                weight.layout() == at::kStrided ? at::toString(weight.scalar_type()) : "sparse tensors");
    return std::nullopt;
  }
  if (samples.defined() &&
      (samples.scalar_type() != weight.scalar_type() || samples.sizes() != indices.sizes()))
    return std::nullopt;
  const auto bags = bags_of(weight, indices, offsets, include_last_offset, padding);
  if (!bags) return std::nullopt;

  const int64_t count = bags->sizes.numel();
  const at::Tensor table = weight.contiguous();
  const at::Tensor scales = samples.defined() ? samples.contiguous() : samples;
  const at::Tensor out = at::empty({count, weight.size(1)}, weight.options());
  const auto sum = [&](auto zero) {
    using T = decltype(zero);
    const int64_t* const begin = bags->offsets.data_ptr<int64_t>();
    const int64_t* const index = bags->indices.data_ptr<int64_t>();
    const int64_t* const sizes = bags->sizes.data_ptr<int64_t>();
    const T* const rows = table.data_ptr<T>();
    const T* const scale = scales.defined() ? scales.data_ptr<T>() : nullptr;
    T* const result = out.data_ptr<T>();
    const int64_t width = weight.size(1);
    const int64_t cost = width * (1 + indices.numel() / std::max<int64_t>(1, count));
    in_parallel(count, cost, [&](int64_t first, int64_t last) {
      for (int64_t b = first; b < last; ++b) {
        T* const to = result + b * width;
        sum_rows(GatheredRows<T>{rows, width, index + begin[b], scale == nullptr ? nullptr : scale + begin[b],
                                 begin[b + 1] - begin[b], to});
        if (mode == kSumOfBag) continue;
        const auto size = static_cast<T>(std::max<int64_t>(1, sizes[b]));
        for (int64_t c = 0; c < width; ++c) to[c] /= size;
      }
    });
  };
  if (weight.scalar_type() == at::kFloat)
    sum(float());
  else
    sum(double());
  const auto type = offsets.scalar_type();
  return Four{out, bags->bag_of.to(indices.scalar_type()), bags->sizes.to(type), bags->sizes.to(type)};
}

Four embedding_bag(const at::Tensor& weight, const at::Tensor& indices, const at::Tensor& offsets,
                   bool by_frequency, int64_t mode, bool sparse, const Optional& samples,
                   bool include_last_offset, int64_t padding) {
  if (auto ours = embedded("aten::_embedding_bag", weight, indices, offsets, mode, samples,
                           include_last_offset, padding))
    return *ours;
  return at::cpu::_embedding_bag(weight, indices, offsets, by_frequency, mode, sparse, samples,
                                 include_last_offset, padding);
}

Four embedding_bag_forward_only(const at::Tensor& weight, const at::Tensor& indices,
                                const at::Tensor& offsets, bool by_frequency, int64_t mode, bool sparse,
                                const Optional& samples, bool include_last_offset, int64_t padding) {
  if (auto ours = embedded("aten::_embedding_bag_forward_only", weight, indices, offsets, mode, samples,
                           include_last_offset, padding))
    return *ours;
  return at::cpu::_embedding_bag_forward_only(weight, indices, offsets, by_frequency, mode, sparse, samples,
                                              include_last_offset, padding);
}

// Returns what each position is multiplied by, or an undefined tensor if that is 1.
template <class T>
at::Tensor scales_of(const at::Tensor& indices, int64_t rows, bool by_frequency, const at::Tensor& bag_of,
                     const at::Tensor& bag_sizes, const at::Tensor& samples,
                     const at::TensorOptions& options) {
  if (!by_frequency && !bag_sizes.defined() && !samples.defined()) return {};
  const at::Tensor scales = at::empty({indices.numel()}, options);
  const int64_t* const index = indices.data_ptr<int64_t>();
  const int64_t* const bag = bag_of.defined() ? bag_of.data_ptr<int64_t>() : nullptr;
  const int64_t* const sizes = bag_sizes.defined() ? bag_sizes.data_ptr<int64_t>() : nullptr;
  const T* const sample = samples.defined() ? samples.data_ptr<T>() : nullptr;
  T* const to = scales.data_ptr<T>();
  std::vector<int64_t> counts(by_frequency ? static_cast<size_t>(rows) : 0);
  if (by_frequency)
    for (int64_t i = 0; i < indices.numel(); ++i)
      if (index[i] >= 0) ++counts[static_cast<size_t>(index[i])];
  for (int64_t i = 0; i < indices.numel(); ++i) {
    double scale = sample != nullptr ? static_cast<double>(sample[i]) : 1;
    if (by_frequency && index[i] >= 0) scale /= static_cast<double>(counts[static_cast<size_t>(index[i])]);
    if (sizes != nullptr) scale /= static_cast<double>(sizes[bag[i]]);
    to[i] = static_cast<T>(scale);
  }
  return scales;
}

// Returns the indices, with -1 in place of the padding, or nullopt if one of them is no row.
std::optional<at::Tensor> without_padding(const at::Tensor& indices, int64_t rows, int64_t padding) {
  const at::Tensor result = as_long(indices).reshape({-1}).clone();
  int64_t* const index = result.data_ptr<int64_t>();
  for (int64_t i = 0; i < result.numel(); ++i) {
    if (index[i] < 0 || index[i] >= rows) return std::nullopt;
    if (index[i] == padding) index[i] = -1;
  }
  return result;
}

at::Tensor embedding_bag_dense_backward(const at::Tensor& gradient, const at::Tensor& of_indices,
                                        const at::Tensor& offset2bag, const at::Tensor& bag_size,
                                        const at::Tensor& maximum, int64_t rows, bool by_frequency,
                                        int64_t mode, const Optional& of_samples, int64_t padding) {
  const auto libtorch = [&] {
    return at::cpu::_embedding_bag_dense_backward(gradient, of_indices, offset2bag, bag_size, maximum, rows,
                                                  by_frequency, mode, of_samples, padding);
  };
  if ((mode != kSumOfBag && mode != kMeanOfBag) || !is_index(of_indices) || gradient.dim() != 2 ||
      offset2bag.numel() != of_indices.numel())
    return libtorch();
  if (!is_computed(gradient)) {
    not_covered("aten::_embedding_bag_dense_backward", at::toString(gradient.scalar_type()));
    return libtorch();
  }
  const auto indices = without_padding(of_indices, rows, padding);
  if (!indices) return libtorch();
  const at::Tensor samples = of_samples.has_value() ? of_samples->contiguous() : at::Tensor();
  const at::Tensor bags = as_long(offset2bag);
  const at::Tensor sizes = mode == kMeanOfBag ? as_long(bag_size) : at::Tensor();
  const at::Tensor scales =
      gradient.scalar_type() == at::kFloat
          ? scales_of<float>(*indices, rows, by_frequency, bags, sizes, samples, gradient.options())
          : scales_of<double>(*indices, rows, by_frequency, bags, sizes, samples, gradient.options());
  return scattered(gradient.contiguous(), bags, *indices, scales,
                   at::zeros({rows, gradient.size(1)}, gradient.options()));
}

// Each gradient is a sum of products, in the order of sums.h, whose blocks are added one after the other.
at::Tensor embedding_bag_samples_backward(const at::Tensor& gradient, const at::Tensor& weight,
                                          const at::Tensor& of_indices, const at::Tensor& offsets,
                                          const at::Tensor& offset2bag, int64_t mode, int64_t padding) {
  const auto libtorch = [&] {
    return at::cpu::_embedding_bag_per_sample_weights_backward(gradient, weight, of_indices, offsets,
                                                               offset2bag, mode, padding);
  };
  if (mode != kSumOfBag || !is_index(of_indices) || offset2bag.numel() != of_indices.numel())
    return libtorch();
  if (!is_computed(gradient) || weight.scalar_type() != gradient.scalar_type()) {
    not_covered("aten::_embedding_bag_per_sample_weights_backward", at::toString(gradient.scalar_type()));
    return libtorch();
  }
  const auto indices = without_padding(of_indices, weight.size(0), padding);
  if (!indices) return libtorch();
  const at::Tensor bags = as_long(offset2bag);
  const at::Tensor out = at::zeros({indices->numel()}, gradient.options());
  const at::Tensor gradients = gradient.contiguous();
  const at::Tensor table = weight.contiguous();
  const int64_t width = weight.size(1);
  const auto compute = [&](auto zero) {
    using T = decltype(zero);
    in_parallel(indices->numel(), weight.size(1), [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const int64_t row = indices->data_ptr<int64_t>()[i];
        if (row < 0) continue;
        const double none = 0;
        SumBlock<T> block{table.data_ptr<T>() + row * width,
                          gradients.data_ptr<T>() + bags.data_ptr<int64_t>()[i] * width,
                          0,
                          1,
                          1,
                          0,
                          1,
                          &none};
        double sum = 0;
        for (int64_t first = 0; first < width; first += kBlockTerms) {
          block.terms = std::min(kBlockTerms, width - first);
          double sums[2];
          sum_block(Terms::Products, block, sums, 1);
          sum += sums[1];
          block.data += block.terms;
          block.second += block.terms;
        }
        out.data_ptr<T>()[i] = static_cast<T>(sum);
      }
    });
  };
  if (gradient.scalar_type() == at::kFloat)
    compute(float());
  else
    compute(double());
  return out;
}

// If the gradient is divided by how often an index occurs, LibTorch multiplies while it adds.
at::Tensor embedding_dense_backward(const at::Tensor& gradient, const at::Tensor& of_indices, int64_t rows,
                                    int64_t padding, bool by_frequency) {
  const auto libtorch = [&] {
    return at::cpu::embedding_dense_backward(gradient, of_indices, rows, padding, by_frequency);
  };
  if (!by_frequency || !is_index(of_indices)) return libtorch();
  if (!is_computed(gradient)) {
    not_covered("aten::embedding_dense_backward", at::toString(gradient.scalar_type()));
    return libtorch();
  }
  const auto indices = without_padding(of_indices, rows, padding);
  if (!indices) return libtorch();
  const at::Tensor scales = gradient.scalar_type() == at::kFloat
                                ? scales_of<float>(*indices, rows, true, {}, {}, {}, gradient.options())
                                : scales_of<double>(*indices, rows, true, {}, {}, {}, gradient.options());
  return scattered(gradient.contiguous(), {}, *indices, scales,
                   at::zeros({rows, gradient.size(-1)}, gradient.options()));
}

// index_add with a factor: the products are rounded, and then added by LibTorch.
at::Tensor scaled_source(const at::Tensor& source, const at::Scalar& alpha) { return source * alpha; }

bool is_one(const at::Tensor& source, const at::Scalar& alpha) {
  return !at::isFloatingType(source.scalar_type()) || alpha.toDouble() == 1;
}

at::Tensor index_add(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& source,
                     const at::Scalar& alpha) {
  if (is_one(source, alpha)) return at::cpu::index_add(self, dim, index, source, alpha);
  return at::cpu::index_add(self, dim, index, scaled_source(source, alpha), 1);
}

at::Tensor& index_add_out(const at::Tensor& self, int64_t dim, const at::Tensor& index,
                          const at::Tensor& source, const at::Scalar& alpha, at::Tensor& out) {
  if (is_one(source, alpha)) return at::cpu::index_add_out(out, self, dim, index, source, alpha);
  return at::cpu::index_add_out(out, self, dim, index, scaled_source(source, alpha), 1);
}

at::Tensor& index_add_in_place(at::Tensor& self, int64_t dim, const at::Tensor& index,
                               const at::Tensor& source, const at::Scalar& alpha) {
  if (is_one(source, alpha)) return at::cpu::index_add_(self, dim, index, source, alpha);
  return at::cpu::index_add_(self, dim, index, scaled_source(source, alpha), 1);
}

// index_put with accumulation, which LibTorch's threads do in any order.

// Which rows of a tensor, whose indexed dimensions come first, are added to.
struct Places {
  std::vector<int64_t> order;     // dimensions: those that are indexed, then the others
  std::vector<at::Tensor> given;  // the indices of the first ones, of one size
  at::Tensor rows;
  bool beside = true;  // the indexed dimensions are beside each other
  int64_t first = 0;   // the first of them
};

// Returns nothing if an index is out of range or of another type.
std::optional<Places> places_of(const at::Tensor& self, const std::vector<at::Tensor>& indices) {
  Places result;
  std::vector<at::Tensor> lists;
  int64_t last = -1;
  for (size_t i = 0; i < indices.size(); ++i) {
    if (!indices[i].defined()) continue;
    const auto dim = static_cast<int64_t>(i);
    if (last < 0) result.first = dim;
    if (last >= 0 && dim != last + 1) result.beside = false;
    last = dim;
    result.order.push_back(dim);
    lists.push_back(as_long(indices[i]));
  }
  result.given = at::expand_outplace(lists);
  result.rows = at::zeros(result.given[0].sizes(), at::kLong);
  int64_t* const row = result.rows.data_ptr<int64_t>();
  for (size_t k = 0; k < result.given.size(); ++k) {
    const int64_t size = self.size(result.order[k]);
    const at::Tensor list = result.given[k].contiguous();
    const int64_t* const index = list.data_ptr<int64_t>();
    for (int64_t i = 0; i < list.numel(); ++i) {
      if (index[i] < -size || index[i] >= size) return std::nullopt;
      row[i] = row[i] * size + (index[i] < 0 ? index[i] + size : index[i]);
    }
  }
  const size_t indexed = result.order.size();
  for (int64_t dim = 0; dim < self.dim(); ++dim)
    if (std::find(result.order.begin(), result.order.begin() + static_cast<int64_t>(indexed), dim) ==
        result.order.begin() + static_cast<int64_t>(indexed))
      result.order.push_back(dim);
  return result;
}

// Returns true if LibTorch writes so many values with several threads, and some go to the same place.
bool puts_repeated(const c10::List<Optional>& given, const at::Tensor& self, int64_t values) {
  at::Tensor places;
  for (size_t i = 0; i < given.size(); ++i) {
    const Optional each = given.get(i);
    if (!each.has_value() || !each->defined()) continue;
    if (!is_index(*each) || static_cast<int64_t>(i) >= self.dim())
      return false;  // each mask chooses a place once
    const int64_t size = self.size(static_cast<int64_t>(i));
    const at::Tensor index = at::where(each->lt(0), each->add(size), *each);
    places = places.defined() ? places.mul(size).add(index) : index;
  }
  return places.defined() && has_repeated(places, std::max(values, places.numel()));
}

at::Tensor& index_put(at::Tensor& self, const c10::List<Optional>& given, const at::Tensor& values,
                      bool accumulate, bool unsafe) {
  const auto libtorch = [&]() -> at::Tensor& {
    return at::cpu::_index_put_impl_(self, given, values, accumulate, unsafe);
  };
  if (!accumulate) {
    if (puts_repeated(given, self, values.numel())) not_covered("aten::_index_put_impl_", kRepeated);
    return libtorch();
  }
  if (!at::isFloatingType(self.scalar_type()) || self.numel() == 0) return libtorch();
  if (!is_computed(self) || !is_computed(values) || values.scalar_type() != self.scalar_type()) {
    not_covered("aten::_index_put_impl_", at::toString(self.scalar_type()));
    return libtorch();
  }
  std::vector<at::Tensor> indices;
  int64_t found = 0;
  for (size_t i = 0; i < given.size(); ++i) {
    const Optional each = given.get(i);
    if (!each.has_value() || !each->defined()) {
      indices.emplace_back();
    } else if (each->scalar_type() == at::kBool || each->scalar_type() == at::kByte) {
      for (int64_t dim = 0; dim < each->dim(); ++dim)
        if (const auto at = static_cast<int64_t>(indices.size()) + dim;
            at >= self.dim() || each->size(dim) != self.size(at))
          return libtorch();
      for (const at::Tensor& list : each->nonzero().unbind(1)) indices.push_back(list);
      ++found;
    } else if (is_index(*each)) {
      indices.push_back(*each);
      ++found;
    } else {
      return libtorch();
    }
  }
  if (found == 0 || static_cast<int64_t>(indices.size()) > self.dim()) return libtorch();
  const auto places = places_of(self, indices);
  if (!places) return libtorch();

  // The result of the indexing has the sizes of the indices in place of the first indexed dimension, or in
  // front if others lie between them.
  const int64_t chosen = places->rows.dim();
  const auto indexed = static_cast<int64_t>(places->given.size());
  const int64_t front = places->beside ? places->first : 0;
  std::vector<int64_t> sizes;
  std::vector<int64_t> to_front;
  for (int64_t i = 0; i < chosen; ++i) to_front.push_back(front + i);
  std::vector<int64_t> others;
  for (size_t k = static_cast<size_t>(indexed); k < places->order.size(); ++k)
    others.push_back(self.size(places->order[k]));
  sizes.assign(others.begin(), others.begin() + front);
  for (const int64_t size : places->rows.sizes()) sizes.push_back(size);
  sizes.insert(sizes.end(), others.begin() + front, others.end());
  for (int64_t i = 0; i < static_cast<int64_t>(sizes.size()); ++i)
    if (i < front || i >= front + chosen) to_front.push_back(i);
  const at::Tensor rows = values.expand(sizes).permute(to_front).contiguous();
  const at::Tensor turned = self.permute(places->order);
  const at::Tensor sums = turned.contiguous();
  int64_t count = 1;
  for (int64_t k = 0; k < indexed; ++k) count *= turned.size(k);
  scattered(rows, {}, places->rows, {}, sums.view({count, -1}));
  if (!sums.is_same(turned)) turned.copy_(sums);
  return self;
}

}  // namespace

void register_scatters(Registrar& library) {
  library.impl("_embedding_bag", embedding_bag);
  library.impl("_embedding_bag_forward_only", embedding_bag_forward_only);
  library.impl("_embedding_bag_dense_backward", embedding_bag_dense_backward);
  library.impl("_embedding_bag_per_sample_weights_backward", embedding_bag_samples_backward);
  library.impl("embedding_dense_backward", embedding_dense_backward);
  library.impl("index_add", index_add);
  library.impl("index_add.out", index_add_out);
  library.impl("index_add_", index_add_in_place);
  library.impl("_index_put_impl_", index_put);
}

}  // namespace tutti::kernels

#include "tutti/kernels/tensor_sums.h"

#include <algorithm>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "tutti/kernels/parallel.h"

namespace tutti::kernels {
namespace {

struct Dimension {
  int64_t size;
  int64_t stride;
  bool reduced;
};

// Returns the dimensions without those of size 1, where neighbours that can be walked through as one are one.
std::vector<Dimension> joined_dimensions(const at::Tensor& x, Dimensions reduced) {
  std::vector<Dimension> all;
  for (int64_t i = 0; i < x.dim(); ++i) {
    const Dimension next{x.size(i), x.stride(i), reduced[static_cast<size_t>(i)]};
    if (next.size == 1) continue;
    if (!all.empty() && all.back().reduced == next.reduced && all.back().stride == next.size * next.stride)
      all.back() = {all.back().size * next.size, next.stride, next.reduced};
    else
      all.push_back(next);
  }
  return all;
}

// A tensor whose last dimensions to be summed over are one, `run`, and either lie together, or beside sums
// that do. `around` are the other dimensions.
struct Run {
  bool exists = false;
  Dimension run;
  std::vector<Dimension> around;
  bool more = false;  // some of the dimensions around are to be summed over later
};

Run last_run(const at::Tensor& x, Dimensions reduced) {
  std::vector<Dimension> all = joined_dimensions(x, reduced);
  const auto last = std::find_if(all.rbegin(), all.rend(), [](const Dimension& d) { return d.reduced; });
  if (last == all.rend()) return {true, {1, 1, true}, all, false};
  const auto at = all.begin() + (all.rend() - last - 1);
  if (at != all.begin() && (at - 1)->reduced) return {};
  Run result{true, *at, all, false};
  result.around.erase(result.around.begin() + (at - all.begin()));
  result.more =
      std::any_of(result.around.begin(), result.around.end(), [](const Dimension& d) { return d.reduced; });
  const bool columns = !result.around.empty() && result.around.back().stride == 1;
  result.exists = result.run.stride == 1 || columns;
  return result;
}

int64_t size_of(const std::vector<Dimension>& dimensions) {
  int64_t size = 1;
  for (const Dimension& each : dimensions) size *= each.size;
  return size;
}

void join(Terms terms, const double* a, const double* b, int64_t count, double* out) {
  if (terms == Terms::Factors)
    for (int64_t i = 0; i < count; ++i) out[i] = a[i] * b[i];
  else
    for (int64_t i = 0; i < count; ++i) out[i] = a[i] + b[i];
}

// Sums over one run: writes `makes` sums for each element around it.
template <class T>
void sum_over(const Run& of, Terms terms, int64_t makes, const T* x, const T* second, const double* shift,
              double* sums) {
  const int64_t blocks = (of.run.size + kBlockTerms - 1) / kBlockTerms;
  const int64_t block_terms = std::min(of.run.size, kBlockTerms);
  const int64_t kept = size_of(of.around);
  const Dimension last = of.around.empty() ? Dimension{1, 1, false} : of.around.back();
  const bool columns = of.run.stride != 1;
  constexpr int64_t kPieceTerms = 1 << 16;
  const int64_t part =
      std::min(last.size, std::max<int64_t>(columns ? 64 : 1, kPieceTerms / block_terms / 64 * 64));
  const int64_t parts = (last.size + part - 1) / part;
  const int64_t others = kept / last.size;
  std::vector<double> unjoined;
  if (blocks > 1) unjoined.resize(static_cast<size_t>(blocks * makes * kept));
  double* const to = blocks > 1 ? unjoined.data() : sums;
  in_parallel(blocks * others * parts, part * block_terms, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t first = piece % parts * part;
      const int64_t other = piece / parts % others;
      const int64_t block = piece / parts / others;
      int64_t offset = first * last.stride + block * kBlockTerms * of.run.stride;
      int64_t rest = other;
      for (auto dim = static_cast<int64_t>(of.around.size()) - 2; dim >= 0; --dim) {
        const Dimension& each = of.around[static_cast<size_t>(dim)];
        offset += rest % each.size * each.stride;
        rest /= each.size;
      }
      const int64_t count = std::min(part, last.size - first);
      const int64_t at = other * last.size + first;
      SumBlock<T> todo{x + offset,
                       second == nullptr ? nullptr : second + offset,
                       std::min(kBlockTerms, of.run.size - block * kBlockTerms),
                       of.run.stride,
                       columns ? 1 : count,
                       columns ? 0 : last.stride,
                       columns ? count : 1,
                       shift == nullptr ? nullptr : shift + at};
      sum_block(terms, todo, to + block * makes * kept + at, kept);
    }
  });
  if (blocks == 1) return;
  join_blocks(terms, to, blocks, makes * kept);
  std::copy_n(to, makes * kept, sums);
}

}  // namespace

void join_blocks(Terms terms, double* sums, int64_t blocks, int64_t count) {
  for (int64_t left = blocks; left > 1; left = (left + 1) / 2) {
    for (int64_t i = 0; i < left / 2; ++i)
      join(terms, sums + 2 * i * count, sums + (2 * i + 1) * count, count, sums + i * count);
    if (left % 2 == 1) std::copy_n(sums + (left - 1) * count, count, sums + left / 2 * count);
  }
}

at::Tensor sums_over(const at::Tensor& x, Dimensions dimensions, Terms terms, const at::Tensor& shift,
                     const at::Tensor& second) {
  const int64_t makes = terms == Terms::Moments || terms == Terms::Products ? 2 : 1;
  std::vector<int64_t> result_sizes{makes};
  for (int64_t i = 0; i < x.dim(); ++i)
    if (!dimensions[static_cast<size_t>(i)]) result_sizes.push_back(x.size(i));
  const at::TensorOptions doubles = x.options().dtype(at::kDouble);
  if (x.numel() == 0) return at::full(result_sizes, terms == Terms::Factors ? 1 : 0, doubles);

  Run run = last_run(x, dimensions);
  if (!run.exists || (second.defined() && second.strides() != x.strides())) {
    const at::Tensor lying = x.contiguous();
    const at::Tensor beside = second.defined() ? second.contiguous() : second;
    return sums_over(lying, dimensions, terms, shift, beside);
  }
  std::vector<int64_t> around{makes};
  std::vector<int64_t> shift_sizes;
  Dimensions later;
  for (const Dimension& each : run.around) {
    later[around.size()] = each.reduced;
    around.push_back(each.size);
    shift_sizes.push_back(each.reduced ? 1 : each.size);
  }
  at::Tensor of_sum = shift;
  if (shift.defined())
    of_sum = shift.reshape(shift_sizes).expand(at::IntArrayRef(around).slice(1)).contiguous();
  at::Tensor sums = at::empty(run.more ? at::IntArrayRef(around) : at::IntArrayRef(result_sizes), doubles);
  const double* const shifts = of_sum.defined() ? of_sum.data_ptr<double>() : nullptr;
  if (x.scalar_type() == at::kFloat)
    sum_over(run, terms, makes, x.data_ptr<float>(), second.defined() ? second.data_ptr<float>() : nullptr,
             shifts, sums.data_ptr<double>());
  else
    sum_over(run, terms, makes, x.data_ptr<double>(), second.defined() ? second.data_ptr<double>() : nullptr,
             shifts, sums.data_ptr<double>());
  if (!run.more) return sums;
  const Terms joined = terms == Terms::Factors ? Terms::Factors : Terms::Elements;
  return sums_over(sums, later, joined).reshape(result_sizes);
}

at::Tensor first_elements(const at::Tensor& x, Dimensions dimensions) {
  at::Tensor first = x;
  for (int64_t i = x.dim() - 1; i >= 0; --i)
    if (dimensions[static_cast<size_t>(i)]) first = first.select(i, 0);
  return first.to(at::kDouble).contiguous();
}

}  // namespace tutti::kernels

// Operators of LibTorch that are exact but for one case, which is mended here or named.
//
// | operators                  | the case |
// |----------------------------|---------------------------------------------------------------------------------|
// | amax amin aminmax max min  | of 0 and -0, the one that comes first in the order of threads: always 0 here
// | | logit_backward             | the sign of an infinity at -0, which is taken for 0 here | | index_copy |
// of rows with the same index, the one that a thread writes last: not covered     |
#include <tuple>
#include <vector>

#include <ATen/ops/add.h>
#include <ATen/ops/amax_cpu_dispatch.h>
#include <ATen/ops/amin_cpu_dispatch.h>
#include <ATen/ops/aminmax_cpu_dispatch.h>
#include <ATen/ops/index_copy_cpu_dispatch.h>
#include <ATen/ops/logit_backward_cpu_dispatch.h>
#include <ATen/ops/max_cpu_dispatch.h>
#include <ATen/ops/min_cpu_dispatch.h>

#include "tutti/kernels/operators.h"
#include "tutti/kernels/repeated_indices.h"
#include "tutti/kernels/results.h"

namespace tutti::kernels {
namespace {

at::Tensor& write_zeros(at::Tensor& tensor) {
  return at::isFloatingType(tensor.scalar_type()) ? tensor.add_(0) : tensor;  // -0 + 0 is 0
}

at::Tensor with_zeros(const at::Tensor& tensor) {
  return at::isFloatingType(tensor.scalar_type()) ? tensor.add(0) : tensor;
}

template <auto kOriginal>
at::Tensor extreme(const at::Tensor& self, at::IntArrayRef dim, bool keepdim) {
  at::Tensor out = kOriginal(self, dim, keepdim);
  return write_zeros(out);
}

template <auto kOriginal>
at::Tensor& extreme_into(const at::Tensor& self, at::IntArrayRef dim, bool keepdim, at::Tensor& out) {
  return write_zeros(kOriginal(self, dim, keepdim, out));
}

template <auto kOriginal>
at::Tensor extreme_of_all(const at::Tensor& self) {
  at::Tensor out = kOriginal(self);
  return write_zeros(out);
}

template <auto kOriginal>
at::Tensor& extreme_of_all_into(const at::Tensor& self, at::Tensor& out) {
  return write_result(extreme_of_all<kOriginal>(self), out);
}

using ValuesAndIndices = std::tuple<at::Tensor, at::Tensor>;
using OutputsOfExtremes = std::tuple<at::Tensor&, at::Tensor&>;

template <auto kOriginal>
ValuesAndIndices extreme_by_dimension(const at::Tensor& self, int64_t dim, bool keepdim) {
  ValuesAndIndices out = kOriginal(self, dim, keepdim);
  write_zeros(std::get<0>(out));
  return out;
}

template <auto kOriginal>
OutputsOfExtremes extreme_by_dimension_into(const at::Tensor& self, int64_t dim, bool keepdim,
                                            at::Tensor& values, at::Tensor& indices) {
  kOriginal(self, dim, keepdim, values, indices);
  write_zeros(values);
  return {values, indices};
}

ValuesAndIndices extremes(const at::Tensor& self, c10::optional<int64_t> dim, bool keepdim) {
  auto [least, most] = at::cpu::aminmax(self, dim, keepdim);
  write_zeros(least);
  write_zeros(most);
  return {least, most};
}

at::Tensor logit_backward(const at::Tensor& gradient, const at::Tensor& self, c10::optional<double> eps) {
  return at::cpu::logit_backward(gradient, with_zeros(self), eps);
}

at::Tensor& logit_backward_into(const at::Tensor& gradient, const at::Tensor& self, c10::optional<double> eps,
                                at::Tensor& out) {
  return at::cpu::logit_backward_outf(gradient, with_zeros(self), eps, out);
}

at::Tensor& index_copy_into(const at::Tensor& self, int64_t dim, const at::Tensor& index,
                            const at::Tensor& source, at::Tensor& out) {
  if (has_repeated(index, source.numel())) not_covered("aten::index_copy", kRepeated);
  return at::cpu::index_copy_outf(self, dim, index, source, out);
}

at::Tensor index_copy(const at::Tensor& self, int64_t dim, const at::Tensor& index,
                      const at::Tensor& source) {
  if (has_repeated(index, source.numel())) not_covered("aten::index_copy", kRepeated);
  return at::cpu::index_copy(self, dim, index, source);
}

at::Tensor& index_copy_in_place(at::Tensor& self, int64_t dim, const at::Tensor& index,
                                const at::Tensor& source) {
  if (has_repeated(index, source.numel())) not_covered("aten::index_copy", kRepeated);
  return at::cpu::index_copy_(self, dim, index, source);
}

}  // namespace

void register_almost_exact(Registrar& library) {
  library.impl("amax", extreme<&at::cpu::amax>);
  library.impl("amax.out", extreme_into<&at::cpu::amax_outf>);
  library.impl("amin", extreme<&at::cpu::amin>);
  library.impl("amin.out", extreme_into<&at::cpu::amin_outf>);
  library.impl("aminmax", extremes);
  using OfAll = at::Tensor (*)(const at::Tensor&);
  library.impl("max", extreme_of_all<static_cast<OfAll>(&at::cpu::max)>);
  library.impl("min", extreme_of_all<static_cast<OfAll>(&at::cpu::min)>);
  library.impl("max.unary_out", extreme_of_all_into<static_cast<OfAll>(&at::cpu::max)>);
  library.impl("min.unary_out", extreme_of_all_into<static_cast<OfAll>(&at::cpu::min)>);
  using ByDimension = ValuesAndIndices (*)(const at::Tensor&, int64_t, bool);
  using ByDimensionInto = OutputsOfExtremes (*)(const at::Tensor&, int64_t, bool, at::Tensor&, at::Tensor&);
  library.impl("max.dim", extreme_by_dimension<static_cast<ByDimension>(&at::cpu::max)>);
  library.impl("min.dim", extreme_by_dimension<static_cast<ByDimension>(&at::cpu::min)>);
  library.impl("max.dim_max", extreme_by_dimension_into<static_cast<ByDimensionInto>(&at::cpu::max_outf)>);
  library.impl("min.dim_min", extreme_by_dimension_into<static_cast<ByDimensionInto>(&at::cpu::min_outf)>);
  library.impl("logit_backward", logit_backward);
  library.impl("logit_backward.grad_input", logit_backward_into);
  library.impl("index_copy", index_copy);
  library.impl("index_copy_", index_copy_in_place);
  library.impl("index_copy.out", index_copy_into);
}

}  // namespace tutti::kernels

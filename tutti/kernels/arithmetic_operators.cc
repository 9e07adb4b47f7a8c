// Operators that are exact but for one of their cases, in which LibTorch multiplies and adds, with one
// rounding or two: a sum with a factor, and series of numbers. Here those cases are made of exact operators.
#include <ATen/ops/add_cpu_dispatch.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/arange_cpu_dispatch.h>
#include <ATen/ops/linspace_cpu_dispatch.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/sub_cpu_dispatch.h>
#include <ATen/ops/where.h>

#include "tutti/kernels/operators.h"

namespace tutti::kernels {
namespace {

bool has_no_factor(const at::Tensor& self, const at::Tensor& other, const at::Scalar& factor) {
  return factor.equal(1) || factor.equal(-1) || !at::isFloatingType(at::result_type(self, other));
}

// Returns factor * other in the type of the sum, or in float for narrower types.
at::Tensor scaled(const at::Tensor& self, const at::Tensor& other, const at::Scalar& factor) {
  const at::ScalarType type = at::result_type(self, other);
  const bool is_narrow = type == at::kHalf || type == at::kBFloat16;
  return at::mul(other.to(is_narrow ? at::kFloat : type), factor);
}

// `self` plus or minus an other tensor, by the functions of LibTorch's kernels that do it.
template <auto kNew, auto kInto, auto kInPlace>
struct Sum {
  static at::Tensor make(const at::Tensor& self, const at::Tensor& other, const at::Scalar& factor) {
    if (has_no_factor(self, other, factor)) return kNew(self, other, factor);
    return kNew(self, scaled(self, other, factor), 1).to(at::result_type(self, other));
  }

  static at::Tensor& into(const at::Tensor& self, const at::Tensor& other, const at::Scalar& factor,
                          at::Tensor& out) {
    if (has_no_factor(self, other, factor)) return kInto(self, other, factor, out);
    return kInto(self, scaled(self, other, factor), 1, out);
  }

  static at::Tensor& in_place(at::Tensor& self, const at::Tensor& other, const at::Scalar& factor) {
    if (has_no_factor(self, other, factor)) return kInPlace(self, other, factor);
    return kInPlace(self, scaled(self, other, factor), 1);
  }
};

using Add = Sum<at::cpu::add, at::cpu::add_outf, at::cpu::add_>;
using Sub = Sum<at::cpu::sub, at::cpu::sub_outf, at::cpu::sub_>;

at::Tensor indices(int64_t count) { return at::arange(count, at::kLong).to(at::kDouble); }

at::Tensor& arange(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step, at::Tensor& out) {
  at::cpu::arange_outf(start, end, step, out);
  if (at::isFloatingType(out.scalar_type()))
    out.copy_(indices(out.numel()).mul_(step.toDouble()).add_(start.toDouble()).view(out.sizes()));
  return out;
}

// From both ends to the middle, as in LibTorch.
at::Tensor& linspace(const at::Scalar& start, const at::Scalar& end, int64_t steps, at::Tensor& out) {
  at::cpu::linspace_outf(start, end, steps, out);
  if (!at::isFloatingType(out.scalar_type()) || steps < 2) return out;
  const double step = (end.toDouble() - start.toDouble()) / static_cast<double>(steps - 1);
  const at::Tensor index = indices(steps);
  const at::Tensor from_start = index.mul(step).add_(start.toDouble());
  const at::Tensor from_end = index.sub(steps - 1).mul_(step).add_(end.toDouble());
  out.copy_(at::where(index.lt(steps / 2), from_start, from_end));
  return out;
}

}  // namespace

void register_arithmetic(Registrar& library) {
  library.impl("add.Tensor", Add::make);
  library.impl("add.out", Add::into);
  library.impl("add_.Tensor", Add::in_place);
  library.impl("sub.Tensor", Sub::make);
  library.impl("sub.out", Sub::into);
  library.impl("sub_.Tensor", Sub::in_place);
  library.impl("arange.start_out", arange);
  library.impl("linspace.out", linspace);
}

}  // namespace tutti::kernels

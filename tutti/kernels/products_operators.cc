#include <algorithm>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/addmv_cpu_dispatch.h>
#include <ATen/ops/baddbmm_cpu_dispatch.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm_cpu_dispatch.h>

#include "tutti/kernels/operators.h"
#include "tutti/kernels/products.h"

namespace tutti::kernels {
namespace {

// The multiply-adds that are worth a thread.
constexpr int64_t kPerThread = 1 << 16;

template <class T>
Matrix<const T> matrix_of(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<T>(), tensor.stride(0), tensor.stride(1)};
}

// Cuts the product into bands of rows or of columns, of which each thread takes some.
template <class T>
void multiply_in_parallel(const Product<T>& of) {
  constexpr int64_t kBand = 48;
  const bool by_rows = of.m >= of.n;
  const int64_t bands = ((by_rows ? of.m : of.n) + kBand - 1) / kBand;
  const int64_t of_band = std::max<int64_t>(1, kBand * (by_rows ? of.n : of.m) * of.k);
  at::parallel_for(0, bands, std::max<int64_t>(1, kPerThread / of_band), [&](int64_t first, int64_t last) {
    Product<T> part = of;
    const int64_t begin = first * kBand;
    if (by_rows) {
      part.m = std::min(of.m, last * kBand) - begin;
      part.a.data += begin * of.a.row;
      part.out.data += begin * of.out.row;
      if (of.beta != T(0)) part.addend.data += begin * of.addend.row;
    } else {
      part.n = std::min(of.n, last * kBand) - begin;
      part.b.data += begin * of.b.column;
      part.out.data += begin * of.out.column;
      if (of.beta != T(0)) part.addend.data += begin * of.addend.column;
    }
    multiply(part);
  });
}

// Computes out = beta * addend + alpha * (a b) for matrices; `out` is new and contiguous by rows.
template <class T>
void multiply_matrices(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, const at::Tensor* addend,
                       const at::Scalar& beta, const at::Scalar& alpha) {
  Product<T> of{a.size(0), b.size(1), a.size(1), matrix_of<T>(a), matrix_of<T>(b),
                {out.mutable_data_ptr<T>(), out.stride(0), out.stride(1)}};
  of.alpha = alpha.to<T>();
  of.beta = addend != nullptr ? beta.to<T>() : T(0);
  if (of.beta != T(0)) of.addend = matrix_of<T>(*addend);
  if (of.m == 0 || of.n == 0) return;
  multiply_in_parallel(of);
}

void multiply_any(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, const at::Tensor* addend,
                  const at::Scalar& beta, const at::Scalar& alpha) {
  if (a.scalar_type() == at::kFloat)
    multiply_matrices<float>(a, b, out, addend, beta, alpha);
  else
    multiply_matrices<double>(a, b, out, addend, beta, alpha);
}

bool is_ours(const at::Tensor& a, const at::Tensor& b) {
  return (a.scalar_type() == at::kFloat || a.scalar_type() == at::kDouble) && a.scalar_type() == b.scalar_type();
}

void require_product(const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2, "both operands of a product have to be matrices, got ", a.dim(), " and ",
              b.dim(), " dimensions");
  TORCH_CHECK(a.size(1) == b.size(0), "mat1 and mat2 shapes cannot be multiplied (", a.size(0), "x", a.size(1), " and ",
              b.size(0), "x", b.size(1), ")");
}

at::Tensor mm(const at::Tensor& a, const at::Tensor& b) {
  if (!is_ours(a, b)) return at::cpu::mm(a, b);
  require_product(a, b);
  at::Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
  multiply_any(a, b, out, nullptr, 0, 1);
  return out;
}

at::Tensor addmm(const at::Tensor& addend, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                 const at::Scalar& alpha) {
  if (!is_ours(a, b) || addend.scalar_type() != a.scalar_type()) return at::cpu::addmm(addend, a, b, beta, alpha);
  require_product(a, b);
  at::Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
  const at::Tensor whole = addend.expand(out.sizes());
  multiply_any(a, b, out, &whole, beta, alpha);
  return out;
}

at::Tensor& mm_out(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  if (!is_ours(a, b)) return at::cpu::mm_out(out, a, b);
  const at::Tensor result = mm(a, b);
  return out.resize_(result.sizes()).copy_(result);
}

at::Tensor& addmm_out(const at::Tensor& addend, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                      const at::Scalar& alpha, at::Tensor& out) {
  if (!is_ours(a, b)) return at::cpu::addmm_out(out, addend, a, b, beta, alpha);
  const at::Tensor result = addmm(addend, a, b, beta, alpha);
  return out.resize_(result.sizes()).copy_(result);
}

at::Tensor& addmm_in_place(at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                           const at::Scalar& alpha) {
  if (!is_ours(a, b)) return at::cpu::addmm_(self, a, b, beta, alpha);
  return self.copy_(addmm(self, a, b, beta, alpha));
}

}  // namespace

void register_products(torch::Library& library) {
  library.impl("mm", mm);
  library.impl("mm.out", mm_out);
  library.impl("addmm", addmm);
  library.impl("addmm.out", addmm_out);
  library.impl("addmm_", addmm_in_place);
}

}  // namespace tutti::kernels

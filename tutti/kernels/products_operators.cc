// Products. LibTorch makes its other products of these: linear and matmul of mm, addmm and bmm, mv of addmv_,
// addbmm of addmm_, vdot of dot, einsum, tensordot and bilinear of bmm and mm, and recurrent layers of addmm
// and mm; outer and ger are one exact multiplication.
//
// | operators                                          | types                            | layouts     |
// |----------------------------------------------------|----------------------------------|-------------|
// | mm, mm.out                                         | float, double, bfloat16, float16 | all strides |
// | addmm, addmm.out, addmm_                           | float, double, bfloat16, float16 | all strides |
// | _addmm_activation, _addmm_activation.out           | float, double, bfloat16, float16 | all strides |
// | bmm, bmm.out                                       | float, double, bfloat16, float16 | all strides |
// | baddbmm, baddbmm.out, baddbmm_                     | float, double, bfloat16, float16 | all strides |
// | addmv, addmv.out, addmv_                           | float, double, bfloat16, float16 | all strides |
// | addr, addr.out                                     | float, double, bfloat16, float16 | all strides |
// | dot                                                | float, double, bfloat16, float16 | all strides |
//
// All tensors of a call have one type. Other types and wrong shapes go to LibTorch's kernels; complex and
// sparse tensors are remembered as not covered.
#include <ATen/native/Resize.h>
#include <ATen/ops/_addmm_activation_cpu_dispatch.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/addmv_cpu_dispatch.h>
#include <ATen/ops/addr_cpu_dispatch.h>
#include <ATen/ops/baddbmm_cpu_dispatch.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/dot_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <ATen/ops/relu.h>

#include "tutti/kernels/operators.h"
#include "tutti/kernels/parallel.h"
#include "tutti/kernels/products.h"

namespace tutti::kernels {
namespace {

// beta * tensor, which is added to a product.
struct Addend {
  at::Tensor tensor;
  at::Scalar beta;
};

// A matrix, or a batch of them with one more dimension in front.
template <class T>
Matrix<T> matrix_of(const at::Tensor& tensor) {
  return {tensor.data_ptr<std::remove_const_t<T>>(), tensor.stride(-2), tensor.stride(-1)};
}

// Computes out = beta * addend + alpha * (a b). `out` is contiguous and overlaps none of the operands.
template <class T>
void multiply_batches(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, const Addend* addend,
                      const at::Scalar& alpha) {
  const int64_t batches = out.dim() == 3 ? out.size(0) : 1;
  Product<T> product{out.size(-2),          out.size(-1),          a.size(-1),
                     matrix_of<const T>(a), matrix_of<const T>(b), matrix_of<T>(out)};
  product.alpha = alpha.to<T>();
  if (addend != nullptr) product.beta = addend->beta.to<T>();
  at::Tensor added;
  if (product.beta != T(0)) {
    added = addend->tensor.expand(out.sizes());
    product.addend = matrix_of<const T>(added);
  }
  if (out.numel() == 0) return;
  const Product<T> first_batch = arranged(product);
  const bool turned = first_batch.a.data == product.b.data;
  const auto batch_step = [&](const at::Tensor& of) { return batches > 1 ? of.stride(0) : 0; };
  const int64_t a_step = batch_step(turned ? b : a);
  const int64_t b_step = batch_step(turned ? a : b);
  const int64_t addend_step = added.defined() ? batch_step(added) : 0;
  const Cut cut(first_batch.m, first_batch.n, sizeof(T), std::max<int64_t>(1, threads() / batches));
  const int64_t cost = first_batch.m * first_batch.n * first_batch.k / cut.count();
  in_parallel(batches * cut.count(), cost, [&](int64_t first, int64_t last) {
    while (first < last) {
      const int64_t batch = first / cut.count();
      const int64_t end = std::min(last, (batch + 1) * cut.count());
      Product<T> one = first_batch;
      one.a.data += batch * a_step;
      one.b.data += batch * b_step;
      one.out.data += batch * one.m * one.n;
      if (one.beta != T(0)) one.addend.data += batch * addend_step;
      multiply(one, cut, first - batch * cut.count(), end - batch * cut.count());
      first = end;
    }
  });
}

at::Tensor product_of(const at::Tensor& a, const at::Tensor& b, const Addend* addend = nullptr,
                      const at::Scalar& alpha = 1) {
  if (is_narrow(a)) {
    const Addend wide{addend != nullptr ? addend->tensor.to(at::kFloat) : at::Tensor(),
                      addend != nullptr ? addend->beta : at::Scalar(0)};
    return product_of(a.to(at::kFloat), b.to(at::kFloat), &wide, alpha).to(a.scalar_type());
  }
  at::Tensor out = a.dim() == 3 ? at::empty({a.size(0), a.size(1), b.size(2)}, a.options())
                                : at::empty({a.size(0), b.size(1)}, a.options());
  if (a.scalar_type() == at::kFloat)
    multiply_batches<float>(a, b, out, addend, alpha);
  else
    multiply_batches<double>(a, b, out, addend, alpha);
  return out;
}

at::Tensor& write(const at::Tensor& result, at::Tensor& out) {
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}

// Returns true if `tensor` can be expanded to `sizes`.
bool expands_to(const at::Tensor& tensor, at::IntArrayRef sizes) {
  const auto dims = static_cast<int64_t>(sizes.size());
  if (tensor.dim() > dims) return false;
  for (int64_t i = 1; i <= tensor.dim(); ++i)
    if (tensor.size(-i) != 1 && tensor.size(-i) != sizes[static_cast<size_t>(dims - i)]) return false;
  return true;
}

// The operators of LibTorch: each is given `out` if it has one, which also has to be of the type.

bool is_our_mm(std::string_view name, const at::Tensor& a, const at::Tensor& b, const at::Tensor& out) {
  return a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0) && are_ours_or_narrow(name, a, b, out);
}

at::Tensor mm(const at::Tensor& a, const at::Tensor& b) {
  return is_our_mm("aten::mm", a, b, a) ? product_of(a, b) : at::cpu::mm(a, b);
}

at::Tensor& mm_out(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return is_our_mm("aten::mm.out", a, b, out) ? write(product_of(a, b), out) : at::cpu::mm_out(out, a, b);
}

bool is_our_addmm(std::string_view name, const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                  const at::Tensor& out) {
  return a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0) && expands_to(self, {a.size(0), b.size(1)}) &&
         are_ours_or_narrow(name, a, b, self, out);
}

at::Tensor our_addmm(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                     const at::Scalar& alpha) {
  const Addend addend{self, beta};
  return product_of(a, b, &addend, alpha);
}

at::Tensor addmm(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                 const at::Scalar& alpha) {
  if (!is_our_addmm("aten::addmm", self, a, b, a)) return at::cpu::addmm(self, a, b, beta, alpha);
  return our_addmm(self, a, b, beta, alpha);
}

at::Tensor& addmm_out(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                      const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  if (!is_our_addmm("aten::addmm.out", self, a, b, out))
    return at::cpu::addmm_out(out, self, a, b, beta, alpha);
  return write(our_addmm(self, a, b, beta, alpha), out);
}

at::Tensor& addmm_in_place(at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                           const at::Scalar& alpha) {
  if (!is_our_addmm("aten::addmm_", self, a, b, a) || self.size(0) != a.size(0) || self.size(1) != b.size(1))
    return at::cpu::addmm_(self, a, b, beta, alpha);
  return self.copy_(our_addmm(self, a, b, beta, alpha));
}

at::Tensor addmm_activation(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                            const at::Scalar& beta, const at::Scalar& alpha, bool use_gelu) {
  if (!is_our_addmm("aten::_addmm_activation", self, a, b, a))
    return at::cpu::_addmm_activation(self, a, b, beta, alpha, use_gelu);
  at::Tensor result = our_addmm(self, a, b, beta, alpha);
  return use_gelu ? at::gelu_(result) : at::relu_(result);
}

at::Tensor& addmm_activation_out(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                                 const at::Scalar& beta, const at::Scalar& alpha, bool use_gelu,
                                 at::Tensor& out) {
  if (!is_our_addmm("aten::_addmm_activation.out", self, a, b, out))
    return at::cpu::_addmm_activation_out(out, self, a, b, beta, alpha, use_gelu);
  return write(addmm_activation(self, a, b, beta, alpha, use_gelu), out);
}

bool is_our_bmm(std::string_view name, const at::Tensor& a, const at::Tensor& b, const at::Tensor& out) {
  return a.dim() == 3 && b.dim() == 3 && a.size(0) == b.size(0) && a.size(2) == b.size(1) &&
         are_ours_or_narrow(name, a, b, out);
}

at::Tensor bmm(const at::Tensor& a, const at::Tensor& b) {
  return is_our_bmm("aten::bmm", a, b, a) ? product_of(a, b) : at::cpu::bmm(a, b);
}

at::Tensor& bmm_out(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return is_our_bmm("aten::bmm.out", a, b, out) ? write(product_of(a, b), out) : at::cpu::bmm_out(out, a, b);
}

bool is_our_baddbmm(std::string_view name, const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                    const at::Tensor& out) {
  return a.dim() == 3 && b.dim() == 3 && expands_to(self, {a.size(0), a.size(1), b.size(2)}) &&
         self.scalar_type() == a.scalar_type() && is_our_bmm(name, a, b, out);
}

at::Tensor baddbmm(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                   const at::Scalar& alpha) {
  if (!is_our_baddbmm("aten::baddbmm", self, a, b, a)) return at::cpu::baddbmm(self, a, b, beta, alpha);
  return our_addmm(self, a, b, beta, alpha);
}

at::Tensor& baddbmm_out(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                        const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  if (!is_our_baddbmm("aten::baddbmm.out", self, a, b, out))
    return at::cpu::baddbmm_out(out, self, a, b, beta, alpha);
  return write(our_addmm(self, a, b, beta, alpha), out);
}

at::Tensor& baddbmm_in_place(at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                             const at::Scalar& beta, const at::Scalar& alpha) {
  if (self.dim() != 3 || !is_our_baddbmm("aten::baddbmm_", self, a, b, a) || self.size(0) != a.size(0) ||
      self.size(1) != a.size(1) || self.size(2) != b.size(2))
    return at::cpu::baddbmm_(self, a, b, beta, alpha);
  return self.copy_(our_addmm(self, a, b, beta, alpha));
}

bool is_our_addmv(std::string_view name, const at::Tensor& self, const at::Tensor& matrix,
                  const at::Tensor& vector, const at::Tensor& out) {
  return matrix.dim() == 2 && vector.dim() == 1 && matrix.size(1) == vector.size(0) &&
         expands_to(self, {matrix.size(0)}) && are_ours_or_narrow(name, matrix, vector, self, out);
}

at::Tensor our_addmv(const at::Tensor& self, const at::Tensor& matrix, const at::Tensor& vector,
                     const at::Scalar& beta, const at::Scalar& alpha) {
  return our_addmm(self.unsqueeze(-1), matrix, vector.unsqueeze(1), beta, alpha).squeeze(1);
}

at::Tensor addmv(const at::Tensor& self, const at::Tensor& matrix, const at::Tensor& vector,
                 const at::Scalar& beta, const at::Scalar& alpha) {
  if (!is_our_addmv("aten::addmv", self, matrix, vector, matrix))
    return at::cpu::addmv(self, matrix, vector, beta, alpha);
  return our_addmv(self, matrix, vector, beta, alpha);
}

at::Tensor& addmv_out(const at::Tensor& self, const at::Tensor& matrix, const at::Tensor& vector,
                      const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  if (!is_our_addmv("aten::addmv.out", self, matrix, vector, out))
    return at::cpu::addmv_out(out, self, matrix, vector, beta, alpha);
  return write(our_addmv(self, matrix, vector, beta, alpha), out);
}

at::Tensor& addmv_in_place(at::Tensor& self, const at::Tensor& matrix, const at::Tensor& vector,
                           const at::Scalar& beta, const at::Scalar& alpha) {
  if (self.dim() != 1 || !is_our_addmv("aten::addmv_", self, matrix, vector, matrix) ||
      self.size(0) != matrix.size(0))
    return at::cpu::addmv_(self, matrix, vector, beta, alpha);
  return self.copy_(our_addmv(self, matrix, vector, beta, alpha));
}

bool is_our_addr(std::string_view name, const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                 const at::Tensor& out) {
  return a.dim() == 1 && b.dim() == 1 && expands_to(self, {a.size(0), b.size(0)}) &&
         are_ours_or_narrow(name, a, b, self, out);
}

at::Tensor addr(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                const at::Scalar& alpha) {
  if (!is_our_addr("aten::addr", self, a, b, a)) return at::cpu::addr(self, a, b, beta, alpha);
  return our_addmm(self, a.unsqueeze(1), b.unsqueeze(0), beta, alpha);
}

at::Tensor& addr_out(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                     const at::Scalar& alpha, at::Tensor& out) {
  if (!is_our_addr("aten::addr.out", self, a, b, out)) return at::cpu::addr_out(out, self, a, b, beta, alpha);
  return write(our_addmm(self, a.unsqueeze(1), b.unsqueeze(0), beta, alpha), out);
}

at::Tensor dot_of(const at::Tensor& a, const at::Tensor& b) {
  if (a.dim() != 1 || b.dim() != 1 || a.size(0) != b.size(0) || !are_ours_or_narrow("aten::dot", a, b))
    return at::cpu::dot(a, b);
  if (is_narrow(a)) return dot_of(a.to(at::kFloat), b.to(at::kFloat)).to(a.scalar_type());
  at::Tensor out = at::empty({}, a.options());
  if (a.scalar_type() == at::kFloat)
    *out.data_ptr<float>() =
        dot(a.size(0), a.data_ptr<float>(), a.stride(0), b.data_ptr<float>(), b.stride(0));
  else
    *out.data_ptr<double>() =
        dot(a.size(0), a.data_ptr<double>(), a.stride(0), b.data_ptr<double>(), b.stride(0));
  return out;
}

}  // namespace

void register_products(Registrar& library) {
  library.impl("mm", mm);
  library.impl("mm.out", mm_out);
  library.impl("addmm", addmm);
  library.impl("addmm.out", addmm_out);
  library.impl("addmm_", addmm_in_place);
  library.impl("_addmm_activation", addmm_activation);
  library.impl("_addmm_activation.out", addmm_activation_out);
  library.impl("bmm", bmm);
  library.impl("bmm.out", bmm_out);
  library.impl("baddbmm", baddbmm);
  library.impl("baddbmm.out", baddbmm_out);
  library.impl("baddbmm_", baddbmm_in_place);
  library.impl("addmv", addmv);
  library.impl("addmv.out", addmv_out);
  library.impl("addmv_", addmv_in_place);
  library.impl("addr", addr);
  library.impl("addr.out", addr_out);
  library.impl("dot", dot_of);
}

}  // namespace tutti::kernels

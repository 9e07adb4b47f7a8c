// The functions of one element as operators of LibTorch. Each operator is one line in register_functions();
// its arguments are taken by their types: tensors are operands, numbers are parameters.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>

#include <ATen/CPUFunctions.h>
#include <ATen/Operators.h>
#include <ATen/ScalarOps.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/Resize.h>
#include <c10/util/Optional.h>

#include "tutti/kernels/functions.h"
#include "tutti/kernels/operators.h"

namespace tutti::kernels {
namespace {

using OptionalTensor = c10::optional<at::Tensor>;  // std::optional in newer versions of LibTorch

// The arguments of one call of an operator.
struct ElementCall {
  explicit ElementCall(Function which) : function(which) {}

  void take(const at::Tensor& operand) { operands[operand_count++] = &operand; }
  // The result if operands came before it; else the first operand, which the result replaces.
  void take(at::Tensor& tensor) {
    if (operand_count == 0) operands[operand_count++] = &tensor;
    out = &tensor;
  }
  void take(const at::Scalar& parameter) {
    is_known = is_known && !parameter.isComplex();
    parameter_is_whole = parameter.isIntegral(/*includeBool=*/true);
    take(parameter.isComplex() ? 0.0 : parameter.toDouble());
  }
  void take(double parameter) { parameters[parameter_count++] = parameter; }
  void take(bool parameter) { take(parameter ? 1.0 : 0.0); }
  // The approximation of gelu. In `Function`, the one by tanh follows the exact one.
  void take(c10::string_view approximation) {
    is_known = approximation == "none" || approximation == "tanh";
    if (approximation == "tanh") function = static_cast<Function>(static_cast<int>(function) + 1);
  }
  // A limit that may be absent, which is -1 then.
  template <class Optional>
  auto take(const Optional& limit) -> decltype(limit.has_value(), void()) {
    take(limit.has_value() ? *limit : -1.0);
  }

  Function function;
  std::array<const at::Tensor*, 3> operands = {};
  size_t operand_count = 0;
  std::array<double, 4> parameters = {};
  size_t parameter_count = 0;
  at::Tensor* out = nullptr;
  bool is_known = true;             // false if an argument is one that LibTorch refuses
  bool parameter_is_whole = false;  // the last one is an integer
};

// Returns true if the function makes floats of integers. For all others LibTorch refuses integers, or returns
// integers.
bool takes_integers(const ElementCall& call) {
  const Function of = call.function;
  if (of == Function::PowScalar) return !call.parameter_is_whole;
  const bool keeps = of == Function::Pow || of == Function::Hypot;
  const bool is_scientific = of >= Function::Exp2 && of < Function::Fmod;
  return of <= Function::Erf || of == Function::Logit || (is_scientific && !keeps);
}

// Returns true if LibTorch computes this with single exact operations.
bool is_exact(const ElementCall& call) {
  const double first = call.parameters[0];
  if (call.function == Function::AddScaled || call.function == Function::SubtractScaled) return first == 1;
  if (call.function == Function::Rsqrt) {  // of short floats it depends on the processor
    const at::ScalarType type = call.operands[0]->scalar_type();
    return type == at::kFloat || type == at::kDouble;
  }
  return call.function == Function::PowScalar &&
         (first == 0 || first == 0.5 || std::fabs(first) == 1 || std::fabs(first) == 2 || first == 3);
}

// Returns true if the operands are real numbers and the function is one of ours for them. If they are not,
// and LibTorch's kernel may round differently on another processor, the operator is remembered as not
// covered.
bool is_ours(const char* name, const ElementCall& call) {
  if (!call.is_known || is_exact(call)) return false;
  bool all_whole = true;
  for (size_t i = 0; i < call.operand_count; ++i) {
    const at::ScalarType type = call.operands[i]->scalar_type();
    const bool is_whole = at::isIntegralType(type, /*includeBool=*/true);
    all_whole = all_whole && is_whole;
    if (call.function == Function::SubtractScaled && type == at::kBool) return false;  // LibTorch refuses it
    if (is_whole || type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf)
      continue;
    not_covered(name, at::toString(type));
    return false;
  }
  return !all_whole || takes_integers(call);
}

// Computes elements that lie apart, or that are stored in one type (`Stored`) and computed in another one
// (T), by parts in buffers.
template <class Stored, class T>
void compute_elements(const ElementCall& call, char** data, const int64_t* strides, int64_t count) {
  constexpr int64_t kPart = 256;
  constexpr bool kIsSame = std::is_same_v<Stored, T>;
  const auto lies_together = [&](size_t i) {
    return kIsSame && strides[i] == static_cast<int64_t>(sizeof(Stored));
  };
  const size_t operands = call.operand_count;
  bool all = true;
  for (size_t i = 0; i <= operands; ++i) all = all && lies_together(i);
  const int64_t most = all ? count : kPart;
  std::array<std::array<T, kPart>, 4> buffers;
  for (int64_t first = 0; first < count; first += most) {
    Elements<T> elements{{}, nullptr, std::min(most, count - first)};
    for (size_t i = 0; i < operands; ++i) {
      const char* const from = data[i + 1] + first * strides[i + 1];
      if (lies_together(i + 1)) {
        elements.in[i] = reinterpret_cast<const T*>(from);
        continue;
      }
      for (int64_t j = 0; j < elements.count; ++j)
        buffers[i][static_cast<size_t>(j)] =
            static_cast<T>(*reinterpret_cast<const Stored*>(from + j * strides[i + 1]));
      elements.in[i] = buffers[i].data();
    }
    char* const to = data[0] + first * strides[0];
    elements.out = lies_together(0) ? reinterpret_cast<T*>(to) : buffers[3].data();
    apply(call.function, elements, call.parameters.data());
    if (lies_together(0)) continue;
    for (int64_t j = 0; j < elements.count; ++j)
      *reinterpret_cast<Stored*>(to + j * strides[0]) =
          static_cast<Stored>(buffers[3][static_cast<size_t>(j)]);
  }
}

// Computes a result of the shape, type and memory format that LibTorch gives it.
at::Tensor computed_elements(const ElementCall& call, const at::Tensor& out) {
  at::TensorIteratorConfig config;
  config.add_owned_output(out)
      .promote_inputs_to_common_dtype(true)
      .promote_integer_inputs_to_float(true)
      .cast_common_dtype_to_outputs(true)
      .enforce_safe_casting_to_output(true);
  for (size_t i = 0; i < call.operand_count; ++i) config.add_input(*call.operands[i]);
  at::TensorIterator iterator = config.build();
  // The strides of the tensors within a row come first, then those between rows.
  const auto with = [&](auto compute_row) {
    iterator.for_each([&](char** data, const int64_t* strides, int64_t count, int64_t rows) {
      const size_t tensors = call.operand_count + 1;
      std::array<char*, 4> row = {};
      std::copy_n(data, tensors, row.begin());
      for (int64_t i = 0; i < rows; ++i) {
        compute_row(call, row.data(), strides, count);
        for (size_t k = 0; k < tensors; ++k) row[k] += strides[tensors + k];
      }
    });
  };
  switch (iterator.common_dtype()) {
    case at::kDouble:
      with(compute_elements<double, double>);
      break;
    case at::kBFloat16:
      with(compute_elements<at::BFloat16, float>);
      break;
    case at::kHalf:
      with(compute_elements<at::Half, float>);
      break;
    default:
      with(compute_elements<float, float>);
  }
  iterator.cast_outputs();
  return iterator.output();
}

// The kernel of `Operator` that computes `kFunction`, or passes on to `kOriginal`.
template <Function kFunction, class Operator, auto kOriginal, class Schema = typename Operator::schema>
struct ElementKernel;

template <Function kFunction, class Operator, auto kOriginal, class Result, class... Args>
struct ElementKernel<kFunction, Operator, kOriginal, Result(Args...)> {
  static Result run(Args... args) {
    ElementCall call(kFunction);
    (call.take(args), ...);
    if (!is_ours(Operator::name, call)) return kOriginal(args...);
    if constexpr (std::is_reference_v<Result>) {
      computed_elements(call, *call.out);
      return *call.out;
    } else {
      return computed_elements(call, {});
    }
  }
};

template <Function kFunction, class Operator, typename Operator::ptr_schema kOriginal>
void add_kernel(Registrar& library) {
  constexpr std::string_view kNamespace = "aten::";
  const std::string overload = Operator::overload_name;
  const std::string name = Operator::name + kNamespace.size() + (overload.empty() ? "" : "." + overload);
  library.impl(name.c_str(), &ElementKernel<kFunction, Operator, kOriginal>::run);
}

// The operators that are more than a function of each element.

std::tuple<at::Tensor, at::Tensor> log_sigmoid_and_buffer(const at::Tensor& self) {
  ElementCall result(Function::LogSigmoid);
  result.take(self);
  if (!is_ours("aten::log_sigmoid_forward", result)) return at::cpu::log_sigmoid_forward(self);
  ElementCall buffer(Function::ExpOfNegativeSize);
  buffer.take(self);
  return {computed_elements(result, {}), computed_elements(buffer, {})};
}

at::Tensor& write_elements(const at::Tensor& result, at::Tensor& out) {
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}

std::tuple<at::Tensor&, at::Tensor&> log_sigmoid_and_buffer_out(const at::Tensor& self, at::Tensor& out,
                                                                at::Tensor& buffer) {
  const auto [result, kept] = log_sigmoid_and_buffer(self);
  write_elements(result, out);
  write_elements(kept, buffer);
  return {out, buffer};
}

at::Tensor gated_halves(const at::Tensor& self, int64_t dim) {
  ElementCall call(Function::Glu);
  call.take(self);
  const bool can_be_halved = dim >= -self.dim() && dim < self.dim() && self.size(dim) % 2 == 0;
  if (!can_be_halved || !is_ours("aten::glu", call)) return at::cpu::glu(self, dim);
  const int64_t half = self.size(dim) / 2;
  const at::Tensor first = self.narrow(dim, 0, half);
  const at::Tensor second = self.narrow(dim, half, half);
  ElementCall halves(Function::Glu);
  halves.take(first);
  halves.take(second);
  return computed_elements(halves, {});
}

at::Tensor& gated_halves_out(const at::Tensor& self, int64_t dim, at::Tensor& out) {
  return write_elements(gated_halves(self, dim), out);
}

// The weights and the reduction of a loss.
at::Tensor reduced(at::Tensor loss, const OptionalTensor& weight, int64_t reduction) {
  if (weight.has_value() && weight->defined()) loss.mul_(*weight);
  if (reduction == at::Reduction::Mean) return loss.mean();
  return reduction == at::Reduction::Sum ? loss.sum() : loss;
}

// LibTorch refuses numbers that are no probabilities.
bool are_probabilities(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return true;
  const auto [least, most] = at::aminmax(tensor);
  return least.item<double>() >= 0 && most.item<double>() <= 1;
}

at::Tensor two_class_loss(const at::Tensor& self, const at::Tensor& target, const OptionalTensor& weight,
                          int64_t reduction) {
  ElementCall call(Function::BinaryCrossEntropy);
  call.take(self);
  call.take(target);
  if (self.sizes() != target.sizes() || self.scalar_type() != target.scalar_type() ||
      !is_ours("aten::binary_cross_entropy", call) || !are_probabilities(self))
    return at::cpu::binary_cross_entropy(self, target, weight, reduction);
  return reduced(computed_elements(call, {}), weight, reduction);
}

at::Tensor& two_class_loss_out(const at::Tensor& self, const at::Tensor& target, const OptionalTensor& weight,
                               int64_t reduction, at::Tensor& out) {
  return write_elements(two_class_loss(self, target, weight, reduction), out);
}

// The gradient of huber_loss or smooth_l1_loss.
template <Function kFunction, class Operator, auto kOriginal>
at::Tensor& bounded_loss_backward_out(const at::Tensor& gradient, const at::Tensor& self,
                                      const at::Tensor& target, int64_t reduction, double bound,
                                      at::Tensor& out) {
  ElementCall call(kFunction);
  call.take(gradient);
  call.take(self);
  call.take(target);
  call.take(reduction == at::Reduction::Mean ? 1.0 / static_cast<double>(self.numel()) : 1.0);
  call.take(bound);
  if (!is_ours(Operator::name, call)) return kOriginal(gradient, self, target, reduction, bound, out);
  computed_elements(call, out);
  return out;
}

at::Tensor remainder_of_number(const at::Scalar& self, const at::Tensor& other) {
  return at::remainder(at::native::wrapped_scalar_tensor(self), other);
}

at::Tensor power_of_number(const at::Scalar& self, const at::Tensor& exponent) {
  return at::pow(at::native::wrapped_scalar_tensor(self), exponent);
}

at::Tensor& power_of_number_into(const at::Scalar& self, const at::Tensor& exponent, at::Tensor& out) {
  return at::pow_out(out, at::native::wrapped_scalar_tensor(self), exponent);
}

// Numbers at equal distances, computed in doubles with one rounding of each product and sum.
template <class ValueAt>
at::Tensor& write_range(at::Tensor& out, const ValueAt& value_at) {
  const at::Tensor values = at::empty(out.sizes(), at::kDouble);
  auto* const data = values.data_ptr<double>();
  for (int64_t i = 0; i < values.numel(); ++i) data[i] = value_at(static_cast<double>(i));
  return out.copy_(values);
}

at::Tensor& linspace_into(const at::Scalar& start, const at::Scalar& end, int64_t steps, at::Tensor& out) {
  at::cpu::linspace_outf(start, end, steps, out);  // checks and allocates
  if (out.is_complex()) not_covered("aten::linspace", "complex numbers");
  if (out.is_complex() || steps < 2) return out;
  const double first = start.toDouble();
  const double last = end.toDouble();
  const auto intervals = static_cast<double>(steps - 1);
  const double step = (last - first) / intervals;
  return write_range(
      out, [&](double i) { return 2 * i < intervals ? first + step * i : last - step * (intervals - i); });
}

at::Tensor& arange_into(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step,
                        at::Tensor& out) {
  at::cpu::arange_outf(start, end, step, out);  // checks and allocates
  if (!at::isFloatingType(out.scalar_type())) return out;
  return write_range(out, [&](double i) { return start.toDouble() + step.toDouble() * i; });
}

}  // namespace

// A function of LibTorch, or its gradient, with its variants: into a new tensor, into a given one, in place.
#define TUTTI_OPERATOR(function, name, original) \
  add_kernel<Function::function, at::_ops::name, &at::cpu::original>(library)
#define TUTTI_FUNCTION(function, name)  \
  TUTTI_OPERATOR(function, name, name); \
  TUTTI_OPERATOR(function, name##_out, name##_outf)
#define TUTTI_FUNCTION_IN_PLACE(function, name) \
  TUTTI_FUNCTION(function, name);               \
  TUTTI_OPERATOR(function, name##_, name##_)
#define TUTTI_GRADIENT(function, name)  \
  TUTTI_OPERATOR(function, name, name); \
  TUTTI_OPERATOR(function, name##_grad_input, name##_outf)

void register_functions(Registrar& library) {
  TUTTI_FUNCTION_IN_PLACE(Exp, exp);
  TUTTI_FUNCTION_IN_PLACE(Expm1, expm1);
  TUTTI_FUNCTION_IN_PLACE(Log, log);
  TUTTI_FUNCTION_IN_PLACE(Log1p, log1p);
  TUTTI_FUNCTION_IN_PLACE(Tanh, tanh);
  TUTTI_FUNCTION_IN_PLACE(Sigmoid, sigmoid);
  TUTTI_FUNCTION_IN_PLACE(Erf, erf);
  TUTTI_FUNCTION_IN_PLACE(Silu, silu);
  TUTTI_FUNCTION_IN_PLACE(Gelu, gelu);
  TUTTI_FUNCTION_IN_PLACE(Exp2, exp2);
  TUTTI_FUNCTION_IN_PLACE(Log2, log2);
  TUTTI_FUNCTION_IN_PLACE(Log10, log10);
  TUTTI_FUNCTION_IN_PLACE(Sin, sin);
  TUTTI_FUNCTION_IN_PLACE(Cos, cos);
  TUTTI_FUNCTION_IN_PLACE(Tan, tan);
  TUTTI_FUNCTION_IN_PLACE(Asin, asin);
  TUTTI_FUNCTION_IN_PLACE(Acos, acos);
  TUTTI_FUNCTION_IN_PLACE(Atan, atan);
  TUTTI_FUNCTION_IN_PLACE(Atan2, atan2);
  TUTTI_FUNCTION_IN_PLACE(Sinh, sinh);
  TUTTI_FUNCTION_IN_PLACE(Cosh, cosh);
  TUTTI_FUNCTION_IN_PLACE(Asinh, asinh);
  TUTTI_FUNCTION_IN_PLACE(Acosh, acosh);
  TUTTI_FUNCTION_IN_PLACE(Atanh, atanh);
  TUTTI_FUNCTION_IN_PLACE(Erfc, erfc);
  TUTTI_FUNCTION_IN_PLACE(Erfinv, erfinv);
  TUTTI_FUNCTION_IN_PLACE(Rsqrt, rsqrt);
  TUTTI_FUNCTION_IN_PLACE(Sqrt, sqrt);  // that of MKL is wrong in the last bit of one element in a hundred
  TUTTI_FUNCTION_IN_PLACE(Hypot, hypot);
  TUTTI_FUNCTION_IN_PLACE(Mish, mish);
  TUTTI_FUNCTION_IN_PLACE(Elu, elu);
  TUTTI_FUNCTION_IN_PLACE(Logit, logit);
  TUTTI_FUNCTION_IN_PLACE(Addcmul, addcmul);
  TUTTI_FUNCTION(Softplus, softplus);
  TUTTI_FUNCTION(Softshrink, softshrink);
  TUTTI_FUNCTION(Logaddexp, logaddexp);
  TUTTI_GRADIENT(TanhBackward, tanh_backward);
  TUTTI_GRADIENT(SiluBackward, silu_backward);
  TUTTI_GRADIENT(GeluBackward, gelu_backward);
  TUTTI_GRADIENT(SoftplusBackward, softplus_backward);
  TUTTI_GRADIENT(EluBackward, elu_backward);
  TUTTI_OPERATOR(MishBackward, mish_backward, mish_backward);
  TUTTI_OPERATOR(Xlogy, xlogy_Tensor, xlogy);
  TUTTI_OPERATOR(Xlogy, xlogy_OutTensor, xlogy_outf);
  TUTTI_OPERATOR(Xlogy, xlogy__Tensor, xlogy_);
  TUTTI_OPERATOR(Pow, pow_Tensor_Tensor, pow);
  TUTTI_OPERATOR(Pow, pow_Tensor_Tensor_out, pow_outf);
  TUTTI_OPERATOR(Pow, pow__Tensor, pow_);
  library.impl("pow.Scalar", power_of_number);
  library.impl("pow.Scalar_out", power_of_number_into);
  TUTTI_OPERATOR(PowScalar, pow_Tensor_Scalar, pow);
  TUTTI_OPERATOR(PowScalar, pow_Tensor_Scalar_out, pow_outf);
  TUTTI_OPERATOR(PowScalar, pow__Scalar, pow_);
  TUTTI_OPERATOR(Fmod, fmod_Tensor, fmod);
  TUTTI_OPERATOR(Fmod, fmod_Tensor_out, fmod_outf);
  TUTTI_OPERATOR(Fmod, fmod__Tensor, fmod_);
  TUTTI_OPERATOR(Remainder, remainder_Tensor, remainder);
  TUTTI_OPERATOR(Remainder, remainder_Tensor_out, remainder_outf);
  TUTTI_OPERATOR(Remainder, remainder__Tensor, remainder_);
  TUTTI_FUNCTION(Fmax, fmax);
  TUTTI_FUNCTION(Fmin, fmin);
  TUTTI_OPERATOR(LerpScalar, lerp_Scalar, lerp);
  TUTTI_OPERATOR(LerpScalar, lerp_Scalar_out, lerp_outf);
  TUTTI_OPERATOR(LerpScalar, lerp__Scalar, lerp_);
  TUTTI_OPERATOR(Lerp, lerp_Tensor, lerp);
  TUTTI_OPERATOR(Lerp, lerp_Tensor_out, lerp_outf);
  TUTTI_OPERATOR(Lerp, lerp__Tensor, lerp_);
  TUTTI_OPERATOR(AddScaled, add_Tensor, add);
  TUTTI_OPERATOR(AddScaled, add_out, add_outf);
  TUTTI_OPERATOR(AddScaled, add__Tensor, add_);
  TUTTI_OPERATOR(SubtractScaled, sub_Tensor, sub);
  TUTTI_OPERATOR(SubtractScaled, sub_out, sub_outf);
  TUTTI_OPERATOR(SubtractScaled, sub__Tensor, sub_);
  library.impl("log_sigmoid_forward", log_sigmoid_and_buffer);
  library.impl("log_sigmoid_forward.output", log_sigmoid_and_buffer_out);
  library.impl("glu", gated_halves);
  library.impl("glu.out", gated_halves_out);
  library.impl("binary_cross_entropy", two_class_loss);
  library.impl("binary_cross_entropy.out", two_class_loss_out);
  library.impl("linspace.out", linspace_into);
  library.impl("arange.start_out", arange_into);
  library.impl("remainder.Scalar_Tensor", remainder_of_number);
  library.impl("huber_loss_backward.out",
               bounded_loss_backward_out<Function::HuberBackward, at::_ops::huber_loss_backward_out,
                                         &at::cpu::huber_loss_backward_outf>);
  library.impl(
      "smooth_l1_loss_backward.grad_input",
      bounded_loss_backward_out<Function::SmoothL1Backward, at::_ops::smooth_l1_loss_backward_grad_input,
                                &at::cpu::smooth_l1_loss_backward_outf>);
}

}  // namespace tutti::kernels

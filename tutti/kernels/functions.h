#pragma once

#include <cstdint>

namespace tutti::kernels {

// The functions of one element, and of the elements at the same place of several operands. Operands and
// parameters are in the order of LibTorch's operator of that name.
enum class Function {
  // basic_functions.cc
  Exp,
  Expm1,
  Log,
  Log1p,
  Tanh,
  Sigmoid,
  Erf,
  Silu,
  Gelu,
  GeluTanh,  // the approximation of gelu by tanh
  TanhBackward,
  SiluBackward,
  GeluBackward,
  GeluTanhBackward,
  // activations.cc
  Softplus,
  SoftplusBackward,
  Mish,
  MishBackward,
  Elu,
  EluBackward,
  LogSigmoid,
  ExpOfNegativeSize,  // the buffer of log_sigmoid
  Logit,
  Glu,  // of both halves
  Softshrink,
  AddScaled,       // a + alpha b
  SubtractScaled,  // a - alpha b
  Addcmul,
  LerpScalar,
  Lerp,
  BinaryCrossEntropy,
  HuberBackward,
  Logaddexp,
  // scientific_functions.cc
  Exp2,
  Log2,
  Log10,
  Pow,
  PowScalar,
  Sin,
  Cos,
  Tan,
  Asin,
  Acos,
  Atan,
  Atan2,
  Sinh,
  Cosh,
  Asinh,
  Acosh,
  Atanh,
  Erfc,
  Erfinv,
  Hypot,
  Xlogy,
  Rsqrt,
  Sqrt,
  // exact_functions.cc
  Fmod,
  Remainder,
  Fmax,
  Fmin,
  SmoothL1Backward,
};

// `count` elements of up to three operands, each of which lies one after the other. `out` may be an operand.
template <class T>
struct Elements {
  const T* in[3];
  T* out;
  int64_t count;
};

// The parts of apply(), one for each file of loops.
void apply_basic(Function function, const Elements<float>& elements);
void apply_basic(Function function, const Elements<double>& elements);
void apply_activation(Function function, const Elements<float>& elements, const double* parameters);
void apply_activation(Function function, const Elements<double>& elements, const double* parameters);
void apply_scientific(Function function, const Elements<float>& elements, const double* parameters);
void apply_scientific(Function function, const Elements<double>& elements, const double* parameters);
void apply_exact(Function function, const Elements<float>& elements, const double* parameters);
void apply_exact(Function function, const Elements<double>& elements, const double* parameters);

// Computes out[i] = function(in[0][i], in[1][i], in[2][i]) for all elements.
//
// Each element is made by one sequence of additions, multiplications, divisions, square roots and fused
// multiply-adds, so it has the same bits on every processor and at every place. A result that is no number is
// the quiet NaN whose sign and other bits are 0. docs/kernels.md has the errors.
template <class T>
void apply(Function function, const Elements<T>& elements, const double* parameters) {
  if (function < Function::Softplus)
    apply_basic(function, elements);
  else if (function < Function::Exp2)
    apply_activation(function, elements, parameters);
  else if (function < Function::Fmod)
    apply_scientific(function, elements, parameters);
  else
    apply_exact(function, elements, parameters);
}

}  // namespace tutti::kernels

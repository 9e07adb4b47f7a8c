// Functions whose operations IEEE 754 defines, so that loops without vectors are enough. LibTorch's kernels
// compute them with other operations, or in another order, on other processors.
#include <cmath>

#include "tutti/kernels/functions.h"

namespace tutti::kernels {
namespace {

template <class T, class F>
void for_each_pair(const Elements<T>& elements, const F& function) {
  for (int64_t i = 0; i < elements.count; ++i)
    elements.out[i] = function(elements.in[0][i], elements.in[1][i]);
}

// The remainder that has the sign of the divisor.
template <class T>
T remainder_of(T a, T b) {
  const T rest = std::fmod(a, b);
  return rest != 0 && (b < 0) != (rest < 0) ? rest + b : rest;
}

// The larger one; the other one if one is NaN; 0 and not -0 of both.
template <class T>
T larger(T a, T b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) ? b : a;
  return a > b || (a == b && !std::signbit(a)) ? a : b;
}

template <class T>
void apply_any(Function function, const Elements<T>& elements, const double* parameters) {
  switch (function) {
    case Function::Fmod:
      return for_each_pair(elements, [](T a, T b) { return std::fmod(a, b); });
    case Function::Remainder:
      return for_each_pair(elements, remainder_of<T>);
    case Function::Fmax:
      return for_each_pair(elements, larger<T>);
    case Function::Fmin:
      return for_each_pair(elements, [](T a, T b) { return -larger(-a, -b); });
    case Function::SmoothL1Backward: {  // the weight of the mean, beta
      const T weight = static_cast<T>(parameters[0]);
      const T beta = static_cast<T>(parameters[1]);
      for (int64_t i = 0; i < elements.count; ++i) {
        const T gradient = elements.in[0][i];
        const T difference = elements.in[1][i] - elements.in[2][i];
        if (difference <= -beta)
          elements.out[i] = -weight * gradient;
        else
          elements.out[i] = difference >= beta ? weight * gradient : weight * difference * gradient / beta;
      }
      return;
    }
    default:
      return;
  }
}

}  // namespace

void apply_exact(Function function, const Elements<float>& elements, const double* parameters) {
  apply_any(function, elements, parameters);
}

void apply_exact(Function function, const Elements<double>& elements, const double* parameters) {
  apply_any(function, elements, parameters);
}

}  // namespace tutti::kernels

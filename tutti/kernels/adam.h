#pragma once

#include <cstdint>

namespace tutti::kernels {

// One step of Adam or AdamW, in one pass over the memory. It gives the same bits as these calls, with the
// operators of this module:
//   values.mul_(shrink)
//   gradient = gradient.add(values, decay)           if the decay is not 0
//   average.mul_(beta1).add_(gradient, 1 - beta1)
//   squares.mul_(beta2).addcmul_(gradient, gradient, 1 - beta2)
//   values.addcdiv_(average, squares.sqrt().div_(correction).add_(eps), factor)
// It may read average and squares from other memory than where it writes them.
template <class T>
struct AdamStep {
  T* values = nullptr;
  const T* gradient = nullptr;
  T* average = nullptr;
  T* squares = nullptr;
  int64_t count = 0;
  double shrink;
  double decay;
  double beta1;
  double beta2;
  double correction;
  double eps;
  double factor;
  const T* old_average = nullptr;  // where they are read; null: where they are written
  const T* old_squares = nullptr;
};

void make_adam_step(const AdamStep<float>& step);
void make_adam_step(const AdamStep<double>& step);

}  // namespace tutti::kernels

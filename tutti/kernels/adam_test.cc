#include "tutti/kernels/adam.h"

#include <cmath>

#include <torch/types.h>

#include "tutti/kernels/same_kernels.h"
#include "tutti/kernels/test_targets.h"

namespace tutti::kernels::adam_test {
namespace {

constexpr int64_t kElements = 1003;

at::Tensor numbers(at::ScalarType type, uint32_t seed) {
  at::Tensor tensor = at::empty({kElements}, at::kDouble);
  auto* const values = tensor.data_ptr<double>();
  for (int64_t i = 0; i < kElements; ++i) {
    seed = seed * 1664525U + 1013904223U;
    values[i] = static_cast<double>(static_cast<int32_t>(seed)) / 2147483648.0;
  }
  return tensor.to(type);
}

struct Vectors {
  explicit Vectors(at::ScalarType type)
      : values(numbers(type, 1)),
        gradient(numbers(type, 2)),
        average(numbers(type, 3)),
        squares(numbers(type, 4).abs()) {}
  at::Tensor all() const { return at::cat({values, average, squares}); }

  at::Tensor values;
  at::Tensor gradient;
  at::Tensor average;
  at::Tensor squares;
};

template <class T>
AdamStep<T> step_of(const Vectors& of, double shrink, double decay) {
  return {of.values.data_ptr<T>(),
          of.gradient.data_ptr<T>(),
          of.average.data_ptr<T>(),
          of.squares.data_ptr<T>(),
          kElements,
          shrink,
          decay,
          0.9,
          0.999,
          std::sqrt(0.003),
          1e-8,
          -0.01};
}

template <class T>
void expect_bits_of_operators(double shrink, double decay) {
  constexpr at::ScalarType kType = c10::CppTypeToScalarType<T>::value;
  const SameKernels same;
  const Vectors expected(kType);
  const AdamStep<T> step = step_of<T>(expected, shrink, decay);
  at::Tensor values = expected.values;
  if (shrink != 1) values.mul_(shrink);
  const at::Tensor gradient = decay == 0 ? expected.gradient : expected.gradient.add(values, decay);
  at::Tensor(expected.average).mul_(step.beta1).add_(gradient, 1 - step.beta1);
  at::Tensor(expected.squares).mul_(step.beta2).addcmul_(gradient, gradient, 1 - step.beta2);
  values.addcdiv_(expected.average, (expected.squares.sqrt() / step.correction).add_(step.eps), step.factor);
  const at::Tensor made = computed_everywhere([&] {
    const Vectors vectors(kType);
    make_adam_step(step_of<T>(vectors, shrink, decay));
    return vectors.all();
  });
  EXPECT_TRUE(same_bits(expected.all(), made)) << shrink << ' ' << decay;
  const at::Tensor made_apart = computed_everywhere([&] {
    const Vectors old(kType);
    const Vectors vectors(kType);
    at::Tensor(vectors.average).zero_();
    at::Tensor(vectors.squares).zero_();
    AdamStep<T> apart = step_of<T>(vectors, shrink, decay);
    apart.old_average = old.average.data_ptr<T>();
    apart.old_squares = old.squares.data_ptr<T>();
    make_adam_step(apart);
    EXPECT_TRUE(same_bits(old.all(), Vectors(kType).all()));
    return vectors.all();
  });
  EXPECT_TRUE(same_bits(expected.all(), made_apart)) << shrink << ' ' << decay;
}

TEST(AdamStep, has_the_bits_of_its_operators_on_every_target) {
  for (const double shrink : {1.0, 0.99}) {
    for (const double decay : {0.0, 0.1}) {
      expect_bits_of_operators<float>(shrink, decay);
      expect_bits_of_operators<double>(shrink, decay);
    }
  }
}

}  // namespace
}  // namespace tutti::kernels::adam_test

#include "tutti/kernels/functions.h"

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/kernels/coverage.h"
#include "tutti/kernels/same_kernels.h"
#include "tutti/kernels/test_targets.h"

namespace tutti::kernels::functions_test {
namespace {

using Real = long double;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Real sigmoid(Real x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }
Real normal_share(Real x) { return std::erfc(-x * std::sqrt(0.5L)) / 2; }
Real normal_density(Real x) { return std::exp(-x * x / 2) / std::sqrt(2 * std::acos(-1.0L)); }
// gelu by tanh is x / 2 (1 + tanh(y)) = x sigmoid(2 y)
Real gelu_power(Real x) { return 2 * std::sqrt(2 / std::acos(-1.0L)) * (x + 0.044715L * x * x * x); }

// By Halley's method, from the complement if x is large.
Real erfinv(Real x) {
  const Real size = std::fabs(x);
  if (!(size < 1)) return size == 1 ? std::copysign(Real(kInfinity), x) : Real(kInfinity) - Real(kInfinity);
  Real y = size < 0.5L ? size : std::sqrt(-std::log((1 - size) * 2));
  for (int i = 0; i < 60; ++i) {
    const Real error = size < 0.5L ? std::erf(y) - size : (1 - size) - std::erfc(y);
    const Real step = error / (2 / std::sqrt(std::acos(-1.0L)) * std::exp(-y * y));
    y -= std::clamp(step / (1 + y * step), -0.3L, 0.3L);
  }
  return std::copysign(y, x);
}

struct Case {
  std::string name;
  std::function<at::Tensor(const at::Tensor&)> function;
  std::function<Real(Real)> reference;
  double largest_error;  // in units of the last place of the result, or of the larger one of it and `scale`
  double scale = 0;
  double of_floats = 0;  // the largest error of floats, if it is another one
};

at::Tensor ones(const at::Tensor& x) { return torch::ones_like(x); }

const std::vector<Case>& cases() {
  static const std::vector<Case> kCases = {
      {"exp", [](auto& x) { return torch::exp(x); }, [](Real x) { return std::exp(x); }, 1},
      {"expm1", [](auto& x) { return torch::expm1(x); }, [](Real x) { return std::expm1(x); }, 1.8},
      {"log", [](auto& x) { return torch::log(x); }, [](Real x) { return std::log(x); }, 0.9},
      {"log1p", [](auto& x) { return torch::log1p(x); }, [](Real x) { return std::log1p(x); }, 1},
      {"tanh", [](auto& x) { return torch::tanh(x); }, [](Real x) { return std::tanh(x); }, 2.6},
      {"sigmoid", [](auto& x) { return torch::sigmoid(x); }, sigmoid, 2.4},
      {"erf", [](auto& x) { return torch::erf(x); }, [](Real x) { return std::erf(x); }, 1.6},
      {"silu", [](auto& x) { return torch::silu(x); }, [](Real x) { return x * sigmoid(x); }, 2.2, 1},
      {"gelu", [](auto& x) { return torch::gelu(x); }, [](Real x) { return x * normal_share(x); }, 1.2, 1},
      {"gelu_tanh", [](auto& x) { return torch::gelu(x, "tanh"); },
       [](Real x) { return x * sigmoid(gelu_power(x)); }, 2, 1},
      {"tanh_backward", [](auto& x) { return torch::tanh_backward(ones(x), x); },
       [](Real x) { return 1 - x * x; }, 0.6, 1},
      {"silu_backward", [](auto& x) { return torch::silu_backward(ones(x), x); },
       [](Real x) { return sigmoid(x) * (1 + x * sigmoid(-x)); }, 1.6, 1},
      {"gelu_backward", [](auto& x) { return torch::gelu_backward(ones(x), x); },
       [](Real x) { return normal_share(x) + x * normal_density(x); }, 1.2, 1},
      {"gelu_tanh_backward", [](auto& x) { return torch::gelu_backward(ones(x), x, "tanh"); },
       [](Real x) {
         const Real slope = gelu_power(1) / 1.044715L * (1 + 3 * 0.044715L * x * x);
         const Real share = sigmoid(gelu_power(x));
         const Real rest = sigmoid(-gelu_power(x));
         return share == 0 || rest == 0 ? share : share * (1 + x * slope * rest);
       },
       2.2, 1},
      {"exp2", [](auto& x) { return torch::exp2(x); }, [](Real x) { return std::exp2(x); }, 1.2},
      {"log2", [](auto& x) { return torch::log2(x); }, [](Real x) { return std::log2(x); }, 0.6, 0, 1},
      {"log10", [](auto& x) { return torch::log10(x); }, [](Real x) { return std::log10(x); }, 0.6, 0, 1},
      {"sin", [](auto& x) { return torch::sin(x); }, [](Real x) { return std::sin(x); }, 0.9},
      {"cos", [](auto& x) { return torch::cos(x); }, [](Real x) { return std::cos(x); }, 0.9},
      {"tan", [](auto& x) { return torch::tan(x); }, [](Real x) { return std::tan(x); }, 2.2},
      {"asin", [](auto& x) { return torch::asin(x); }, [](Real x) { return std::asin(x); }, 2, 0, 2.3},
      {"acos", [](auto& x) { return torch::acos(x); }, [](Real x) { return std::acos(x); }, 1.2},
      {"atan", [](auto& x) { return torch::atan(x); }, [](Real x) { return std::atan(x); }, 2},
      {"sinh", [](auto& x) { return torch::sinh(x); }, [](Real x) { return std::sinh(x); }, 2.4},
      {"cosh", [](auto& x) { return torch::cosh(x); }, [](Real x) { return std::cosh(x); }, 1.5},
      {"asinh", [](auto& x) { return torch::asinh(x); }, [](Real x) { return std::asinh(x); }, 2.4},
      {"acosh", [](auto& x) { return torch::acosh(x); }, [](Real x) { return std::acosh(x); }, 2.4},
      {"atanh", [](auto& x) { return torch::atanh(x); }, [](Real x) { return std::atanh(x); }, 2.2},
      {"erfc", [](auto& x) { return torch::erfc(x); }, [](Real x) { return std::erfc(x); }, 3, 0, 4.4},
      {"erfinv", [](auto& x) { return torch::erfinv(x); }, erfinv, 3},
      {"pow", [](auto& x) { return torch::pow(x, 2.5); }, [](Real x) { return std::pow(x, 2.5L); }, 1},
      {"softplus", [](auto& x) { return torch::softplus(x, 2, 20); },
       [](Real x) { return 2 * x > 20 ? x : std::log1p(std::exp(2 * x)) / 2; }, 2.4, 1},
      {"softplus_backward", [](auto& x) { return torch::softplus_backward(ones(x), x, 2, 20); },
       [](Real x) { return 2 * x > 20 ? 1 : sigmoid(2 * x); }, 2.2, 1},
      {"mish", [](auto& x) { return torch::mish(x); },
       [](Real x) { return x * std::tanh(std::log1p(std::exp(x))); }, 2.6, 1},
      {"elu", [](auto& x) { return torch::elu(x, 1.5, 2, 0.5); },
       [](Real x) { return x > 0 ? 2 * x : 3 * std::expm1(x / 2); }, 2.2},
      {"elu_backward", [](auto& x) { return torch::elu_backward(ones(x), 1.5, 2, 0.5, false, x); },
       [](Real x) { return x > 0 ? 2 : 1.5L * std::exp(x / 2); }, 1.6},
      {"log_sigmoid", [](auto& x) { return torch::log_sigmoid(x); },
       [](Real x) { return x > 0 ? -std::log1p(std::exp(-x)) : x - std::log1p(std::exp(x)); }, 2},
      {"logit", [](auto& x) { return torch::logit(x, 0.1); },
       [](Real x) {
         return std::isnan(x) ? x : std::log(std::clamp(x, 0.1L, 0.9L) / (1 - std::clamp(x, 0.1L, 0.9L)));
       },
       4, 1},
  };
  return kCases;
}

template <class T, class Word>
at::Tensor sample_of(at::ScalarType type) {
  std::vector<T> all;
  // Numbers of all exponents and both signs, then those where functions turn, then those near 0.
  std::uint64_t state = 33;
  for (int i = 0; i < 12000; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    all.push_back(std::bit_cast<T>(static_cast<Word>((state ^ (state >> 31U)) >> (64 - 8 * sizeof(T)))));
  }
  for (const double x :
       {0.0,   0x1p-149, 0x1p-126, 0x1p-1022, 0x1p-60, 0x1p-25, 0.5,  0.70711, 1.0,   1.41422, 2.0,
        3.95,  5.5,      9.0,      20.0,      28.0,    40.0,    87.0, 88.72,   88.73, 103.9,   104.0,
        708.0, 709.78,   709.79,   745.0,     746.0,   1e6,     1e9,  0x1p60,  3e38,  1e308,   kInfinity})
    for (const T y : {static_cast<T>(x), static_cast<T>(-x)})
      for (const T z : {y, std::nextafter(y, T(0)), std::nextafter(y, std::copysign(T(kInfinity), y))})
        all.push_back(z);
  all.push_back(std::numeric_limits<T>::quiet_NaN());
  all.push_back(std::numeric_limits<T>::denorm_min());
  for (int i = -4000; i <= 4000; ++i) all.push_back(static_cast<T>(i) / 389);
  return torch::tensor(all, type);
}

at::Tensor sample(at::ScalarType type) {
  return type == at::kFloat ? sample_of<float, std::uint32_t>(type) : sample_of<double, std::uint64_t>(type);
}

// The distance to `expected` in units of its last place.
template <class T>
double error_of(T got, Real expected, double scale) {
  using Limits = std::numeric_limits<T>;
  const T rounded = static_cast<T>(expected);
  if (std::isnan(rounded) || std::isnan(got)) return std::isnan(rounded) && std::isnan(got) ? 0 : kInfinity;
  if (std::isinf(rounded) || std::isinf(got)) return rounded == got ? 0 : kInfinity;
  if (rounded == 0 && got == 0 && std::signbit(rounded) != std::signbit(got) && scale == 0) return kInfinity;
  const Real size = std::max({std::fabs(expected), Real(Limits::min()), Real(scale)});
  return static_cast<double>(std::fabs(got - expected) /
                             std::ldexp(Real(1), std::ilogb(size) - Limits::digits + 1));
}

template <class T>
void expect_near(const Case& of, const at::Tensor& in, const at::Tensor& out) {
  double worst = 0;
  T where = 0;
  for (int64_t i = 0; i < in.numel(); ++i) {
    const T x = in.data_ptr<T>()[i];
    const double error = error_of<T>(out.data_ptr<T>()[i], of.reference(x), of.scale);
    if (error <= worst) continue;
    worst = error;
    where = x;
  }
  const bool is_other = std::is_same_v<T, float> && of.of_floats > 0;
  EXPECT_LE(worst, is_other ? of.of_floats : of.largest_error) << of.name << " at " << where;
}

class Functions : public testing::TestWithParam<at::ScalarType> {
 protected:
  const SameKernels same_;
};

TEST_P(Functions, are_within_the_stated_error_for_numbers_of_all_exponents) {
  const at::Tensor in = sample(GetParam());
  for (const Case& of : cases()) {
    if (GetParam() == at::kFloat)
      expect_near<float>(of, in, of.function(in));
    else
      expect_near<double>(of, in, of.function(in));
  }
}

TEST_P(Functions, have_the_same_bits_with_any_threads) {
  const at::Tensor in = sample(GetParam()).repeat({5});
  computed_everywhere([&] { return torch::tanh(in); });
  computed_everywhere([&] { return torch::pow(in, in.flip(0)); });
}

TEST_P(Functions, have_the_same_bits_on_every_target) {
  const at::Tensor in = sample(GetParam());
  for (const Case& of : cases()) {
    SCOPED_TRACE(of.name);
    const at::Tensor expected = of.function(in);
    on_every_target([&] { EXPECT_TRUE(same_bits(of.function(in), expected)); });
  }
}

TEST_P(Functions, of_an_element_do_not_depend_on_its_place_and_layout) {
  const at::Tensor in = sample(GetParam()).narrow(0, 11990, 300);
  const at::Tensor apart = torch::stack({in, in.flip(0), in}, 1).select(1, 2);
  const at::Tensor square = in.narrow(0, 0, 289).view({17, 17});
  for (const Case& of : cases()) {
    SCOPED_TRACE(of.name);
    const at::Tensor whole = of.function(in);
    EXPECT_TRUE(same_bits(of.function(apart), whole));
    EXPECT_TRUE(same_bits(of.function(in.expand({3, 300}))[1], whole));
    EXPECT_TRUE(same_bits(of.function(square.t()), whole.narrow(0, 0, 289).view({17, 17}).t()));
    for (int64_t count = 0; count < 40; ++count)
      EXPECT_TRUE(same_bits(of.function(in.narrow(0, count, count)), whole.narrow(0, count, count)));
    EXPECT_TRUE(same_bits(of.function(in[7]), whole[7]));
  }
}

TEST_P(Functions, have_one_nan) {
  const at::Tensor quiet = torch::full({1}, std::numeric_limits<double>::quiet_NaN(), GetParam());
  for (const Case& of : cases()) {
    EXPECT_TRUE(same_bits(of.function(quiet), quiet)) << of.name;
    EXPECT_TRUE(same_bits(of.function(-quiet), quiet)) << of.name;
  }
  EXPECT_TRUE(same_bits(torch::log(torch::full({1}, -1, GetParam())), quiet));
}

TEST_P(Functions, have_the_gradients_of_libtorch) {
  const auto gradient = [&](const Case& of, at::ScalarType type) {
    const at::Tensor x = ((torch::arange(0, 400, type) - 199.5) / 43).requires_grad_();
    of.function(x).sum().backward();
    return x.grad().to(at::kDouble);
  };
  for (const Case& of : cases()) {
    if (of.name.find("backward") != std::string::npos) continue;
    const at::Tensor ours = gradient(of, GetParam());
    // A difference of the long double reference, with an error of about 2^-56 of its fifth derivative.
    const at::Tensor x = (torch::arange(0, 400, GetParam()) - 199.5) / 43;
    for (int64_t i = 0; i < x.numel(); ++i) {
      const Real at = x[i].to(at::kDouble).item<double>();
      constexpr Real kStep = 0x1p-14L;
      const auto slope = [&](Real step) {
        return (of.reference(at + step) - of.reference(at - step)) / (2 * step);
      };
      const Real expected = (4 * slope(kStep) - slope(2 * kStep)) / 3;
      const double got = ours[i].item<double>();
      if (std::isnan(expected) || std::fabs(expected) > 100) continue;  // where differences do not help
      EXPECT_NEAR(got, static_cast<double>(expected), 4e-6 * std::max(1.0, std::fabs(got)))
          << of.name << " at " << at;
    }
  }
}

struct Pair {
  std::string name;
  std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> function;
  std::function<Real(Real, Real)> reference;
  double largest_error;
};

const std::vector<Pair>& pairs() {
  static const std::vector<Pair> kPairs = {
      {"pow", [](auto& x, auto& y) { return torch::pow(x, y); },
       [](Real x, Real y) { return std::pow(x, y); }, 1},
      {"atan2", [](auto& x, auto& y) { return torch::atan2(x, y); },
       [](Real x, Real y) { return std::atan2(x, y); }, 2.2},
      {"hypot", [](auto& x, auto& y) { return torch::hypot(x, y); },
       [](Real x, Real y) { return std::hypot(x, y); }, 1.2},
      {"xlogy", [](auto& x, auto& y) { return torch::xlogy(x, y); },
       [](Real x, Real y) { return x == 0 && !std::isnan(y) ? 0 : x * std::log(y); }, 1.8},
  };
  return kPairs;
}

TEST_P(Functions, of_two_operands_are_within_the_stated_error) {
  // All pairs of numbers where functions turn, and pairs of ordinary numbers.
  std::vector<double> some = {0, 1, 2, 3, 0.5, 1.5, 2.5, 7, 1e3, 1e-3, 1e30, 1e-30, 0x1p-149, 0x1p60, 709.5};
  some.push_back(kInfinity);
  const size_t count = some.size();
  for (size_t i = 0; i < count; ++i) some.push_back(-some[i]);
  some.push_back(std::numeric_limits<double>::quiet_NaN());
  const at::Tensor turns = torch::tensor(some, GetParam());
  torch::manual_seed(33);
  const at::Tensor ordinary = torch::randn({20000}, GetParam());
  const auto size = static_cast<int64_t>(some.size());
  const at::Tensor x = torch::cat({turns.repeat({size}), ordinary.abs() * 3}).contiguous();
  const at::Tensor y = torch::cat({turns.repeat_interleave(size), ordinary.flip(0) * 5}).contiguous();
  for (const Pair& of : pairs()) {
    const at::Tensor computed = of.function(x, y);
    on_every_target([&] { EXPECT_TRUE(same_bits(of.function(x, y), computed)) << of.name; });
    const at::Tensor out = computed.to(at::kDouble);
    const at::Tensor left = x.to(at::kDouble);
    const at::Tensor right = y.to(at::kDouble);
    for (int64_t i = 0; i < x.numel(); ++i) {
      const double a = left.data_ptr<double>()[i];
      const double b = right.data_ptr<double>()[i];
      const double got = out.data_ptr<double>()[i];
      const Real want = of.reference(a, b);
      const double error =
          GetParam() == at::kFloat ? error_of(static_cast<float>(got), want, 0) : error_of(got, want, 0);
      ASSERT_LE(error, of.largest_error) << of.name << " of " << a << " and " << b << ": " << got;
    }
  }
}

// The contracted operators have one order of operations, with one rounding of each a * b + c.
TEST_P(Functions, that_multiply_and_add_round_once) {
  torch::manual_seed(33);
  const auto made = [&] { return torch::randn({5000}, GetParam()); };
  const at::Tensor a = made();
  const at::Tensor b = made();
  const at::Tensor c = made();
  const auto element = [](const at::Tensor& of, int64_t i) { return of[i].item().toDouble(); };
  const auto fma = [&](double x, double y, double z) {
    return GetParam() == at::kFloat
               ? static_cast<double>(
                     std::fma(static_cast<float>(x), static_cast<float>(y), static_cast<float>(z)))
               : std::fma(x, y, z);
  };
  const auto rounded = [&](double x) { return GetParam() == at::kFloat ? static_cast<float>(x) : x; };
  const at::Tensor added = computed_everywhere([&] { return torch::add(a, b, 0.3); });
  const at::Tensor taken = computed_everywhere([&] { return torch::sub(a, b, 0.3); });
  const at::Tensor turned = computed_everywhere([&] { return torch::rsub(a, b, 0.3); });
  const at::Tensor multiplied = computed_everywhere([&] { return torch::addcmul(a, b, c, 2); });
  const at::Tensor mixed = computed_everywhere([&] { return torch::lerp(a, b, c); });
  const at::Tensor mixed_by_one = computed_everywhere([&] { return torch::lerp(a, b, 0.75); });
  const double alpha = rounded(0.3);
  for (int64_t i = 0; i < a.numel(); i += 7) {
    const double x = element(a, i);
    const double y = element(b, i);
    const double z = element(c, i);
    EXPECT_EQ(element(added, i), fma(alpha, y, x));
    EXPECT_EQ(element(taken, i), fma(-alpha, y, x));
    EXPECT_EQ(element(turned, i), fma(-alpha, x, y));
    EXPECT_EQ(element(multiplied, i), fma(2 * y, z, x));
    const double difference = rounded(y - x);
    EXPECT_EQ(element(mixed, i),
              std::fabs(z) < 0.5 ? fma(z, difference, x) : fma(rounded(z - 1), difference, y));
    EXPECT_EQ(element(mixed_by_one, i), fma(-0.25, difference, y));
  }
}

// Losses and gates against the formula in doubles.
TEST_P(Functions, that_make_losses_are_near_their_formulas) {
  torch::manual_seed(33);
  const at::TensorOptions options(GetParam());
  const at::Tensor x = torch::rand({4000}, options);
  const at::Tensor t = torch::rand({4000}, options);
  const at::Tensor g = torch::randn({4000}, options);
  const at::Tensor p = x.to(at::kDouble);
  const at::Tensor q = t.to(at::kDouble);
  const at::Tensor h = g.to(at::kDouble);
  const auto expect_close = [&](const at::Tensor& got, const at::Tensor& want) {
    const double unit = GetParam() == at::kFloat ? 0x1p-23 : 0x1p-52;
    EXPECT_LE(((got.to(at::kDouble) - want).abs() / want.abs().clamp_min(1)).max().template item<double>(),
              3 * unit);
  };
  const auto bce = [&] { return at::binary_cross_entropy(x, t, {}, at::Reduction::None); };
  expect_close(computed_everywhere(bce), -(q * p.log() + (1 - q) * (-p).log1p()));
  EXPECT_NEAR(at::binary_cross_entropy(x, t, g, at::Reduction::Sum).item().toDouble(),
              (-(q * p.log() + (1 - q) * (-p).log1p()) * h).sum().item().toDouble(), 1e-2);
  const auto bce_slope = [&] { return at::binary_cross_entropy_backward(g, x, t, {}, at::Reduction::Mean); };
  expect_close(computed_everywhere(bce_slope), h * (p - q) / ((1 - p) * p) / 4000);
  const auto huber = [&] { return at::huber_loss_backward(g, x, t, at::Reduction::None, 0.25); };
  expect_close(computed_everywhere(huber), h * (p - q).clamp(-0.25, 0.25));
  const auto gate = [&] { return torch::glu(torch::cat({g, t}), 0); };
  expect_close(computed_everywhere(gate), h * torch::sigmoid(q));
  const auto gate_slope = [&] { return at::glu_backward(x, torch::cat({g, t}), 0); };
  expect_close(computed_everywhere(gate_slope).narrow(0, 0, 4000), p * torch::sigmoid(q));
  const auto shrunk = [&] { return torch::softshrink(g, 0.5); };
  EXPECT_TRUE(
      torch::equal(computed_everywhere(shrunk), torch::where(g > 0.5, g - 0.5, (g + 0.5).clamp_max(0))));
  expect_close(computed_everywhere([&] { return at::logaddexp(x, t); }), (p.exp() + q.exp()).log());

  EXPECT_THROW(at::binary_cross_entropy(x + 1, t), c10::Error);
  EXPECT_EQ(at::binary_cross_entropy(torch::zeros({1}, options), torch::ones({1}, options)).item().toDouble(),
            100);
}

INSTANTIATE_TEST_SUITE_P(Types, Functions, testing::Values(at::kFloat, at::kDouble),
                         [](const auto& each) { return std::string(at::toString(each.param)); });

TEST(FunctionOperators, are_near_those_of_libtorch) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const at::Tensor x = torch::arange(-2000, 2000, type) / 431;
    for (const Case& of : cases()) {
      const at::Tensor theirs = of.function(x);
      const SameKernels same;
      const at::Tensor ours = of.function(x);
      const double bound = type == at::kFloat ? 0x1p-20 : 0x1p-48;
      EXPECT_TRUE(torch::allclose(ours, theirs, bound, bound, /*equal_nan=*/true)) << of.name;
    }
  }
}

TEST(FunctionOperators, compute_short_floats_as_floats) {
  const SameKernels same;
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor in = sample(at::kFloat).to(type);
    for (const Case& of : cases()) {
      if (of.name.find("backward") != std::string::npos) continue;
      const at::Tensor out = of.function(in);
      EXPECT_EQ(out.scalar_type(), type);
      const at::Tensor want = of.function(in.to(at::kFloat)).to(type);
      EXPECT_TRUE(torch::equal(out.isnan(), want.isnan())) << of.name;
      EXPECT_TRUE(same_bits(out.nan_to_num(), want.nan_to_num())) << of.name;
    }
  }
}

TEST(FunctionOperators, have_the_reciprocal_root_of_short_floats) {
  const SameKernels same;
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor in = torch::arange(1, 3000, at::kFloat).to(type);
    EXPECT_TRUE(same_bits(torch::rsqrt(in), (1 / in.to(at::kDouble).sqrt()).to(at::kFloat).to(type)));
  }
}

// That of MKL, which LibTorch uses on x86, is not.
TEST(FunctionOperators, have_the_root_that_is_rounded_correctly) {
  const SameKernels same;
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const at::Tensor in = torch::arange(0, 20'001, at::kDouble).to(type) / 1717;
    const at::Tensor root = computed_everywhere([&] { return torch::sqrt(in); });
    for (int64_t i = 0; i < in.numel(); ++i) {
      if (type == at::kFloat)
        ASSERT_EQ(root.data_ptr<float>()[i], std::sqrt(in.data_ptr<float>()[i]));
      else
        ASSERT_EQ(root.data_ptr<double>()[i], std::sqrt(in.data_ptr<double>()[i]));
    }
  }
}

TEST(FunctionOperators, take_what_those_of_libtorch_take) {
  const SameKernels same;
  const at::Tensor whole = torch::arange(1, 6);
  EXPECT_TRUE(same_bits(torch::exp(whole), torch::exp(whole.to(at::kFloat))));
  EXPECT_THROW(whole.clone().exp_(), c10::Error);

  const at::Tensor x = torch::arange(1, 25, at::kFloat).view({4, 6}) / 7;
  const at::Tensor want = torch::log(x);
  at::Tensor replaced = x.clone();
  EXPECT_TRUE(same_bits(replaced.log_(), want));
  EXPECT_TRUE(same_bits(replaced, want));

  at::Tensor wide = torch::empty({6, 4}, at::kDouble).t();
  torch::log_out(wide, x);
  EXPECT_TRUE(same_bits(wide.to(at::kFloat), want));
  EXPECT_EQ(wide.stride(0), 1);
  at::Tensor resized = torch::empty({0});
  torch::log_out(resized, x);
  EXPECT_TRUE(same_bits(resized, want));
  at::Tensor overlapped = torch::arange(1, 10, at::kFloat);
  at::Tensor part = overlapped.narrow(0, 1, 8);
  EXPECT_THROW(torch::log_out(part, overlapped.narrow(0, 0, 8)), c10::Error);

  EXPECT_TRUE(torch::exp(torch::empty({0, 3})).sizes() == at::IntArrayRef({0, 3}));
  EXPECT_EQ(torch::exp(torch::zeros({})).item<float>(), 1);
  const at::Tensor images = torch::rand({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast);
  EXPECT_TRUE(torch::tanh(images).is_contiguous(at::MemoryFormat::ChannelsLast));
  const at::Tensor gradient = torch::rand({4, 1}, at::kDouble);
  EXPECT_TRUE(same_bits(torch::tanh_backward(gradient, x.to(at::kDouble)),
                        torch::tanh_backward(gradient.expand({4, 6}), x)));
  EXPECT_THROW(torch::tanh_backward(torch::rand({3}), x), c10::Error);
  EXPECT_THROW(torch::gelu(x, "other"), c10::Error);
}

TEST(FunctionOperators, make_ranges_of_products_and_sums_that_are_rounded) {
  const SameKernels same;
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const at::Tensor line = torch::linspace(-1.3, 2.7, 1000, type).to(at::kDouble);
    for (int64_t i = 0; i < 500; ++i)
      EXPECT_NEAR(line[i].item<double>(), -1.3 + 4.0 / 999 * static_cast<double>(i),
                  type == at::kFloat ? 2e-7 : 0);
    EXPECT_EQ(torch::linspace(-1.3, 2.7, 1000, at::kDouble)[999].item<double>(), 2.7);
  }
  const at::Tensor range = torch::arange(0.5, 30, 0.3, at::kDouble);
  EXPECT_EQ(range.numel(), 99);
  for (int64_t i = 0; i < range.numel(); ++i)
    EXPECT_EQ(range[i].item<double>(), 0.5 + 0.3 * static_cast<double>(i));
  EXPECT_EQ(torch::linspace(3, 5, 1).numel(), 1);
  EXPECT_TRUE(torch::equal(torch::arange(0, 7), torch::tensor({0, 1, 2, 3, 4, 5, 6})));
}

TEST(FunctionOperators, leave_complex_numbers_to_libtorch_and_remember_it) {
  const SameKernels same;
  const at::Tensor x = torch::complex(torch::zeros({1}), torch::zeros({1}));
  EXPECT_TRUE(torch::equal(torch::exp(x), x + 1));
  const auto all = not_covered_operators();
  EXPECT_TRUE(
      std::any_of(all.begin(), all.end(), [](const NotCovered& each) { return each.name == "aten::exp"; }));
}

}  // namespace
}  // namespace tutti::kernels::functions_test

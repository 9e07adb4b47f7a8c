// All operators that draw numbers. Those that are not here are made of these: dropout of bernoulli_, rand of
// uniform_, randint of random_, multinomial of exponential_ (and with replacement of the generator's
// integers), torch::nn::init of uniform_ and normal_.
#include <tuple>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ExpandUtils.h>
#include <ATen/native/DistributionTemplates.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/random_cpu_dispatch.h>
#include <ATen/ops/random_ops.h>

#include "tutti/kernels/draws.h"
#include "tutti/kernels/operators.h"
#include "tutti/kernels/parallel.h"
#include "tutti/kernels/random.h"

namespace tutti::kernels {
namespace {

namespace templates = at::native::templates;  // LibTorch's own checks; each calls a kernel

// The optional arguments, whose type depends on LibTorch's version.
template <class Result, class... Arguments>
std::tuple<Arguments...> arguments_of(Result (*)(Arguments...));
using FromArguments = decltype(arguments_of(static_cast<at::_ops::random__from::schema*>(nullptr)));
using MaybeInt = std::tuple_element_t<2, FromArguments>;
using MaybeGenerator = std::tuple_element_t<3, FromArguments>;

Draw draw_of(const MaybeGenerator& generator) {
  return next_draw(
      at::get_generator_or_default<at::CPUGeneratorImpl>(generator, at::detail::getDefaultCPUGenerator()));
}

// Calls make(draw, first, last, elements) for the pieces of a tensor of elements of `T`.
template <class T, class Make>
void draw_elements(const at::Tensor& out, const MaybeGenerator& generator, const Make& make) {
  const Draw draw = draw_of(generator);
  const int64_t count = out.numel();
  T* const data = out.data_ptr<T>();
  constexpr int64_t kCost = 16 * kDrawPiece;
  in_parallel((count + kDrawPiece - 1) / kDrawPiece, kCost, [&](int64_t first, int64_t last) {
    make(draw, first * kDrawPiece, std::min(last * kDrawPiece, count), data + first * kDrawPiece);
  });
}

// Returns `out`, or a new tensor of its shape if its elements are of another type or do not lie in order.
at::Tensor ordered(const at::Tensor& out, at::ScalarType type) {
  if (out.scalar_type() == type && out.is_contiguous()) return out;
  return at::empty(out.sizes(), out.options().dtype(type));
}

void write(const at::Tensor& values, const at::Tensor& out) {
  if (!values.is_same(out)) out.copy_(values);
}

// Returns the elements in the type in which they are computed: float for narrower types. They lie in `out` if
// that is possible.
at::Tensor drawn(Distribution distribution, const at::Tensor& out, double a, double b,
                 const MaybeGenerator& generator) {
  const at::ScalarType type = out.scalar_type();
  TORCH_CHECK(at::isFloatingType(type) || distribution == Distribution::kGeometric,
              "this distribution needs elements of a floating-point type, not ", type);
  const auto of_type = [&]<class T>(T /*zero*/) {
    const at::Tensor values = ordered(out, c10::CppTypeToScalarType<T>::value);
    draw_elements<T>(values, generator, [&](const Draw& draw, int64_t first, int64_t last, T* data) {
      fill(distribution, draw, first, last, static_cast<T>(a), static_cast<T>(b), data);
    });
    return values;
  };
  return type == at::kDouble || !at::isFloatingType(type) ? of_type(0.0) : of_type(0.0F);
}

template <class Generator>
struct Uniform {
  void operator()(at::TensorIteratorBase& iterator, double from, double to, const MaybeGenerator& generator) {
    const at::Tensor& out = iterator.output();
    at::Tensor values = drawn(Distribution::kUniform, out, from, to, generator);
    if (out.scalar_type() != values.scalar_type()) {
      values = values.to(out.scalar_type());
      values.masked_fill_(values.eq(to), from);  // it may have been rounded up
    }
    write(values, out);
  }
};

template <class Generator>
struct Normal {
  void operator()(const at::Tensor& out, double mean, double deviation, const MaybeGenerator& generator) {
    write(drawn(Distribution::kNormal, out, mean, deviation, generator), out);
  }
};

template <class Generator>
struct LogNormal {
  void operator()(at::TensorIteratorBase& iterator, double mean, double deviation,
                  const MaybeGenerator& generator) {
    const at::Tensor& out = iterator.output();
    write(drawn(Distribution::kNormal, out, mean, deviation, generator).exp_(), out);
  }
};

template <Distribution kDistribution>
struct Of {
  template <class Generator>
  struct Kernel {
    void operator()(at::TensorIteratorBase& iterator, double a, const MaybeGenerator& generator) {
      write(drawn(kDistribution, iterator.output(), a, 0, generator), iterator.output());
    }
    void operator()(at::TensorIteratorBase& iterator, double a, double b, const MaybeGenerator& generator) {
      write(drawn(kDistribution, iterator.output(), a, b, generator), iterator.output());
    }
  };
};

template <class Generator>
struct Bernoulli {
  void operator()(const at::Tensor& out, double p, const MaybeGenerator& generator) {
    const auto trials = [&](const Draw& draw, int64_t first, int64_t last, auto* data) {
      bernoulli(draw, first, last, p, data);
    };
    if (out.scalar_type() == at::kFloat) {
      const at::Tensor values = ordered(out, at::kFloat);
      draw_elements<float>(values, generator, trials);
      write(values, out);
    } else {
      const at::Tensor values = ordered(out, at::kBool);
      draw_elements<bool>(values, generator, trials);
      write(values, out);
    }
  }

  void operator()(const at::Tensor& out, const at::Tensor& probabilities, const MaybeGenerator& generator) {
    TORCH_CHECK(at::isFloatingType(probabilities.scalar_type()),
                "bernoulli needs probabilities of a floating-point type, not ", probabilities.scalar_type());
    const at::Tensor p = probabilities.to(at::kCPU);
    TORCH_CHECK(p.ge(0).logical_and_(p.le(1)).all().item<bool>(),
                "bernoulli needs probabilities from 0 to 1, but at least one is not");
    const at::ScalarType type = p.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor shape = at::empty(out.sizes(), out.options().dtype(type));
    const at::Tensor uniform = drawn(Distribution::kUniform, shape, 0, 1, generator);
    out.copy_(uniform.lt(*at::expand_inplace(out, p)));
  }
};

void draw_integers(const at::Tensor& out, int64_t base, uint64_t range, const MaybeGenerator& generator) {
  const at::Tensor values = ordered(out, at::kLong);
  draw_elements<int64_t>(values, generator,
                         [&](const Draw& draw, int64_t first, int64_t last, int64_t* data) {
                           integers(draw, first, last, base, range, data);
                         });
  write(values, out);
}

template <class Generator>
struct FromTo {
  void operator()(at::TensorIteratorBase& iterator, uint64_t range, int64_t base,
                  const MaybeGenerator& generator) {
    draw_integers(iterator.output(), base, range, generator);
  }
  void operator()(at::TensorIteratorBase& iterator, const MaybeGenerator& generator) {  // all of int64_t
    draw_integers(iterator.output(), 0, 0, generator);
  }
};

// Returns how many integers from 0 random_() chooses from: as many as the type has, or as a mantissa can tell
// apart. Returns 0 for the types to which LibTorch does not apply random_().
uint64_t range_of(at::ScalarType type) {
  switch (type) {
    case at::kBool:
      return 2;
    case at::kByte:
      return uint64_t{1} << 8;
    case at::kChar:
      return uint64_t{1} << 7;
    case at::kShort:
      return uint64_t{1} << 15;
    case at::kInt:
      return uint64_t{1} << 31;
    case at::kLong:
      return uint64_t{1} << 63;
    case at::kBFloat16:
      return (uint64_t{1} << 8) + 1;
    case at::kHalf:
      return (uint64_t{1} << 11) + 1;
    case at::kFloat:
      return (uint64_t{1} << 24) + 1;
    case at::kDouble:
      return (uint64_t{1} << 53) + 1;
    default:
      return 0;
  }
}

using Source = at::CPUGeneratorImpl;

at::Tensor& uniform(at::Tensor& self, double from, double to, MaybeGenerator generator) {
  return templates::uniform_impl_<Uniform, Source>(self, from, to, std::move(generator));
}

at::Tensor& normal(at::Tensor& self, double mean, double deviation, MaybeGenerator generator) {
  return templates::normal_impl_<Normal, Source>(self, mean, deviation, std::move(generator));
}

// normal of a mean and a deviation of which one or both are tensors.
template <class Mean, class Deviation>
at::Tensor normal_of(Mean mean, Deviation deviation, MaybeGenerator generator) {
  return templates::normal_impl<Normal, Source>(mean, deviation, std::move(generator));
}

template <class Mean, class Deviation>
at::Tensor& normal_out(Mean mean, Deviation deviation, MaybeGenerator generator, at::Tensor& out) {
  return templates::normal_out_impl<Normal, Source>(out, mean, deviation, std::move(generator));
}

at::Tensor& log_normal(at::Tensor& self, double mean, double deviation, MaybeGenerator generator) {
  return templates::log_normal_impl_<LogNormal, Source>(self, mean, deviation, std::move(generator));
}

at::Tensor& exponential(at::Tensor& self, double rate, MaybeGenerator generator) {
  return templates::exponential_impl_<Of<Distribution::kExponential>::Kernel, Source>(self, rate,
                                                                                      std::move(generator));
}

at::Tensor& cauchy(at::Tensor& self, double median, double scale, MaybeGenerator generator) {
  return templates::cauchy_impl_<Of<Distribution::kCauchy>::Kernel, Source>(self, median, scale,
                                                                            std::move(generator));
}

at::Tensor& geometric(at::Tensor& self, double p, MaybeGenerator generator) {
  return templates::geometric_impl_<Of<Distribution::kGeometric>::Kernel, Source>(self, p,
                                                                                  std::move(generator));
}

at::Tensor& bernoulli_number(at::Tensor& self, double p, MaybeGenerator generator) {
  return templates::bernoulli_impl_<Bernoulli, Source>(self, p, std::move(generator));
}

at::Tensor& bernoulli_tensor(at::Tensor& self, const at::Tensor& p, MaybeGenerator generator) {
  return templates::bernoulli_impl_<Bernoulli, Source>(self, p, std::move(generator));
}

at::Tensor& bernoulli_out(const at::Tensor& p, MaybeGenerator generator, at::Tensor& out) {
  return templates::bernoulli_out_impl<Bernoulli, Source>(out, p, std::move(generator));
}

at::Tensor& random(at::Tensor& self, MaybeGenerator generator) {
  const uint64_t range = range_of(self.scalar_type());
  if (range == 0) return at::cpu::random_(self, std::move(generator));
  if (self.numel() > 0) draw_integers(self, 0, range, generator);
  return self;
}

at::Tensor& random_from(at::Tensor& self, int64_t from, MaybeInt to, MaybeGenerator generator) {
  return templates::random_from_to_impl<FromTo, Source>(self, from, to, std::move(generator));
}

at::Tensor& random_to(at::Tensor& self, int64_t to, MaybeGenerator generator) {
  return random_from(self, 0, to, std::move(generator));
}

at::Tensor& randperm_out(int64_t count, MaybeGenerator generator, at::Tensor& out) {
  TORCH_CHECK(count >= 0, "n must be non-negative, got ", count);
  at::native::check_supported_max_int_with_precision(count, out);
  out.resize_({count});
  const at::Tensor values = ordered(out, at::kLong);
  permutation(draw_of(generator), count, values.data_ptr<int64_t>());
  write(values, out);
  return out;
}

}  // namespace

void register_random(Registrar& library) {
  library.impl("uniform_", uniform);
  library.impl("normal_", normal);
  library.impl("normal.Tensor_float", normal_of<const at::Tensor&, double>);
  library.impl("normal.Tensor_float_out", normal_out<const at::Tensor&, double>);
  library.impl("normal.float_Tensor", normal_of<double, const at::Tensor&>);
  library.impl("normal.float_Tensor_out", normal_out<double, const at::Tensor&>);
  library.impl("normal.Tensor_Tensor", normal_of<const at::Tensor&, const at::Tensor&>);
  library.impl("normal.Tensor_Tensor_out", normal_out<const at::Tensor&, const at::Tensor&>);
  library.impl("log_normal_", log_normal);
  library.impl("exponential_", exponential);
  library.impl("cauchy_", cauchy);
  library.impl("geometric_", geometric);
  library.impl("bernoulli_.float", bernoulli_number);
  library.impl("bernoulli_.Tensor", bernoulli_tensor);
  library.impl("bernoulli.out", bernoulli_out);
  library.impl("random_", random);
  library.impl("random_.from", random_from);
  library.impl("random_.to", random_to);
  library.impl("randperm.generator_out", randperm_out);
}

}  // namespace tutti::kernels

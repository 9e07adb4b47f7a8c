#include "tutti/transport/reduce.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/base/half.h"

namespace tutti::comm {
namespace {

// Elements combined at a time, chosen so that they stay in the first-level cache.
constexpr int64_t kChunk = 1024;

template <class T>
struct Complex {
  T real;
  T imaginary;

  friend Complex operator+(Complex a, Complex b) { return {a.real + b.real, a.imaginary + b.imaginary}; }
  friend Complex operator*(Complex a, Complex b) {
    return {a.real * b.real - a.imaginary * b.imaginary, a.real * b.imaginary + a.imaginary * b.real};
  }
  friend Complex operator/(Complex a, Complex b) { return {a.real / b.real, a.imaginary / b.real}; }
};

struct Sum {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a + b);
  }
};
struct Product {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a * b);
  }
};
struct BitAnd {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct BitOr {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct BitXor {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};
// NaN wins, as in torch::amin.
struct Min {
  template <class T>
  static T apply(T a, T b) {
    return (b < a || b != b) ? b : a;
  }
};
struct Max {
  template <class T>
  static T apply(T a, T b) {
    return (b > a || b != b) ? b : a;
  }
};

// Integers are added as unsigned integers, for which overflow is defined; the smaller ones as int, before
// they are cut off.
template <class T>
struct Arithmetic {
  using Type = T;
};
template <>
struct Arithmetic<int32_t> {
  using Type = uint32_t;
};
template <>
struct Arithmetic<int64_t> {
  using Type = uint64_t;
};
template <>
struct Arithmetic<Float16> {
  using Type = float;
};
template <>
struct Arithmetic<BFloat16> {
  using Type = float;
};

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;

// Comparisons need the signed type.
template <class T, class Op>
using Type = std::conditional_t<(std::is_same_v<Op, Sum> || std::is_same_v<Op, Product>) || kIsHalf<T>,
                                typename Arithmetic<T>::Type, T>;

// Types of which there are averages.
template <class A>
inline constexpr bool kDivides = std::is_floating_point_v<A>;
template <class A>
inline constexpr bool kDivides<Complex<A>> = true;

template <class A>
A number_as(double number) {
  if constexpr (std::is_floating_point_v<A>) {
    return static_cast<A>(number);
  } else {
    return {static_cast<decltype(A::real)>(number), 0};
  }
}

template <class Op, class A>
void combine(A* to, const A* a, const A* b, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = Op::apply(a[i], b[i]);
}

// Rounds the values to the precision of T.
template <class T, class A>
void round_to(A* values, int64_t count) {
  if constexpr (sizeof(T) != sizeof(A)) {
    for (int64_t i = 0; i < count; ++i) values[i] = static_cast<A>(static_cast<T>(values[i]));
  }
}

template <class T, class A>
void store(std::byte* to, const A* from, int64_t count) {
  if constexpr (sizeof(T) == sizeof(A)) {
    if (count > 0) std::memcpy(to, from, static_cast<size_t>(count) * sizeof(T));
  } else {
    for (int64_t i = 0; i < count; ++i) reinterpret_cast<T*>(to)[i] = static_cast<T>(from[i]);
  }
}

// Returns the elements in place if T and A have the same size, else converts them into `scratch`.
template <class T, class A>
const A* load(const std::byte* from, int64_t count, A* scratch) {
  const auto* elements = reinterpret_cast<const T*>(from);
  if constexpr (sizeof(T) == sizeof(A)) {
    return reinterpret_cast<const A*>(elements);
  } else {
    for (int64_t i = 0; i < count; ++i) scratch[i] = static_cast<A>(elements[i]);
    return scratch;
  }
}

size_t depth_of(const Program& program) {
  size_t depth = 0;
  size_t most = 0;
  for (const int code : program) {
    depth = code == kCombine ? depth - 1 : depth + 1;
    most = std::max(most, depth);
  }
  return most;
}

template <class T, class Op>
void reduce_as(std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs,
               const Reduction& reduction, const Program& program) {
  using A = Type<T, Op>;
  const size_t depth = depth_of(program);
  // Small reductions are so frequent that the time to clear the scratch memory would be noticeable.
  const auto scratch = std::make_unique_for_overwrite<A[]>(depth * kChunk);
  const auto stack = std::make_unique_for_overwrite<const A*[]>(depth);
  for (int64_t offset = 0; offset < reduction.count; offset += kChunk) {
    const int64_t count = std::min(kChunk, reduction.count - offset);
    const int64_t at = offset * static_cast<int64_t>(sizeof(T));
    size_t top = 0;
    for (const int code : program) {
      if (code == kCombine) {
        --top;
        A* result = &scratch[(top - 1) * kChunk];
        combine<Op>(result, stack[top - 1], stack[top], count);
        if (reduction.round_each) round_to<T>(result, count);
        stack[top - 1] = result;
      } else {
        stack[top] = load<T>(inputs[static_cast<size_t>(code)] + at, count, &scratch[top * kChunk]);
        ++top;
      }
    }
    const A* result = stack[0];
    if constexpr (kDivides<A>) {
      if (reduction.op == ReduceOp::Average) {
        const A parts = number_as<A>(static_cast<double>(
            reduction.parts != 0 ? reduction.parts : static_cast<int64_t>(inputs.size())));
        for (int64_t i = 0; i < count; ++i) scratch[static_cast<size_t>(i)] = result[i] / parts;
        result = scratch.get();
      }
    }
    if constexpr (kDivides<A>) {
      if (reduction.divisor != 0) {
        const A divisor = number_as<A>(reduction.divisor);
        for (int64_t i = 0; i < count; ++i)
          scratch[static_cast<size_t>(i)] = static_cast<A>(static_cast<T>(result[i])) / divisor;
        result = scratch.get();
      }
    }
    for (std::byte* output : outputs) store<T>(output + at, result, count);
  }
}

template <class T>
void reduce_complex(std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs,
                    const Reduction& reduction, const Program& program) {
  if (reduction.op == ReduceOp::Product)
    return reduce_as<Complex<T>, Product>(inputs, outputs, reduction, program);
  reduce_as<Complex<T>, Sum>(inputs, outputs, reduction, program);
}

template <class T>
void reduce_bits(std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs,
                 const Reduction& reduction, const Program& program) {
  if (reduction.op == ReduceOp::BitAnd) return reduce_as<T, BitAnd>(inputs, outputs, reduction, program);
  if (reduction.op == ReduceOp::BitOr) return reduce_as<T, BitOr>(inputs, outputs, reduction, program);
  reduce_as<T, BitXor>(inputs, outputs, reduction, program);
}

template <class T>
void reduce_with(std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs,
                 const Reduction& reduction, const Program& program) {
  switch (reduction.op) {
    case ReduceOp::BitAnd:
    case ReduceOp::BitOr:
    case ReduceOp::BitXor:
      if constexpr (std::is_integral_v<T>) return reduce_bits<T>(inputs, outputs, reduction, program);
      return require_reducible(reduction.type, reduction.op);
    case ReduceOp::Sum:
    case ReduceOp::Average:
      return reduce_as<T, Sum>(inputs, outputs, reduction, program);
    case ReduceOp::Min:
      return reduce_as<T, Min>(inputs, outputs, reduction, program);
    case ReduceOp::Max:
      return reduce_as<T, Max>(inputs, outputs, reduction, program);
    case ReduceOp::Product:
      return reduce_as<T, Product>(inputs, outputs, reduction, program);
  }
}

void require_no_bits(ElementType type, ReduceOp op) {
  if (op >= ReduceOp::BitAnd)
    fail(ErrorKind::InvalidArgument,
         "the bits of {} elements cannot be combined, only those of integers and bool", name_of(type));
}

template <class From, class To>
void convert_each(const std::byte* from, std::byte* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    reinterpret_cast<To*>(to)[i] = static_cast<To>(reinterpret_cast<const From*>(from)[i]);
}

}  // namespace

ElementRange slice_of(int64_t count, int rank, int world) {
  constexpr int64_t kUnit = 64;
  const int64_t units = (count + kUnit - 1) / kUnit;
  const int64_t begin = units * rank / world * kUnit;
  const int64_t end = units * (rank + 1) / world * kUnit;
  return {std::min(begin, count), std::min(end, count)};
}

std::vector<ElementRange> even_slices(int64_t count, int world) {
  std::vector<ElementRange> slices;
  for (int rank = 0; rank < world; ++rank) slices.push_back(slice_of(count, rank, world));
  return slices;
}

void require_reducible(ElementType type, ReduceOp op) {
  if (op < ReduceOp::Sum || op > ReduceOp::BitXor)
    fail(ErrorKind::InvalidArgument, "{} is not a ReduceOp", static_cast<int>(op));
  switch (type) {
    case ElementType::Float32:
    case ElementType::Float64:
    case ElementType::Float16:
    case ElementType::BFloat16:
      require_no_bits(type, op);
      return;
    case ElementType::Complex64:
    case ElementType::Complex128:
      require_no_bits(type, op);
      if (op == ReduceOp::Min || op == ReduceOp::Max)
        fail(ErrorKind::InvalidArgument, "complex numbers have no order: there is no {} of {}",
             op == ReduceOp::Min ? "minimum" : "maximum", name_of(type));
      return;
    case ElementType::Int8:
    case ElementType::Int16:
    case ElementType::Int32:
    case ElementType::Int64:
    case ElementType::UInt8:
    case ElementType::Bool:
      if (op == ReduceOp::Average)
        fail(ErrorKind::InvalidArgument,
             "the average of {} elements would not be of the same type; sum them instead", name_of(type));
      return;
  }
  fail(ErrorKind::InvalidArgument,
       "elements of the type with number {} cannot be reduced; the supported types are float32, float64, "
       "bfloat16, float16, complex64, complex128, int8, int16, int32, int64, uint8 and bool",
       static_cast<int>(type));
}

std::vector<Root> roots_of(std::span<const Source> sources, int64_t leaves) {
  std::vector<Root> roots;
  for (size_t i = 0; i < sources.size(); ++i) {
    Root& root = roots.emplace_back(Root{sources[i].place, {}});
    if (sources[i].present) root.program.push_back(static_cast<int>(i));
    join_complete(roots, 0, first_leaf(sources[0].place), end_of_leaves(sources[i].place, leaves), leaves,
                  [](Root& left, const Root& right) {
                    const bool both = !left.program.empty() && !right.program.empty();
                    left.program.insert(left.program.end(), right.program.begin(), right.program.end());
                    if (both) left.program.push_back(kCombine);
                  });
  }
  return roots;
}

Sources sources_of(std::vector<Source> all, int64_t leaves) {
  const std::vector<Root> roots = roots_of(all, leaves);
  TUTTI_CHECK(roots.size() == 1, "{} sources do not make the tree over {} leaves", all.size(), leaves);
  bool one_by_rank = static_cast<int64_t>(all.size()) == leaves;
  for (size_t i = 0; i < all.size(); ++i)
    one_by_rank = one_by_rank && all[i].present && all[i].rank == static_cast<int>(i);
  return {std::move(all), leaves, roots[0].program, one_by_rank};
}

Sources one_by_rank(int world) {
  std::vector<Source> all;
  for (int rank = 0; rank < world; ++rank) all.push_back({{0, rank}, rank});
  return sources_of(std::move(all), world);
}

void reduce(std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs,
            const Reduction& reduction, const Program& program) {
  TUTTI_CHECK(!program.empty(), "nothing to reduce");
  switch (reduction.type) {
    case ElementType::Float32:
      return reduce_with<float>(inputs, outputs, reduction, program);
    case ElementType::Float64:
      return reduce_with<double>(inputs, outputs, reduction, program);
    case ElementType::Float16:
      return reduce_with<Float16>(inputs, outputs, reduction, program);
    case ElementType::BFloat16:
      return reduce_with<BFloat16>(inputs, outputs, reduction, program);
    case ElementType::Complex64:
      return reduce_complex<float>(inputs, outputs, reduction, program);
    case ElementType::Complex128:
      return reduce_complex<double>(inputs, outputs, reduction, program);
    case ElementType::Int8:
      return reduce_with<int8_t>(inputs, outputs, reduction, program);
    case ElementType::Int16:
      return reduce_with<int16_t>(inputs, outputs, reduction, program);
    case ElementType::Int32:
      return reduce_with<int32_t>(inputs, outputs, reduction, program);
    case ElementType::Int64:
      return reduce_with<int64_t>(inputs, outputs, reduction, program);
    case ElementType::UInt8:
      return reduce_with<uint8_t>(inputs, outputs, reduction, program);
    case ElementType::Bool: {
      // The values are 0 or 1: Max is "any" and Min is "all".
      Reduction bits = reduction;
      if (reduction.op == ReduceOp::Sum) bits.op = ReduceOp::Max;
      if (reduction.op == ReduceOp::Product) bits.op = ReduceOp::Min;
      return reduce_with<uint8_t>(inputs, outputs, bits, program);
    }
  }
  require_reducible(reduction.type, reduction.op);
}

ElementType sum_type(ElementType type) {
  const bool half = type == ElementType::Float16 || type == ElementType::BFloat16;
  return half ? ElementType::Float32 : type;
}

void convert(const std::byte* from, ElementType type_from, std::byte* to, ElementType type_to,
             int64_t count) {
  if (type_from == type_to) {
    if (count > 0 && from != to) std::memcpy(to, from, static_cast<size_t>(count) * size_of(type_to));
  } else if (type_from == ElementType::Float16) {
    convert_each<Float16, float>(from, to, count);
  } else if (type_from == ElementType::BFloat16) {
    convert_each<BFloat16, float>(from, to, count);
  } else if (type_to == ElementType::Float16) {
    convert_each<float, Float16>(from, to, count);
  } else {
    convert_each<float, BFloat16>(from, to, count);
  }
}

}  // namespace tutti::comm

#include "tutti/data/tables/arrow_values.h"

#include <arrow/array.h>
#include <arrow/type.h>
#include <arrow/type_traits.h>
#include <cmath>
#include <limits>
#include <type_traits>

#include <c10/util/Half.h>
#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/data/tables/table.h"

namespace tutti::data {
namespace {

constexpr float kMissing = std::numeric_limits<float>::quiet_NaN();

// Calls `act` with the array, cast to its concrete type.
template <class Do>
void with_numbers(const arrow::Array& array, Do&& act) {
  using arrow::Type;
  switch (array.type_id()) {
    case Type::BOOL:
      return act(static_cast<const arrow::BooleanArray&>(array));
    case Type::INT8:
      return act(static_cast<const arrow::Int8Array&>(array));
    case Type::INT16:
      return act(static_cast<const arrow::Int16Array&>(array));
    case Type::INT32:
      return act(static_cast<const arrow::Int32Array&>(array));
    case Type::INT64:
      return act(static_cast<const arrow::Int64Array&>(array));
    case Type::UINT8:
      return act(static_cast<const arrow::UInt8Array&>(array));
    case Type::UINT16:
      return act(static_cast<const arrow::UInt16Array&>(array));
    case Type::UINT32:
      return act(static_cast<const arrow::UInt32Array&>(array));
    case Type::UINT64:
      return act(static_cast<const arrow::UInt64Array&>(array));
    case Type::HALF_FLOAT:
      return act(static_cast<const arrow::HalfFloatArray&>(array));
    case Type::FLOAT:
      return act(static_cast<const arrow::FloatArray&>(array));
    case Type::DOUBLE:
      return act(static_cast<const arrow::DoubleArray&>(array));
    default:
      fail(ErrorKind::Bug, "an Arrow array of type {} does not contain numbers", array.type()->ToString());
  }
}

// Returns "" if the float represents the number: it is the nearest one and, for a whole number, equal to it.
template <class Number>
std::string why_not_held(Number number, float held) {
  if constexpr (std::is_same_v<Number, double>) {
    if (std::isinf(held) && !std::isinf(number)) return fmt::format("{} is too large for a float32", number);
  } else if constexpr (std::is_integral_v<Number> && sizeof(Number) >= sizeof(float)) {
    // A long double represents every 64-bit number exactly.
    if (static_cast<long double>(number) != static_cast<long double>(held))
      return not_exact(std::to_string(number), held);
  }
  return "";
}

}  // namespace

bool is_number(const arrow::DataType& type) {
  // The type NA is that of a column with only nulls.
  return type.id() == arrow::Type::NA || type.id() == arrow::Type::BOOL || arrow::is_integer(type.id()) ||
         arrow::is_floating(type.id());
}

bool is_list(const arrow::DataType& type) {
  return type.id() == arrow::Type::LIST || type.id() == arrow::Type::LARGE_LIST ||
         type.id() == arrow::Type::FIXED_SIZE_LIST;
}

bool can_be_id(const arrow::DataType& type) {
  if (type.id() == arrow::Type::DICTIONARY)
    return can_be_id(*static_cast<const arrow::DictionaryType&>(type).value_type());
  return arrow::is_integer(type.id()) || arrow::is_base_binary_like(type.id()) ||
         arrow::is_binary_view_like(type.id());
}

std::string text_of(const arrow::Array& array, int64_t i) {
  using arrow::Type;
  if (array.IsNull(i)) return "";
  switch (array.type_id()) {
    case Type::STRING:
    case Type::BINARY:
      return static_cast<const arrow::BinaryArray&>(array).GetString(i);
    case Type::LARGE_STRING:
    case Type::LARGE_BINARY:
      return static_cast<const arrow::LargeBinaryArray&>(array).GetString(i);
    case Type::STRING_VIEW:
    case Type::BINARY_VIEW:
      return static_cast<const arrow::BinaryViewArray&>(array).GetString(i);
    case Type::DICTIONARY: {
      const auto& coded = static_cast<const arrow::DictionaryArray&>(array);
      return text_of(*coded.dictionary(), coded.GetValueIndex(i));
    }
    default:
      break;
  }
  std::string text;
  with_numbers(array, [&](const auto& numbers) { text = fmt::format("{}", numbers.Value(i)); });
  return text;
}

void append_floats(const arrow::Array& array, std::vector<float>& to, const ReportProblem& wrong) {
  if (array.type_id() == arrow::Type::NA) {
    to.insert(to.end(), static_cast<size_t>(array.length()), kMissing);
    return;
  }
  const auto begin = static_cast<ptrdiff_t>(to.size());
  with_numbers(array, [&](const auto& numbers) {
    using Numbers = std::decay_t<decltype(numbers)>;
    for (int64_t i = 0; i < numbers.length(); ++i) {
      if constexpr (std::is_same_v<Numbers, arrow::HalfFloatArray>) {
        to.push_back(c10::Half(numbers.Value(i), c10::Half::from_bits()));
      } else {
        to.push_back(static_cast<float>(numbers.Value(i)));
      }
      const std::string why = why_not_held(numbers.Value(i), to.back());
      if (!why.empty() && !numbers.IsNull(i)) wrong(i, why);
    }
  });
  for (int64_t i = 0; array.null_count() > 0 && i < array.length(); ++i) {
    if (array.IsNull(i)) to[static_cast<size_t>(begin + i)] = kMissing;
  }
}

template <class Array>
void ListColumn::take(const Array& array, const ReportProblem& wrong) {
  // The values of all lists, and those between the lists.
  append_floats(*array.values(), numbers_, [&](int64_t value, const std::string& why) {
    for (int64_t i = 0; i < array.length(); ++i) {
      if (value >= array.value_offset(i) && value < array.value_offset(i) + array.value_length(i))
        wrong(i, why);
    }
  });
  for (int64_t i = 0; i < array.length(); ++i)
    add(array.value_offset(i), array.IsNull(i) ? 0 : array.value_length(i));
}

ListColumn::ListColumn(const arrow::Array& array, const ReportProblem& wrong) {
  if (!is_list(*array.type())) {
    append_floats(array, numbers_, wrong);
    for (int64_t i = 0; i < array.length(); ++i) add(i, 1);
    return;
  }
  if (array.type_id() == arrow::Type::LIST) {
    take(static_cast<const arrow::ListArray&>(array), wrong);
  } else if (array.type_id() == arrow::Type::LARGE_LIST) {
    take(static_cast<const arrow::LargeListArray&>(array), wrong);
  } else {
    take(static_cast<const arrow::FixedSizeListArray&>(array), wrong);
  }
}

}  // namespace tutti::data

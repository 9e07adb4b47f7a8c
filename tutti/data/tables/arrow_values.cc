#include "tutti/data/tables/arrow_values.h"

#include <arrow/array.h>
#include <arrow/scalar.h>
#include <arrow/type.h>
#include <arrow/type_traits.h>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <type_traits>

#include <c10/util/Half.h>
#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/data/tables/cell_values.h"
#include "tutti/data/tables/cells.h"
#include "tutti/data/tables/table.h"

namespace tutti::data {
namespace {

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

template <class Array>
auto number_at(const Array& array, int64_t i) {
  if constexpr (std::is_same_v<Array, arrow::HalfFloatArray>)
    return static_cast<float>(c10::Half(array.Value(i), c10::Half::from_bits()));
  else
    return array.Value(i);
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

// Returns "" if the number is a whole one in the range of an int64. Large floating-point numbers are refused:
// where not all whole numbers are exact, the number may have been rounded when it was written.
template <class Number>
std::string why_not_whole(Number number) {
  if constexpr (std::is_floating_point_v<Number>) {
    constexpr auto kExactUpTo = static_cast<Number>(int64_t{1} << std::numeric_limits<Number>::digits);
    if (number != std::floor(number)) return fmt::format("{} is not a whole number", number);
    if (std::abs(number) > kExactUpTo)
      return fmt::format("{:.0f} is too large to be exact as a float{}; store the column as integers", number,
                         8 * sizeof(Number));
  } else if constexpr (std::is_same_v<Number, uint64_t>) {
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      return fmt::format("{} does not fit into an int64", number);
  }
  return "";
}

bool is_number(const arrow::DataType& type) {
  // A column with only nulls has the type NA.
  return type.id() == arrow::Type::NA || type.id() == arrow::Type::BOOL || arrow::is_integer(type.id()) ||
         arrow::is_floating(type.id());
}

bool is_list(const arrow::DataType& type) {
  return type.id() == arrow::Type::LIST || type.id() == arrow::Type::LARGE_LIST ||
         type.id() == arrow::Type::FIXED_SIZE_LIST;
}

// Calls `act` with the array, cast to its concrete type.
template <class Do>
void with_lists(const arrow::Array& array, Do&& act) {
  if (array.type_id() == arrow::Type::LIST) return act(static_cast<const arrow::ListArray&>(array));
  if (array.type_id() == arrow::Type::LARGE_LIST)
    return act(static_cast<const arrow::LargeListArray&>(array));
  act(static_cast<const arrow::FixedSizeListArray&>(array));
}

// Returns true for null and NaN.
bool is_missing_number(const arrow::Array& array, int64_t i) {
  if (array.type_id() == arrow::Type::NA || array.IsNull(i)) return true;
  bool is_nan = false;
  with_numbers(array, [&](const auto& numbers) {
    const auto number = number_at(numbers, i);
    is_nan = number != number;
  });
  return is_nan;
}

void append_whole_numbers(const arrow::Array& array, const CellType& cells, std::vector<int64_t>& to,
                          const ReportProblem& wrong) {
  with_numbers(array, [&](const auto& numbers) {
    for (int64_t i = 0; i < numbers.length(); ++i) {
      const auto number = number_at(numbers, i);
      to.push_back(0);
      if (numbers.IsNull(i) || number != number) {
        if (!set_missing(cells, to.back())) wrong(i, std::string(must_not_be_missing()));
      } else if (const std::string why = why_not_whole(number); !why.empty()) {
        wrong(i, why);
      } else {
        // NOLINTNEXTLINE(bugprone-signed-char-misuse): an int8 is a number here
        to.back() = static_cast<int64_t>(number);
      }
    }
  });
}

void append_buckets(const arrow::Array& array, const CellType& cells, const TextFormat& format,
                    std::vector<int64_t>& to) {
  const int64_t missing = cells.missing.value_or(-1);
  if (array.type_id() == arrow::Type::DICTIONARY) {
    const auto& coded = static_cast<const arrow::DictionaryArray&>(array);
    std::vector<int64_t> buckets;
    append_buckets(*coded.dictionary(), cells, format, buckets);
    for (int64_t i = 0; i < array.length(); ++i)
      to.push_back(array.IsNull(i) ? missing : buckets[static_cast<size_t>(coded.GetValueIndex(i))]);
    return;
  }
  std::string scratch;
  for (int64_t i = 0; i < array.length(); ++i) {
    const std::string_view text = trimmed(text_of(array, i, scratch));
    to.push_back(is_missing(text, format) ? missing : bucket_of(text, cells.buckets));
  }
}

}  // namespace

bool can_be_id(const arrow::DataType& type) {
  if (type.id() == arrow::Type::DICTIONARY)
    return can_be_id(*static_cast<const arrow::DictionaryType&>(type).value_type());
  return arrow::is_integer(type.id()) || arrow::is_base_binary_like(type.id()) ||
         arrow::is_binary_view_like(type.id());
}

std::string expected_instead(const arrow::DataType& type, const TableKind& kind) {
  const bool is_category = kind.cells.is == CellType::Is::Category;
  const auto fits = [&](const arrow::DataType& value) {
    return is_category ? can_be_id(value) || value.id() == arrow::Type::NA : is_number(value);
  };
  if (fits(type) || (!kind.is_dense() && is_list(type) && fits(*type.field(0)->type()))) return "";
  const char* const values = is_category ? "texts or whole numbers" : "numbers";
  return kind.is_dense() ? values : fmt::format("{0} or lists of {0}", values);
}

std::string_view text_of(const arrow::Array& array, int64_t i, std::string& scratch) {
  using arrow::Type;
  if (array.IsNull(i) || array.type_id() == Type::NA) return "";
  switch (array.type_id()) {
    case Type::STRING:
    case Type::BINARY:
      return static_cast<const arrow::BinaryArray&>(array).GetView(i);
    case Type::LARGE_STRING:
    case Type::LARGE_BINARY:
      return static_cast<const arrow::LargeBinaryArray&>(array).GetView(i);
    case Type::STRING_VIEW:
    case Type::BINARY_VIEW:
      return static_cast<const arrow::BinaryViewArray&>(array).GetView(i);
    case Type::DICTIONARY: {
      const auto& coded = static_cast<const arrow::DictionaryArray&>(array);
      return text_of(*coded.dictionary(), coded.GetValueIndex(i), scratch);
    }
    default:
      break;
  }
  scratch.clear();
  if (is_number(*array.type())) {
    with_numbers(array, [&](const auto& numbers) {
      fmt::format_to(std::back_inserter(scratch), "{}", number_at(numbers, i));
    });
  } else if (const auto scalar = array.GetScalar(i); scalar.ok()) {
    scratch = (*scalar)->ToString();
  }
  return scratch;
}

void each_text(const arrow::Array& array, const std::function<void(std::string_view)>& visit) {
  if (is_list(*array.type())) {
    with_lists(array, [&](const auto& lists) {
      for (int64_t i = 0; i < lists.length(); ++i) {
        if (lists.IsNull(i))
          visit("");
        else
          each_text(*lists.value_slice(i), visit);
      }
    });
    return;
  }
  std::string scratch;
  for (int64_t i = 0; i < array.length(); ++i) visit(text_of(array, i, scratch));
}

void append_values(const arrow::Array& array, const CellType& cells, const TextFormat&,
                   std::vector<float>& to, const ReportProblem& wrong) {
  const auto append_missing = [&] { set_missing(cells, to.emplace_back()); };
  if (array.type_id() == arrow::Type::NA) {
    for (int64_t i = 0; i < array.length(); ++i) append_missing();
    return;
  }
  with_numbers(array, [&](const auto& numbers) {
    for (int64_t i = 0; i < numbers.length(); ++i) {
      if (numbers.IsNull(i)) {
        append_missing();
        continue;
      }
      const auto number = number_at(numbers, i);
      to.push_back(static_cast<float>(number));
      if (const std::string why = why_not_held(number, to.back()); !why.empty()) wrong(i, why);
    }
  });
}

void append_values(const arrow::Array& array, const CellType& cells, const TextFormat& format,
                   std::vector<int64_t>& to, const ReportProblem& wrong) {
  if (cells.is == CellType::Is::Category) return append_buckets(array, cells, format, to);
  if (array.type_id() != arrow::Type::NA) return append_whole_numbers(array, cells, to, wrong);
  for (int64_t i = 0; i < array.length(); ++i) {
    if (!set_missing(cells, to.emplace_back())) wrong(i, std::string(must_not_be_missing()));
  }
}

template <class Value>
template <class Array>
void ListColumn<Value>::append_lists(const Array& array, const TableKind& kind, const TextFormat& format,
                                     const ReportProblem& wrong) {
  for (int64_t i = 0; i < array.length(); ++i)
    lists_.emplace_back(array.value_offset(i), array.IsNull(i) ? 0 : array.value_length(i));
  std::vector<int64_t> row_of;  // of each value; -1 between lists
  append_values(*array.values(), kind.cells, format, values_, [&](int64_t value, const std::string& why) {
    if (row_of.empty()) {
      row_of.resize(static_cast<size_t>(array.values()->length()), -1);
      for (size_t row = 0; row < lists_.size(); ++row) {
        for (int64_t k = 0; k < lists_[row].second; ++k)
          row_of[static_cast<size_t>(lists_[row].first + k)] = static_cast<int64_t>(row);
      }
    }
    const int64_t row = row_of[static_cast<size_t>(value)];
    if (row >= 0) wrong(row, why);
  });
  if (kind.form == TableKind::Form::Indices) drop_missing(*array.values());
}

template <class Value>
void ListColumn<Value>::drop_missing(const arrow::Array& values) {
  std::vector<Value> kept;
  for (auto& [begin, length] : lists_) {
    const auto first = static_cast<int64_t>(kept.size());
    for (int64_t k = begin; k < begin + length; ++k) {
      if (!is_missing_number(values, k)) kept.push_back(values_[static_cast<size_t>(k)]);
    }
    begin = first;
    length = static_cast<int64_t>(kept.size()) - first;
  }
  values_ = std::move(kept);
}

template <class Value>
ListColumn<Value>::ListColumn(const arrow::Array& array, const TableKind& kind, const TextFormat& format,
                              const ReportProblem& wrong) {
  if (is_list(*array.type())) {
    with_lists(array, [&](const auto& lists) { append_lists(lists, kind, format, wrong); });
    return;
  }
  append_values(array, kind.cells, format, values_, wrong);
  for (int64_t i = 0; i < array.length(); ++i) lists_.emplace_back(i, 1);
  if (kind.form == TableKind::Form::Indices) drop_missing(array);
}

template class ListColumn<float>;
template class ListColumn<int64_t>;

}  // namespace tutti::data

#include "tutti/base/json.h"

#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include <nlohmann/json.hpp>

namespace tutti {
namespace {

// Returns the text of the error without its prefix in brackets, such as "[json.exception.parse_error.101] ".
std::string readable(const std::exception& error) {
  const std::string text = error.what();
  const auto bracket = text.find("] ");
  return bracket == std::string::npos ? text : text.substr(bracket + 2);
}

// Receives every event of a parse. Throws at a duplicate key in an object, and if nesting is too deep.
template <class AnyJson>
class Inspector {
 public:
  Inspector(std::string_view what, ErrorKind kind) : what_(what), kind_(kind) {}

  bool operator()(int depth, typename AnyJson::parse_event_t event, const AnyJson& parsed) {
    using Event = typename AnyJson::parse_event_t;
    if (depth >= kDeepestJson && (event == Event::object_start || event == Event::array_start))
      fail(kind_, "{}: lists and objects are nested more than {} deep", what_, kDeepestJson);
    if (event == Event::object_start) open_.emplace_back();
    if (event == Event::object_end) open_.pop_back();
    if (event == Event::key && !open_.back().insert(parsed.template get<std::string>()).second)
      fail(kind_, "{}: the key '{}' occurs twice in one object", what_, parsed.template get<std::string>());
    return true;
  }

 private:
  const std::string_view what_;
  const ErrorKind kind_;
  std::vector<std::set<std::string>> open_;  // the keys of every object that has not ended yet
};

template <class AnyJson>
AnyJson parse_any(std::string_view text, std::string_view what, ErrorKind kind) {
  Inspector<AnyJson> inspector(what, kind);
  try {
    return AnyJson::parse(
        text, [&inspector](int depth, typename AnyJson::parse_event_t event, const AnyJson& parsed) {
          return inspector(depth, event, parsed);
        });
  } catch (const typename AnyJson::exception& error) {
    fail(kind, "{} is not JSON: {}", what, readable(error));
  }
}

template <class AnyJson>
std::string_view type_name(const AnyJson& value) {
  using Type = typename AnyJson::value_t;
  switch (value.type()) {
    case Type::null:
      return "null";
    case Type::object:
      return "an object";
    case Type::array:
      return "a list";
    case Type::string:
      return "a string";
    case Type::boolean:
      return "true or false";
    default:
      return "a number";
  }
}

template <class Value, class AnyJson>
bool holds(const AnyJson& value) {
  if constexpr (std::is_same_v<Value, int64_t>) {
    constexpr auto kGreatest = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    return value.is_number_unsigned() ? value.template get<uint64_t>() <= kGreatest
                                      : value.is_number_integer();
  } else if constexpr (std::is_same_v<Value, double>) {
    return value.is_number();
  } else if constexpr (std::is_same_v<Value, bool>) {
    return value.is_boolean();
  } else {
    return value.is_string();
  }
}

template <class Value>
std::string_view wanted() {
  if constexpr (std::is_same_v<Value, int64_t>) return "a whole number";
  if constexpr (std::is_same_v<Value, double>) return "a number";
  if constexpr (std::is_same_v<Value, bool>) return "true or false";
  return "a string";
}

template <class AnyJson>
void require_object(const AnyJson& object, std::string_view what) {
  if (object.is_object()) return;
  fail(ErrorKind::DataLoss, "{}: expected an object, but found {}", what, type_name(object));
}

template <class Value, class AnyJson>
Value checked(const AnyJson& value, std::string_view key, std::string_view what) {
  if (holds<Value>(value)) return value.template get<Value>();
  constexpr size_t kLongest = 40;
  fail(ErrorKind::DataLoss, "{}: '{}' should be {}, but it is {} ({})", what, key, wanted<Value>(),
       type_name(value), value.dump(-1, ' ', false, AnyJson::error_handler_t::replace).substr(0, kLongest));
}

}  // namespace

Json parse_json(std::string_view text, std::string_view what, ErrorKind kind) {
  return parse_any<Json>(text, what, kind);
}

SortedJson parse_sorted_json(std::string_view text, std::string_view what, ErrorKind kind) {
  return parse_any<SortedJson>(text, what, kind);
}

template <class Value, class AnyJson>
Value value_in(const AnyJson& object, std::string_view key, std::string_view what) {
  require_object(object, what);
  const auto found = object.find(std::string(key));
  if (found == object.end()) fail(ErrorKind::DataLoss, "{}: '{}' is missing", what, key);
  return checked<Value>(*found, key, what);
}

template <class Value, class AnyJson>
Value value_in(const AnyJson& object, std::string_view key, std::string_view what, const Value& fallback) {
  require_object(object, what);
  const auto found = object.find(std::string(key));
  return found == object.end() ? fallback : checked<Value>(*found, key, what);
}

#define TUTTI_VALUES_IN(AnyJson, Value)                                               \
  template Value value_in<Value>(const AnyJson&, std::string_view, std::string_view); \
  template Value value_in<Value>(const AnyJson&, std::string_view, std::string_view, const Value&);
TUTTI_VALUES_IN(Json, int64_t)
TUTTI_VALUES_IN(Json, double)
TUTTI_VALUES_IN(Json, bool)
TUTTI_VALUES_IN(Json, std::string)
TUTTI_VALUES_IN(SortedJson, int64_t)
TUTTI_VALUES_IN(SortedJson, double)
TUTTI_VALUES_IN(SortedJson, bool)
TUTTI_VALUES_IN(SortedJson, std::string)
#undef TUTTI_VALUES_IN

std::string_view json_type_name(const Json& value) { return type_name(value); }
std::string_view json_type_name(const SortedJson& value) { return type_name(value); }

}  // namespace tutti

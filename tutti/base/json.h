#pragma once

#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "tutti/base/error.h"

namespace tutti {

// Objects keep their keys in the order of the text.
using Json = nlohmann::ordered_json;
// Objects are sorted by key, which makes looking up one of many keys fast.
using SortedJson = nlohmann::json;

// The maximum nesting depth of lists and objects. The library copies, compares and prints a value by
// recursion, so that unlimited nesting would overflow the stack.
inline constexpr int kDeepestJson = 100;

// Every JSON text is parsed by one of these functions. `what` names the text in the error ("run.json",
// "TF_CONFIG"), which includes line and column. The error is an InvalidArgument, for texts written by a
// person; pass DataLoss for texts written by a program. A key that occurs twice in an object is an error too,
// because one of the two values would be lost; so is nesting deeper than kDeepestJson.
Json parse_json(std::string_view text, std::string_view what, ErrorKind kind = ErrorKind::InvalidArgument);
SortedJson parse_sorted_json(std::string_view text, std::string_view what,
                             ErrorKind kind = ErrorKind::InvalidArgument);

// Returns a value of exactly this type from an object that a program wrote; otherwise throws a DataLoss that
// names `what`, the key and the value found. Supports int64_t, double (which accepts whole numbers too), bool
// and std::string. The library's own get() would accept true as 1, and truncate 0.5 to 0.
template <class Value, class AnyJson>
Value value_in(const AnyJson& object, std::string_view key, std::string_view what);
// Like above, but returns `fallback` if the object does not have the key.
template <class Value, class AnyJson>
Value value_in(const AnyJson& object, std::string_view key, std::string_view what, const Value& fallback);

// Returns "a number", "an object", and so on, for errors about a value of the wrong type.
std::string_view json_type_name(const Json& value);
std::string_view json_type_name(const SortedJson& value);

}  // namespace tutti

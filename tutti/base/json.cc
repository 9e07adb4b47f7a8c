#include "tutti/base/json.h"

#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/base/error.h"

namespace tutti {
namespace {

// "[json.exception.parse_error.101] parse error at line 1, column 2: ..." without the part in brackets.
std::string readable(const Json::exception& error) {
  const std::string text = error.what();
  const auto bracket = text.find("] ");
  return bracket == std::string::npos ? text : text.substr(bracket + 2);
}

// Sees every event of a parse and stops at a key that its object has already.
class UniqueKeys {
 public:
  explicit UniqueKeys(std::string_view what) : what_(what) {}

  bool operator()(int /*depth*/, Json::parse_event_t event, const Json& parsed) {
    if (event == Json::parse_event_t::object_start) open_.emplace_back();
    if (event == Json::parse_event_t::object_end) open_.pop_back();
    if (event == Json::parse_event_t::key && !open_.back().insert(parsed.get<std::string>()).second) {
      fail(ErrorKind::InvalidArgument, "{}: the key '{}' stands twice in one object", what_,
           parsed.get<std::string>());
    }
    return true;
  }

 private:
  std::string_view what_;
  std::vector<std::set<std::string>> open_;
};

}  // namespace

Json parse_json(std::string_view text, std::string_view what) {
  UniqueKeys keys(what);
  try {
    return Json::parse(text, [&keys](int depth, Json::parse_event_t event, const Json& parsed) {
      return keys(depth, event, parsed);
    });
  } catch (const Json::exception& error) {
    fail(ErrorKind::InvalidArgument, "{} is not JSON: {}", what, readable(error));
  }
}

std::string_view json_type_name(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "a list";
    case Json::value_t::string:
      return "a text";
    case Json::value_t::boolean:
      return "true or false";
    default:
      return "a number";
  }
}

}  // namespace tutti

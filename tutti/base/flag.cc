#include "tutti/base/flag.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti {
namespace {

// Returns true if the value from the file has the type that the flag takes. A text may be written as a
// number: "checkpoint_every": 500. It may not have NUL bytes, since the system would cut a path there.
bool fits(const Json& value, Flag::Takes takes) {
  switch (takes) {
    case Flag::Takes::Text:
      return value.is_number() ||
             (value.is_string() && value.get_ref<const std::string&>().find('\0') == std::string::npos);
    case Flag::Takes::Whole:
      return value.is_number_integer();
    case Flag::Takes::Number:
      return value.is_number();
    case Flag::Takes::Switch:
      return value.is_boolean();
  }
  return false;
}

}  // namespace

std::string canonical_flag_name(std::string_view name) {
  std::string canonical(name);
  std::replace(canonical.begin(), canonical.end(), '-', '_');
  return canonical;
}

std::string Flag::variable() const {
  std::string name = "TUTTI_";
  for (const char c : key()) name += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

void Flag::take_value(const std::string& text, FlagSource from, std::string_view where) {
  const bool good = (!holds || holds(text)) && assign(text);
  if (!good) {
    fail(ErrorKind::InvalidArgument, "{}: '{}' (from {}) is not {}{}", flag_name(), text, where, expects,
         did_you_mean(text, choices));
  }
  source = from;
}

void Flag::take_value(const Json& value, std::string_view where) {
  if (!fits(value, takes)) {
    fail(ErrorKind::InvalidArgument, "{}: {} (from {}) is not {}", flag_name(), value.dump(), where, expects);
  }
  take_value(value.is_string() ? value.get<std::string>() : value.dump(), FlagSource::File, where);
}

}  // namespace tutti

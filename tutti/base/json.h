#pragma once

#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace tutti {

// Objects keep the order in which their keys stand in the text.
using Json = nlohmann::ordered_json;

// JSON that a person wrote. `what` names it in the error ("run.json", "TF_CONFIG"), an InvalidArgument with
// line and column. A key that stands twice in one object is an error too: one of the two would be lost
// without a word.
Json parse_json(std::string_view text, std::string_view what);

// "a number", "an object", ...: for errors about a value of the wrong type.
std::string_view json_type_name(const Json& value);

}  // namespace tutti

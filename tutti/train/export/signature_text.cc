#include "tutti/train/export/signature_text.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "tutti/train/export/format.h"

namespace tutti {
namespace {

std::string text_of_tensors(const Json& specs, const char* name_key) {
  std::vector<std::string> texts;
  for (const Json& spec : specs) {
    std::vector<std::string> shape;
    for (const Json& size : spec.at("shape")) shape.push_back(size.is_null() ? "*" : size.dump());
    texts.push_back(fmt::format("{} {}[{}]", spec.at(name_key).get<std::string>(),
                                spec.at("dtype").get<std::string>(), fmt::join(shape, ",")));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string text_of(const std::string& name, const Json& signature) {
  return fmt::format("{}({}) -> {}", name, text_of_tensors(signature.at("inputs"), "argument"),
                     text_of_tensors(signature.at("outputs"), "name"));
}

}  // namespace

std::vector<std::string> lines_of_signatures(const Json& signature) {
  std::vector<std::string> lines = {text_of(kDefaultFunction, signature)};
  if (!signature.contains("more_signatures")) return lines;
  for (const auto& [name, more] : signature.at("more_signatures").items())
    lines.push_back(text_of(name, more));
  return lines;
}

bool has_fixed_sizes(const Json& signature) {
  const Json& inputs = signature.at("inputs");
  return std::any_of(inputs.begin(), inputs.end(), [](const Json& input) {
    const Json& shape = input.at("shape");
    return std::any_of(shape.begin(), shape.end(), [](const Json& size) { return !size.is_null(); });
  });
}

}  // namespace tutti

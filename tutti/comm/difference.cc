#include "tutti/comm/difference.h"

#include <algorithm>

#include <fmt/format.h>

namespace tutti::comm {
namespace {

using Lines = std::vector<std::string>;

bool is_flag(const std::string& line) { return line.starts_with("--"); }

// Returns those flags of `lines` that are not among `others`.
std::string flags_only_in(const Lines& lines, const Lines& others) {
  std::string text;
  for (const std::string& line : lines) {
    if (!is_flag(line) || std::find(others.begin(), others.end(), line) != others.end()) continue;
    text += fmt::format("{}'{}'", text.empty() ? "" : " and ", line);
  }
  return text;
}

std::string line_at(const Lines& lines, Lines::const_iterator at) {
  return at == lines.end() ? "nothing more" : fmt::format("'{}'", *at);
}

}  // namespace

std::optional<Difference> difference_of(const Lines& one, const Lines& other) {
  const auto [here, there] = std::mismatch(one.begin(), one.end(), other.begin(), other.end());
  if (here == one.end() && there == other.end()) return std::nullopt;
  Difference found{line_at(one, here), line_at(other, there)};
  if (here == one.end() || there == other.end() || !is_flag(*here) || !is_flag(*there)) return found;
  const std::string flags = flags_only_in(one, other);
  const std::string others = flags_only_in(other, one);
  if (!flags.empty() && !others.empty()) found = {flags, others};
  return found;
}

}  // namespace tutti::comm

#include "tutti/base/agreement.h"

#include <algorithm>

#include <fmt/format.h>

#include "tutti/base/error.h"

namespace tutti {
namespace {

using Lines = std::vector<std::string>;

bool is_flag(const std::string& line) { return line.starts_with("--"); }

// Returns the flags of `lines` that are not among `others`; of another program these are many.
std::string flags_only_in(const Lines& lines, const Lines& others) {
  constexpr int kMost = 5;
  std::string text;
  int count = 0;
  for (const std::string& line : lines) {
    if (!is_flag(line) || std::find(others.begin(), others.end(), line) != others.end()) continue;
    if (++count <= kMost) text += fmt::format("{}'{}'", text.empty() ? "" : " and ", line);
  }
  return count <= kMost ? text : fmt::format("{} and {} more", text, count - kMost);
}

std::string line_at(const Lines& lines, Lines::const_iterator at) {
  return at == lines.end() ? "nothing more" : fmt::format("'{}'", *at);
}

}  // namespace

std::string difference(const Agreement& one, const Agreement& other) {
  const Lines& a = one.lines;
  const Lines& b = other.lines;
  const auto [here, there] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  if (here == a.end() && there == b.end()) return "";
  std::string own = line_at(a, here);
  std::string theirs = line_at(b, there);
  if (here != a.end() && there != b.end() && is_flag(*here) && is_flag(*there)) {
    const std::string flags = flags_only_in(a, b);
    const std::string others = flags_only_in(b, a);
    if (!flags.empty() && !others.empty()) {
      own = flags;
      theirs = others;
    }
  }
  return fmt::format("{} has {}, {} has {}", one.who, own, other.who, theirs);
}

std::string same_index(const std::string& first, const std::string& second) {
  return fmt::format(
      "two tasks have the same index: {} and {}. The first is running: do not start another one with its "
      "--job_name and --task_index",
      first, second);
}

void refuse_difference(const std::string& difference) {
  if (difference.empty()) return;
  fail(ErrorKind::InvalidArgument,
       "the tasks do not match: {}. Start all tasks with the same program and flags", difference);
}

}  // namespace tutti

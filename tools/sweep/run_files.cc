#include "tools/sweep/run_files.h"

#include <algorithm>
#include <deque>
#include <set>
#include <span>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/base/file.h"

namespace tutti {
namespace {

constexpr size_t kLinesOfFailure = 20;
constexpr uint64_t kBytesOfFailure = 8192;

}  // namespace

std::string last_lines(const std::string& path) {
  if (!path_exists(path)) return "";
  const FileReader file(path);
  std::string text(std::min(file.size(), kBytesOfFailure), '\0');
  file.read_at(file.size() - text.size(), std::as_writable_bytes(std::span(text.data(), text.size())));
  std::deque<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
    if (lines.size() > kLinesOfFailure) lines.pop_front();
  }
  std::string quoted;
  for (const std::string& line : lines) quoted += "\n  | " + line;
  return quoted;
}

std::optional<Json> find_configuration(const std::string& output) {
  std::string prefix;
  std::string text;
  std::set<std::string> seen;
  for (size_t begin = 0; begin < output.size();) {
    const size_t end = std::min(output.find('\n', begin), output.size());
    const std::string line = output.substr(begin, end - begin);
    begin = end + 1;
    if (text.empty()) {
      if (line != "{" && !(line.starts_with('[') && line.ends_with("] {"))) continue;
      prefix = line.substr(0, line.size() - 1);
    }
    if (!line.starts_with(prefix) || !seen.insert(line).second) continue;
    text += line.substr(prefix.size()) + "\n";
    if (line == prefix + "}") return parse_json(text, "the output of --print-config");
  }
  return std::nullopt;
}

FoundStop find_stop(const std::string& path, int64_t stop_after) {
  if (!path_exists(path))
    return {std::nullopt,
            "has not written the report that --report names: the program has to call tutti::run"};
  try {
    const Stop stop = read_report(path, stop_after);
    return {stop, fmt::format("its report says that it was not complete after step {}", stop.steps)};
  } catch (const Error& error) {
    return {std::nullopt, fmt::format("its report cannot be read: {}", error.what())};
  }
}

}  // namespace tutti

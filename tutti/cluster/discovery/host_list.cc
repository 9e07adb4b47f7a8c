#include "tutti/cluster/discovery/host_list.h"

#include <algorithm>
#include <cctype>
#include <cstdint>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti::discovery {
namespace {

constexpr size_t kMostHosts = 1'000'000;

[[noreturn]] void bad(std::string_view list, std::string_view piece, std::string_view why) {
  fail(ErrorKind::InvalidArgument, "host list '{}': '{}' {}", list, piece, why);
}

// Accepts only digits, and not more than fit into the number.
std::optional<int64_t> parse_digits(std::string_view text) {
  constexpr size_t kMostDigits = 15;
  const bool digits =
      std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
  return digits && text.size() <= kMostDigits ? parse_int(text) : std::nullopt;
}

// Splits at the commas outside brackets.
std::vector<std::string> split_names(std::string_view list) {
  std::vector<std::string> names(1);
  int depth = 0;
  for (const char c : list) {
    if (c == '[') ++depth;
    if (c == ']') --depth;
    if (depth < 0 || depth > 1) bad(list, std::string(1, c), "is at a position where no bracket is allowed");
    if (c == ',' && depth == 0) {
      names.emplace_back();
    } else {
      names.back() += c;
    }
  }
  if (depth != 0) bad(list, names.back(), "has a bracket that is not closed");
  return names;
}

// Appends 01, 02 and 03 for "01-03", and 7 for "7".
void append_range(std::string_view list, const std::string& range, std::vector<std::string>& numbers) {
  const auto dash = range.find('-');
  const std::string first = range.substr(0, dash);
  const std::string last = dash == std::string::npos ? first : range.substr(dash + 1);
  const int64_t begin = parse_digits(first).value_or(-1);
  const int64_t end = parse_digits(last).value_or(-1);
  if (begin < 0 || begin > end) bad(list, range, "is neither a number nor a range such as 01-03");
  if (numbers.size() + static_cast<size_t>(end - begin) >= kMostHosts)
    bad(list, range, "names too many hosts");
  for (int64_t number = begin; number <= end; ++number) {
    numbers.push_back(fmt::format("{:0{}}", number, first.size()));
  }
}

// Replaces the names by all combinations of a name and an ending.
void extend(std::string_view list, std::vector<std::string>& names, const std::vector<std::string>& endings) {
  if (names.size() * endings.size() > kMostHosts) bad(list, endings.back(), "names too many hosts");
  std::vector<std::string> extended;
  extended.reserve(names.size() * endings.size());
  for (const std::string& name : names) {
    for (const std::string& ending : endings) extended.push_back(name + ending);
  }
  names = std::move(extended);
}

std::vector<std::string> expand_name(std::string_view list, std::string_view name) {
  if (name.empty()) bad(list, name, "is not a host name");
  std::vector<std::string> hosts(1);
  while (!name.empty()) {
    const auto open = name.find('[');
    extend(list, hosts, {std::string(name.substr(0, open))});
    if (open == std::string_view::npos) break;
    const auto close = name.find(']', open);
    std::vector<std::string> numbers;
    for (const std::string& range : split(name.substr(open + 1, close - open - 1), ',')) {
      append_range(list, range, numbers);
    }
    extend(list, hosts, numbers);
    name.remove_prefix(close + 1);
  }
  return hosts;
}

// Returns a number of tasks or nodes; 0 if it is invalid or too large.
int parse_count(std::string_view text) {
  const int64_t number = parse_digits(text).value_or(0);
  return number <= static_cast<int64_t>(kMostHosts) ? static_cast<int>(number) : 0;
}

}  // namespace

std::vector<std::string> expand_host_list(std::string_view text) {
  std::vector<std::string> hosts;
  for (const std::string& name : split_names(text)) {
    const std::vector<std::string> expanded = expand_name(text, name);
    hosts.insert(hosts.end(), expanded.begin(), expanded.end());
    if (hosts.size() > kMostHosts) bad(text, name, "names too many hosts");
  }
  return hosts;
}

std::optional<std::vector<TasksPerNode>> parse_tasks_per_node(std::string_view text) {
  std::vector<TasksPerNode> runs;
  for (const std::string& piece : split(text, ',')) {
    const auto open = piece.find("(x");
    const bool repeats = open != std::string::npos;
    if (repeats && !piece.ends_with(')')) return std::nullopt;
    const int tasks = parse_count(piece.substr(0, open));
    const int nodes = repeats ? parse_count(piece.substr(open + 2, piece.size() - open - 3)) : 1;
    if (tasks == 0 || nodes == 0) return std::nullopt;
    runs.push_back({.tasks = tasks, .nodes = nodes});
  }
  return runs;
}

}  // namespace tutti::discovery

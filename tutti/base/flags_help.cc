#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/flag.h"
#include "tutti/base/text.h"

namespace tutti {
namespace {

constexpr size_t kHelpColumn = 32;
constexpr size_t kLineWidth = 110;

std::string value_name(const Flag& flag) {
  if (flag.takes == Flag::Takes::Switch) return "";
  if (!flag.choices.empty()) return fmt::format(" {}", fmt::join(flag.choices, "|"));
  switch (flag.takes) {
    case Flag::Takes::Whole:
      return " N";
    case Flag::Takes::Number:
      return " X";
    default:
      return " TEXT";
  }
}

// Returns the range and the default for the help text: " (0 or more; default: 32)".
std::string range_and_default(const Flag& flag) {
  std::vector<std::string> parts;
  if (!flag.range.empty()) parts.push_back(flag.range);
  const std::string value = flag.command_line_only ? "" : flag.show();
  if (!value.empty()) parts.push_back("default: " + value);
  return parts.empty() ? "" : fmt::format(" ({})", fmt::join(parts, "; "));
}

// Wraps `text` between kHelpColumn and kLineWidth; the first line follows `lead`.
std::string two_columns(const std::string& lead, const std::string& text) {
  std::string page;
  std::string line = lead;
  if (line.size() + 2 > kHelpColumn) {
    page = line + "\n";
    line.clear();
  }
  line.resize(kHelpColumn, ' ');
  bool first_word = true;
  for (const std::string& word : split(text, ' ')) {
    if (!first_word && line.size() + 1 + word.size() > kLineWidth) {
      page += line + "\n";
      line.assign(kHelpColumn, ' ');
      first_word = true;
    }
    line += (first_word ? "" : " ") + word;
    first_word = false;
  }
  return page + line + "\n";
}

std::string flag_help(const Flag& flag) {
  std::string lead = "  " + flag.display;
  if (flag.takes == Flag::Takes::Switch && !flag.command_line_only)
    lead += ", --no-" + flag.flag_name().substr(2);
  return two_columns(lead + value_name(flag), flag.help + range_and_default(flag));
}

}  // namespace

std::string flags_help(const std::string& program, const std::string& about,
                       const std::vector<Positional>& positional, const std::vector<Flag>& flags) {
  std::string page = fmt::format("{}\n\nUsage: {} [FLAGS]", about, program);
  for (const Positional& argument : positional)
    page += fmt::format(" [{}{}]", argument.name, argument.rest == nullptr ? "" : "...");
  page += positional.empty() ? "\n" : "\n\nArguments:\n";
  for (const Positional& argument : positional) page += two_columns("  " + argument.name, argument.help);
  std::vector<std::string> headings;
  for (const Flag& flag : flags) {
    if (std::find(headings.begin(), headings.end(), flag.heading) == headings.end())
      headings.push_back(flag.heading);
  }
  for (const std::string& heading : headings) {
    page += fmt::format("\n{}:\n", heading);
    for (const Flag& flag : flags) {
      if (flag.heading == heading) page += flag_help(flag);
    }
  }
  return page;
}

}  // namespace tutti

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

std::string default_text(const Flag& flag) {
  const std::string value = flag.command_line_only ? "" : flag.show();
  return value.empty() ? "" : fmt::format(" (default: {})", value);
}

// Words of `text` from kHelpColumn to kLineWidth, the first line behind `lead`.
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
  return two_columns(lead + value_name(flag), flag.help + default_text(flag));
}

}  // namespace

std::string flags_help(const std::string& program, const std::string& about, const std::vector<Flag>& flags) {
  std::string page = fmt::format("{}\n\nUsage: {} [FLAGS]\n", about, program);
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

#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/base/flags.h"
#include "tutti/base/json.h"

// The internal parts of FlagSet; not for use elsewhere.
namespace tutti {

// The source of a value, in increasing order of precedence.
enum class FlagSource { Default, File, Variable, CommandLine };

// One declared flag, bound to the caller's variable.
struct Flag {
  enum class Takes { Text, Whole, Number, Switch };

  std::vector<std::string> names;  // canonical, without leading dashes; the first is the key
  std::vector<std::string> short_names;
  std::string display;  // "--task_index, --task_id", as declared
  std::string heading;
  std::string help;
  Takes takes = Takes::Text;
  std::string expects;  // completes "'x' is not ..."
  std::string range;    // range of a number, for --help: "0 or more"
  std::vector<std::string> choices;
  bool command_line_only = false;  // --help, --version
  bool hidden = false;             // FlagSet::values() does not reveal the value
  FlagScope scope = FlagScope::Run;

  std::function<bool(const std::string&)> assign;  // returns false if the text is not a valid value
  std::function<std::string()> show;               // returns the current value as text
  std::function<bool(const std::string&)> holds;   // a further requirement, or null

  FlagSource source = FlagSource::Default;

  const std::string& key() const { return names.front(); }
  std::string variable() const;  // TUTTI_TASK_INDEX
  // The first name as it was declared: "--checkpoint-every".
  std::string flag_name() const { return display.substr(0, display.find(',')); }

  // Sets the value, or throws an InvalidArgument; `where` completes "(from ...)".
  void take_value(const std::string& text, FlagSource from, std::string_view where);
  // Like above, for a value of the config file, whose type must match.
  void take_value(const Json& value, std::string_view where);
};

// Replaces '-' by '_', so that both spellings compare equal.
std::string canonical_flag_name(std::string_view name);

// One declared positional argument, bound to the caller's variable: one text, or all remaining arguments.
struct Positional {
  std::string name;
  std::string help;
  std::string* value = nullptr;
  std::vector<std::string>* rest = nullptr;
};

// Returns the text of --help: positional arguments, then the groups in the order of their first flag, each
// flag with its default.
std::string flags_help(const std::string& program, const std::string& about,
                       const std::vector<Positional>& positional, const std::vector<Flag>& flags);

// Pairs of a flag's index and a text given for it, ordered by flag; a repeated flag has several.
using FlagTexts = std::vector<std::pair<size_t, std::string>>;

struct CommandLine {
  FlagTexts texts;
  std::vector<std::string> positional;  // the arguments that belong to no flag, in order
};

// Throws an InvalidArgument for an unknown flag and for a flag without its value.
CommandLine read_command_line(const std::vector<Flag>& flags, int argc, const char* const* argv);

}  // namespace tutti

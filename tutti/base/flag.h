#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/base/json.h"

// The parts that FlagSet is made of; nobody else needs them.
namespace tutti {

// Where a value came from, the weakest first.
enum class FlagSource { Default, File, Variable, CommandLine };

// One declared flag, bound to the caller's variable.
struct Flag {
  enum class Takes { Text, Whole, Number, Switch };

  std::vector<std::string> names;  // canonical, without dashes; the first is the key
  std::vector<std::string> short_names;
  std::string display;  // "--task_index, --task_id", as declared
  std::string heading;
  std::string help;
  Takes takes = Takes::Text;
  std::string expects;  // completes "'x' is not ..."
  std::vector<std::string> choices;
  bool command_line_only = false;  // --help, --version

  std::function<bool(const std::string&)> assign;  // false where the text is no such value
  std::function<std::string()> show;               // the value as it is now
  std::function<bool(const std::string&)> holds;   // a further requirement, or null

  FlagSource source = FlagSource::Default;

  const std::string& key() const { return names.front(); }
  std::string variable() const;  // TUTTI_TASK_INDEX
  // The first name as it was declared: "--checkpoint-every".
  std::string flag_name() const { return display.substr(0, display.find(',')); }

  // Sets the value, or throws the InvalidArgument; `where` completes "(from ...)".
  void take(const std::string& text, FlagSource from, std::string_view where);
  // The same for a value of the config file, whose type must fit.
  void take(const Json& value, std::string_view where);
};

// '-' becomes '_', so that one spelling stands for all.
std::string canonical_flag_name(std::string_view name);

// The text of --help: the groups in the order of their first flag, each flag with its default.
std::string flags_help(const std::string& program, const std::string& about, const std::vector<Flag>& flags);

// Which flag got which text, in the order of the flags; a flag that was repeated has several.
using FlagTexts = std::vector<std::pair<size_t, std::string>>;

// Throws InvalidArgument for an unknown flag, a flag without its value, and what belongs to no flag.
FlagTexts read_command_line(const std::vector<Flag>& flags, int argc, const char* const* argv);

}  // namespace tutti

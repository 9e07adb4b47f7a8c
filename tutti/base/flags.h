#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/environment.h"

namespace tutti {

// Says which tasks must use the same value of a flag, and whether a resumed run may use another value.
enum class FlagScope {
  Local,  // may differ between tasks: paths, addresses, what is logged
  Job,    // the same on all tasks; may change when a run is resumed: its length, how often it saves
  Run,    // the same on all tasks; resuming a run with another value logs a warning
  Model,  // the same on all tasks; part of the model or the data: a run cannot be resumed with another value
};

// A flag and its value as text: {"--batch", "32", FlagScope::Model}.
struct FlagValue {
  std::string name;
  std::string text;
  FlagScope scope = FlagScope::Run;
};
using FlagValues = std::vector<FlagValue>;

// Declares flags and reads their values from, in decreasing order of precedence: command line, TUTTI_*
// variable, --config FILE.json, default. An unknown name is an InvalidArgument that suggests the nearest
// name. A value that cannot be parsed is an InvalidArgument that names the flag, the value, what is expected
// and where the value came from. Every given value is checked, even if it is overridden.
//   '-' and '_' are equivalent in every name: --log-level, --log_level, TUTTI_LOG_LEVEL, "log-level" in the
//   file. The last value of a repeated flag wins, so that a script can append to an existing command
//   line. The flag --config, if declared, names the file. TUTTI_CONFIG may name it too; the file itself may
//   not. Variables that begin with TUTTI_TEST_ are reserved for Tutti's own tests and are ignored.
// The bound variables must stay alive until parse() has returned.
class FlagSet {
 public:
  // `about` is the first paragraph of --help.
  explicit FlagSet(std::string about);
  ~FlagSet();
  FlagSet(const FlagSet&) = delete;
  FlagSet& operator=(const FlagSet&) = delete;

  // Lists the flags that are added from here on under this heading.
  void group(const std::string& heading);

  // Adds a flag. `names` is "--lanes", or several names for one value: "--task_index,--task_id", "--help,-h".
  // The first determines the variable (TUTTI_TASK_INDEX) and the key of the config file ("task_index").
  void add(const std::string& names, std::string& value, const std::string& help);
  void add(const std::string& names, int64_t& value, const std::string& help);
  void add(const std::string& names, double& value, const std::string& help);
  void add(const std::string& names, bool& value, const std::string& help);  // --name and --no-name
  void add(const std::string& names, std::optional<int64_t>& value, const std::string& help);
  // Adds a flag that takes one of `choices`; anything else is an error that lists them and suggests one.
  void add_choice(const std::string& names, std::string& value, const std::vector<std::string>& choices,
                  const std::string& help);

  // Adds an argument that belongs to no flag, such as INPUT in `program INPUT --lanes 4`, or all that remain.
  // They are assigned in the order of these calls. A positional argument that is not given keeps its value.
  // Without such calls, an argument that belongs to no flag is an error.
  void add_positional(const std::string& name, std::string& value, const std::string& help);
  void add_positional(const std::string& name, std::vector<std::string>& rest, const std::string& help);

  // Requires that every value given for the flag also passes `holds`; `expects` completes "'-1' is not ...".
  void require(const std::string& name, const std::string& expects,
               std::function<bool(const std::string&)> holds);
  // Sets the range of a number: at_least() and between() include the ends, above() excludes the lower one.
  // --help and the errors show it. Every number that does not accept all values has a range.
  void at_least(const std::string& name, double least);
  void between(const std::string& name, double least, double most);
  void above(const std::string& name, double least);
  void above(const std::string& name, double least, double most);
  // Declares two whole numbers of which only one may be other than 0. The source of higher precedence wins
  // (--steps over "epochs" in the file, anything over a default); both from one source are an error.
  void exclusive(const std::string& one, const std::string& other);
  // Sets the scope of these flags. The scope of other flags is FlagScope::Run.
  void scope(FlagScope scope, const std::vector<std::string>& names);
  // Makes values() return "(hidden)" instead of a value that is not empty.
  void hide(const std::string& name);

  // Fills the values. Returns the text of --help, --version or --print-config if one of them was given: the
  // program should then print it and end. --print-config checks all flags first, and returns their values as
  // a file for --config.
  [[nodiscard]] std::optional<std::string> parse(int argc, const char* const* argv,
                                                 const Environment& environment);

  // For values that a program has set in code: throws InvalidArgument if a variable has a value that its flag
  // would not accept and that differs from the value in `defaults`.
  void require_valid(const FlagValues& defaults) const;
  // Returns all flags with their current values, in the order of their addition, except --help, --version and
  // --print-config.
  FlagValues values() const;

 private:
  struct Impl;  // keeps CLI11 out of this header
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti

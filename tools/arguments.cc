#include "tools/arguments.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti {
namespace {

std::string suggestion(const CLI::App& app, const std::vector<std::string>& arguments) {
  const std::vector<std::string> known = flags_of(app);
  for (const std::string& argument : arguments) {
    const std::string name = argument.substr(0, argument.find('='));
    const bool is_flag = name.starts_with('-') && name != "-" && !parse_double(name);
    if (is_flag && std::find(known.begin(), known.end(), name) == known.end())
      return did_you_mean(name, known);
  }
  return "";
}

}  // namespace

std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

bool parse_arguments(CLI::App& app, const std::vector<std::string>& arguments) {
  try {
    // CLI11 reads the arguments from the back.
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(reversed);
    return true;
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return false;
  } catch (const CLI::ParseError& error) {
    fail(ErrorKind::InvalidArgument, "{}: {}{}; see {} --help", app.get_name(), error.what(),
         suggestion(app, arguments), app.get_name());
  }
}

std::string runs_below(const std::string& folder, const std::function<bool(const std::string&)>& is_run) {
  std::error_code error;
  std::vector<std::string> runs;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (is_run(entry->path().string())) runs.push_back(entry->path().string());
  }
  std::sort(runs.begin(), runs.end());
  return runs.empty() ? "" : fmt::format("; trainings with a name are in {}", fmt::join(runs, ", "));
}

std::optional<std::string> parse_connection_arguments(const char* name, const char* about,
                                                      const std::vector<std::string>& arguments,
                                                      const Environment& environment, RunConfig& config,
                                                      const std::function<void(FlagSet&)>& add_own) {
  std::vector<const char*> words = {name};
  FlagSet everything(about);
  if (add_own) add_own(everything);
  add_standard_flags(everything, config);
  static_cast<void>(everything.parse(1, words.data(), environment));
  for (const std::string& argument : arguments) words.push_back(argument.c_str());
  FlagSet ours(about);
  if (add_own) add_own(ours);
  add_connection_flags(ours, config);
  return ours.parse(static_cast<int>(words.size()), words.data(), Environment());
}

}  // namespace tutti

#include <algorithm>
#include <stdexcept>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/error.h"
#include "tutti/base/flag.h"
#include "tutti/base/text.h"

namespace tutti {
namespace {

bool is_known(const std::vector<Flag>& flags, const std::string& canonical) {
  return std::any_of(flags.begin(), flags.end(), [&](const Flag& flag) {
    return std::any_of(flag.names.begin(), flag.names.end(), [&](const std::string& name) {
      return canonical == name || (flag.takes == Flag::Takes::Switch && canonical == "no_" + name);
    });
  });
}

// Returns the canonical name in "--log-level" or "--log-level=x" if it is a declared flag, else "".
std::string known_name(const std::vector<Flag>& flags, std::string_view argument) {
  if (!argument.starts_with("--")) return "";
  std::string name = canonical_flag_name(argument.substr(2, argument.find('=') - 2));
  return is_known(flags, name) ? name : "";
}

// Returns the arguments with the names of flags in their canonical spelling. An empty value after '=' becomes
// a separate argument, since CLI11 reads "--logdir=" as a flag whose value is in the next argument.
std::vector<std::string> canonical_arguments(const std::vector<Flag>& flags, int argc,
                                             const char* const* argv) {
  std::vector<std::string> arguments;
  bool names_end = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    names_end = names_end || argument == "--";
    const std::string name = names_end ? "" : known_name(flags, argument);
    const auto equals = argument.find('=');
    if (name.empty()) {
      arguments.push_back(argument);
    } else if (equals == std::string::npos) {
      arguments.push_back("--" + name);
    } else if (equals + 1 == argument.size()) {
      arguments.insert(arguments.end(), {"--" + name, ""});
    } else {
      arguments.push_back("--" + name + argument.substr(equals));
    }
  }
  return arguments;
}

CLI::Option* declare(CLI::App& app, const Flag& flag) {
  std::vector<std::string> names;
  for (const std::string& name : flag.names) names.push_back("--" + name);
  for (const std::string& name : flag.short_names) names.push_back("-" + name);
  if (flag.takes != Flag::Takes::Switch) {
    return app.add_option(fmt::format("{}", fmt::join(names, ",")))
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
  for (const std::string& name : flag.names) names.push_back("!--no_" + name);
  return app.add_flag(fmt::format("{}", fmt::join(names, ",")))
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

[[noreturn]] void fail_unknown(const std::vector<Flag>& flags, const std::string& argument) {
  std::vector<std::string> names;
  for (const Flag& flag : flags) {
    for (const std::string& name : split(flag.display, ',')) names.push_back(name.substr(name.find('-')));
    if (flag.takes == Flag::Takes::Switch) names.push_back("--no-" + flag.flag_name().substr(2));
  }
  const std::string name = argument.substr(0, argument.find('='));
  const auto word = name.find_first_not_of('-');
  // Compares without the dashes, since "-lanes" and "--lanes" differ only in them.
  const std::string hint = word == std::string::npos ? "" : did_you_mean("--" + name.substr(word), names);
  fail(ErrorKind::InvalidArgument, "unknown flag '{}'{} (--help lists all flags)",
       word == std::string::npos ? argument : name, hint);
}

// Returns the positional arguments among those that CLI11 did not use. A "--" ends the names of flags.
std::vector<std::string> positional_in(const std::vector<Flag>& flags,
                                       const std::vector<std::string>& remaining) {
  std::vector<std::string> positional;
  bool names_end = false;
  for (const std::string& argument : remaining) {
    const bool flag_like = argument.size() > 1 && argument[0] == '-' && !parse_double(argument);
    if (!names_end && argument == "--") {
      names_end = true;
    } else if (!names_end && flag_like) {
      fail_unknown(flags, argument);
    } else {
      positional.push_back(argument);
    }
  }
  return positional;
}

[[noreturn]] void fail_without_value(const Flag& flag, const std::string& next) {
  fail(ErrorKind::InvalidArgument, "{} needs a value ({}), but {}", flag.flag_name(), flag.expects,
       next.empty() ? "the command line ends" : "'" + next + "' follows");
}

// CLI11 reports that the last argument is a flag without its value, but not by the name that was declared.
[[noreturn]] void explain(const std::vector<Flag>& flags, const std::vector<std::string>& arguments,
                          const std::exception& error) {
  const std::string last = arguments.empty() ? "" : arguments.back();
  for (const Flag& flag : flags) {
    for (const std::string& name : flag.names) {
      if (last == "--" + name) fail_without_value(flag, "");
    }
    for (const std::string& name : flag.short_names) {
      if (last == "-" + name) fail_without_value(flag, "");
    }
  }
  fail(ErrorKind::InvalidArgument, "command line: {}", error.what());
}

}  // namespace

CommandLine read_command_line(const std::vector<Flag>& flags, int argc, const char* const* argv) {
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  std::vector<CLI::Option*> options;
  options.reserve(flags.size());
  for (const Flag& flag : flags) options.push_back(declare(app, flag));
  const std::vector<std::string> arguments = canonical_arguments(flags, argc, argv);
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::Error& error) {
    explain(flags, arguments, error);
  } catch (const std::invalid_argument& error) {
    explain(flags, arguments, error);
  }
  CommandLine line;
  for (size_t i = 0; i < flags.size(); ++i) {
    for (const std::string& text : options[i]->results()) {
      if (!known_name(flags, text).empty()) fail_without_value(flags[i], text);
      line.texts.emplace_back(i, text);
    }
  }
  line.positional = positional_in(flags, app.remaining());
  return line;
}

}  // namespace tutti

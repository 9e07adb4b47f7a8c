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

// The canonical name in "--log-level" or "--log-level=x" where that is a flag of ours, else nothing.
std::string known_name(const std::vector<Flag>& flags, std::string_view argument) {
  if (!argument.starts_with("--")) return "";
  std::string name = canonical_flag_name(argument.substr(2, argument.find('=') - 2));
  return is_known(flags, name) ? name : "";
}

// The arguments with the names of flags in their canonical spelling. An empty value behind '=' becomes an
// argument of its own, since CLI11 takes "--logdir=" for a flag whose value is yet to come.
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
  // "-lanes" and "--lanes" differ in dashes only: compare the words.
  const std::string hint = word == std::string::npos ? "" : did_you_mean("--" + name.substr(word), names);
  fail(ErrorKind::InvalidArgument, "unknown flag '{}'{} (--help lists them all)",
       word == std::string::npos ? argument : name, hint);
}

// What CLI11 left over is a mistake, but for a "--" that ends the names of flags.
void check_nothing_left(const std::vector<Flag>& flags, const std::vector<std::string>& remaining) {
  bool names_end = false;
  for (const std::string& argument : remaining) {
    const bool flag_like = argument.size() > 1 && argument[0] == '-' && !parse_double(argument);
    if (!names_end && argument == "--") {
      names_end = true;
    } else if (!names_end && flag_like) {
      fail_unknown(flags, argument);
    } else {
      fail(ErrorKind::InvalidArgument, "the argument '{}' belongs to no flag (--help lists them all)",
           argument);
    }
  }
}

[[noreturn]] void fail_without_value(const Flag& flag, const std::string& next) {
  fail(ErrorKind::InvalidArgument, "{} needs a value ({}), but {}", flag.flag_name(), flag.expects,
       next.empty() ? "the command line ends" : "'" + next + "' follows");
}

// CLI11 says that the last argument is a flag without its value; which flag that is, we know better.
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

FlagTexts read_command_line(const std::vector<Flag>& flags, int argc, const char* const* argv) {
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
  FlagTexts texts;
  for (size_t i = 0; i < flags.size(); ++i) {
    for (const std::string& text : options[i]->results()) {
      if (!known_name(flags, text).empty()) fail_without_value(flags[i], text);
      texts.emplace_back(i, text);
    }
  }
  check_nothing_left(flags, app.remaining());
  return texts;
}

}  // namespace tutti

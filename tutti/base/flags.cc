#include "tutti/base/flags.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/flag.h"
#include "tutti/base/text.h"
#include "tutti/base/version.h"

namespace tutti {
namespace {

constexpr std::string_view kPrefix = "TUTTI_";
constexpr std::string_view kTestPrefix = "TUTTI_TEST_";
// Chooses the LibTorch that ./dev builds with, so it may be exported where programs are started.
constexpr std::string_view kOfTheBuild = "TUTTI_LIBTORCH";
// Names the variables that `tutti export` has made from the flags of a checkpoint. Another program may have
// written the checkpoint.
constexpr const char* kOfACheckpoint = "_TUTTI_OF_CHECKPOINT";

// Returns a function that parses a text and stores the result. It returns false if parsing fails.
template <class Value, class Parse>
std::function<bool(const std::string&)> assign_to(Value& value, Parse parse) {
  return [&value, parse](const std::string& text) {
    const auto parsed = parse(text);
    if (parsed) value = *parsed;
    return parsed.has_value();
  };
}

std::optional<double> parse_finite(const std::string& text) {
  const auto number = parse_double(text);
  return number && std::isfinite(*number) ? number : std::nullopt;
}

bool share_a_name(const Flag& one, const Flag& other) {
  const auto any_in = [](const std::vector<std::string>& names, const std::vector<std::string>& others) {
    return std::find_first_of(names.begin(), names.end(), others.begin(), others.end()) != names.end();
  };
  return any_in(one.names, other.names) || any_in(one.short_names, other.short_names);
}

std::string program_name(int argc, const char* const* argv) {
  const std::string path = argc > 0 && argv[0] != nullptr ? argv[0] : "program";
  return path.substr(path.rfind('/') + 1);
}

}  // namespace

struct FlagSet::Impl {
  std::string about;
  std::string heading = "Flags";
  std::vector<Flag> flags;
  std::vector<Positional> positional;
  std::vector<std::pair<std::string, std::string>> exclusive;
  bool help = false;
  bool version = false;
  bool print_config = false;

  Flag& declare(const std::string& names, const std::string& help_text);
  Flag* find(const std::string& key);
  Flag& declared(const std::string& name);
  std::vector<std::string> keys() const;
  void limit(const std::string& name, const std::string& range, const std::function<bool(double)>& holds);

  std::optional<std::string> config_path(const FlagTexts& given, const Environment& environment);
  void take_file(const std::string& path);
  void take_variables(const Environment& environment);
  void take_command_line(const FlagTexts& given);
  void declare(const Positional& argument);
  void take_positional(const std::vector<std::string>& given);
  void settle(Flag& one, Flag& other);
  std::string config_file() const;
};

Flag& FlagSet::Impl::declare(const std::string& names, const std::string& help_text) {
  Flag flag;
  for (const std::string& name : split(names, ',')) {
    TUTTI_CHECK(name.starts_with('-') && name.size() > 1, "flag '{}' in '{}'", name, names);
    const bool is_long = name.starts_with("--");
    (is_long ? flag.names : flag.short_names).push_back(canonical_flag_name(name.substr(is_long ? 2 : 1)));
    flag.display += (flag.display.empty() ? "" : ", ") + name;
  }
  TUTTI_CHECK(!flag.names.empty(), "flag '{}' has no long name", names);
  for (const Flag& other : flags)
    TUTTI_CHECK(!share_a_name(flag, other), "flag '{}' was added already", names);
  flag.heading = heading;
  flag.help = help_text;
  return flags.emplace_back(std::move(flag));
}

Flag* FlagSet::Impl::find(const std::string& key) {
  const auto found =
      std::find_if(flags.begin(), flags.end(), [&](const Flag& flag) { return flag.key() == key; });
  return found == flags.end() ? nullptr : &*found;
}

Flag& FlagSet::Impl::declared(const std::string& name) {
  Flag* flag = find(canonical_flag_name(name.substr(name.find_first_not_of('-'))));
  TUTTI_CHECK(flag != nullptr, "no flag '{}' was added", name);
  return *flag;
}

std::vector<std::string> FlagSet::Impl::keys() const {
  std::vector<std::string> keys;
  for (const Flag& flag : flags) {
    if (!flag.command_line_only) keys.push_back(flag.key());
  }
  return keys;
}

std::optional<std::string> FlagSet::Impl::config_path(const FlagTexts& given,
                                                      const Environment& environment) {
  const Flag* config = find("config");
  if (config == nullptr) return std::nullopt;
  auto path = environment.get(config->variable());
  for (const auto& [index, text] : given) {
    if (&flags[index] == config) path = text;
  }
  if (!path) path = config->show();
  return path->empty() ? std::nullopt : path;
}

void FlagSet::Impl::take_file(const std::string& path) {
  const Json file = parse_json(read_file(path), path);
  if (!file.is_object()) {
    fail(ErrorKind::InvalidArgument, "{}: the file contains {}; expected an object of flags and values", path,
         json_type_name(file));
  }
  for (const auto& [name, value] : file.items()) {
    Flag* flag = find(canonical_flag_name(name));
    if (flag == nullptr || flag->command_line_only) {
      fail(ErrorKind::InvalidArgument, "{}: unknown key '{}'{}", path, name,
           did_you_mean(canonical_flag_name(name), keys()));
    }
    if (flag->key() == "config")
      fail(ErrorKind::InvalidArgument, "{}: a config file cannot name another one", path);
    flag->take_value(value, fmt::format("{}, key '{}'", path, name));
  }
}

void FlagSet::Impl::take_variables(const Environment& environment) {
  const std::vector<std::string> recorded = split(environment.get(kOfACheckpoint).value_or(""), ',');
  const auto is_recorded = [&](const std::string& name) {
    return std::find(recorded.begin(), recorded.end(), name) != recorded.end();
  };
  for (const auto& [name, text] : environment.variables()) {
    if (!name.starts_with(kPrefix) || name.starts_with(kTestPrefix) || name == kOfTheBuild) continue;
    const auto found = std::find_if(flags.begin(), flags.end(), [&name = name](const Flag& flag) {
      return flag.variable() == name && !flag.command_line_only;
    });
    if (found != flags.end()) {
      found->take_value(text, FlagSource::Variable,
                        is_recorded(name) ? "the checkpoint's run" : "variable " + name);
    } else if (!is_recorded(name)) {
      const auto meant = nearest(lower(name.substr(kPrefix.size())), keys());
      fail(ErrorKind::InvalidArgument,
           "unknown variable {}: unset it, or see --help for the known variables{}", name,
           meant ? fmt::format("; did you mean '{}'?", find(*meant)->variable()) : "");
    }
  }
}

void FlagSet::Impl::take_command_line(const FlagTexts& given) {
  for (const auto& [index, text] : given) {
    flags[index].take_value(text, FlagSource::CommandLine, "the command line");
  }
}

void FlagSet::Impl::declare(const Positional& argument) {
  TUTTI_CHECK(positional.empty() || positional.back().rest == nullptr,
              "'{}' follows '{}', which takes all remaining arguments", argument.name,
              positional.back().name);
  positional.push_back(argument);
}

void FlagSet::Impl::take_positional(const std::vector<std::string>& given) {
  size_t next = 0;
  for (const Positional& argument : positional) {
    if (argument.rest != nullptr) {
      if (next < given.size())
        argument.rest->assign(given.begin() + static_cast<ptrdiff_t>(next), given.end());
      return;
    }
    if (next < given.size()) *argument.value = given[next++];
  }
  if (next < given.size())
    fail(ErrorKind::InvalidArgument, "the argument '{}' does not belong to a flag (--help lists all flags)",
         given[next]);
}

void FlagSet::Impl::settle(Flag& one, Flag& other) {
  if (one.show() == "0" || other.show() == "0") return;
  if (one.source == other.source) {
    fail(ErrorKind::InvalidArgument, "{} {} and {} {} contradict each other; give only one of them",
         one.flag_name(), one.show(), other.flag_name(), other.show());
  }
  (one.source < other.source ? one : other).assign("0");
}

// Returns the values as the text of a config file. Leaves out secrets, values that a file cannot contain (the
// name of another file, infinity) and empty texts, which not every flag accepts.
std::string FlagSet::Impl::config_file() const {
  Json values = Json::object();
  for (const Flag& flag : flags) {
    const std::string text = flag.show();
    if (flag.command_line_only || flag.hidden || text.empty() || flag.key() == "config") continue;
    const std::string name = flag.flag_name().substr(flag.flag_name().find_first_not_of('-'));
    if (flag.takes == Flag::Takes::Text)
      values[name] = text;
    else if (flag.takes == Flag::Takes::Switch)
      values[name] = text == "true";
    else if (const auto whole = parse_int(text))
      values[name] = *whole;
    else if (const auto number = parse_finite(text))
      values[name] = *number;
  }
  return values.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

FlagSet::FlagSet(std::string about) : impl_(std::make_unique<Impl>()) {
  impl_->about = std::move(about);
  group("Help");
  add("--help,-h", impl_->help, "print this text and exit");
  impl_->flags.back().command_line_only = true;
  add("--version", impl_->version, "print the version and exit");
  impl_->flags.back().command_line_only = true;
  add("--print-config", impl_->print_config,
      "check all flags, print their values as a file for --config, and exit");
  impl_->flags.back().command_line_only = true;
  group("Flags");
}

FlagSet::~FlagSet() = default;

void FlagSet::group(const std::string& heading) { impl_->heading = heading; }

void FlagSet::add(const std::string& names, std::string& value, const std::string& help) {
  Flag& flag = impl_->declare(names, help);
  flag.expects = "a string";
  flag.assign = assign_to(value, [](const std::string& text) { return std::optional(text); });
  flag.show = [&value] { return value; };
}

void FlagSet::add(const std::string& names, int64_t& value, const std::string& help) {
  Flag& flag = impl_->declare(names, help);
  flag.takes = Flag::Takes::Whole;
  flag.expects = "a whole number";
  flag.assign = assign_to(value, [](const std::string& text) { return parse_int(text); });
  flag.show = [&value] { return std::to_string(value); };
}

void FlagSet::add(const std::string& names, double& value, const std::string& help) {
  Flag& flag = impl_->declare(names, help);
  flag.takes = Flag::Takes::Number;
  flag.expects = "a number";
  flag.assign = assign_to(value, parse_finite);
  flag.show = [&value] { return fmt::format("{}", value); };
}

void FlagSet::add(const std::string& names, bool& value, const std::string& help) {
  Flag& flag = impl_->declare(names, help);
  flag.takes = Flag::Takes::Switch;
  flag.expects = "true or false";
  flag.assign = assign_to(value, parse_switch);
  flag.show = [&value] { return std::string(value ? "true" : "false"); };
}

void FlagSet::add(const std::string& names, std::optional<int64_t>& value, const std::string& help) {
  Flag& flag = impl_->declare(names, help);
  flag.takes = Flag::Takes::Whole;
  flag.expects = "a whole number";
  flag.assign = assign_to(value, [](const std::string& text) { return parse_int(text); });
  flag.show = [&value] { return value ? std::to_string(*value) : ""; };
}

void FlagSet::add_choice(const std::string& names, std::string& value,
                         const std::vector<std::string>& choices, const std::string& help) {
  add(names, value, help);
  Flag& flag = impl_->flags.back();
  flag.choices = choices;
  flag.expects = fmt::format("one of {}", fmt::join(choices, ", "));
  flag.holds = [choices](const std::string& text) {
    return std::find(choices.begin(), choices.end(), text) != choices.end();
  };
}

void FlagSet::add_positional(const std::string& name, std::string& value, const std::string& help) {
  impl_->declare({.name = name, .help = help, .value = &value});
}

void FlagSet::add_positional(const std::string& name, std::vector<std::string>& rest,
                             const std::string& help) {
  impl_->declare({.name = name, .help = help, .rest = &rest});
}

void FlagSet::require(const std::string& name, const std::string& expects,
                      std::function<bool(const std::string&)> holds) {
  Flag& flag = impl_->declared(name);
  flag.expects = expects;
  flag.holds = std::move(holds);
}

void FlagSet::Impl::limit(const std::string& name, const std::string& range,
                          const std::function<bool(double)>& holds) {
  Flag& flag = declared(name);
  TUTTI_CHECK(flag.takes == Flag::Takes::Whole || flag.takes == Flag::Takes::Number, "{} is not a number",
              name);
  const bool whole = flag.takes == Flag::Takes::Whole;
  flag.range = range;
  // "a number of 0 or more", "a number from 0 to 5", "a number above 0"
  flag.expects = fmt::format("{} {}{}", whole ? "a whole number" : "a number",
                             range.ends_with(" or more")  ? "of "
                             : range.starts_with("above") ? ""
                                                          : "from ",
                             range);
  flag.holds = [whole, holds](const std::string& text) {
    if (whole && !parse_int(text)) return false;
    const auto number = parse_finite(text);
    return number && holds(*number);
  };
}

void FlagSet::at_least(const std::string& name, double least) {
  impl_->limit(name, fmt::format("{} or more", least), [least](double number) { return number >= least; });
}

void FlagSet::between(const std::string& name, double least, double most) {
  impl_->limit(name, fmt::format("{} to {}", least, most),
               [least, most](double number) { return number >= least && number <= most; });
}

void FlagSet::above(const std::string& name, double least) {
  impl_->limit(name, fmt::format("above {}", least), [least](double number) { return number > least; });
}

void FlagSet::above(const std::string& name, double least, double most) {
  impl_->limit(name, fmt::format("above {}, at most {}", least, most),
               [least, most](double number) { return number > least && number <= most; });
}

void FlagSet::exclusive(const std::string& one, const std::string& other) {
  impl_->exclusive.emplace_back(one, other);
}

void FlagSet::scope(FlagScope scope, const std::vector<std::string>& names) {
  for (const std::string& name : names) impl_->declared(name).scope = scope;
}

void FlagSet::hide(const std::string& name) { impl_->declared(name).hidden = true; }

FlagValues FlagSet::values() const {
  FlagValues values;
  for (const Flag& flag : impl_->flags) {
    if (flag.command_line_only) continue;
    const std::string text = flag.show();
    values.push_back({flag.flag_name(), flag.hidden && !text.empty() ? "(hidden)" : text, flag.scope});
  }
  return values;
}

void FlagSet::require_valid(const FlagValues& defaults) const {
  for (Flag flag : impl_->flags) {
    if (flag.command_line_only) continue;
    const std::string text = flag.show();
    const bool is_default = std::any_of(defaults.begin(), defaults.end(), [&](const FlagValue& value) {
      return value.name == flag.flag_name() && value.text == text;
    });
    if (!is_default) flag.take_value(text, FlagSource::Default, "the program");
  }
}

std::optional<std::string> FlagSet::parse(int argc, const char* const* argv, const Environment& environment) {
  const auto [given, positional] = read_command_line(impl_->flags, argc, argv);
  const std::string program = program_name(argc, argv);
  for (const auto& [index, text] : given) {
    const Flag& flag = impl_->flags[index];
    if (!flag.command_line_only || flag.key() == "print_config") continue;
    if (flag.key() == "version") return fmt::format("{} (Tutti {})\n", program, version());
    return flags_help(program, impl_->about, impl_->positional, impl_->flags);
  }
  impl_->take_positional(positional);
  for (Flag& flag : impl_->flags) flag.source = FlagSource::Default;
  if (const auto path = impl_->config_path(given, environment)) impl_->take_file(*path);
  impl_->take_variables(environment);
  impl_->take_command_line(given);
  for (const auto& [one, other] : impl_->exclusive)
    impl_->settle(impl_->declared(one), impl_->declared(other));
  if (impl_->print_config) return impl_->config_file();
  return std::nullopt;
}

}  // namespace tutti

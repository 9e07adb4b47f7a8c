#include "tools/sweep/plan.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti {
namespace {

// Flags that the sweep itself gives to the runs.
constexpr const char* kReserved[] = {"logdir", "report", "stop-after", "resume", "print-config"};

std::string with_dashes(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

bool is_reserved(const std::string& name) {
  return std::find(std::begin(kReserved), std::end(kReserved), with_dashes(name)) != std::end(kReserved);
}

// Returns the name of the flag in a word such as "--log_level=info", with dashes, or "" if it has none.
std::string flag_in(const std::string& word) {
  return word.starts_with("--") ? with_dashes(word.substr(2, word.find('=') - 2)) : "";
}

// A switch has two names, --name and --no-name.
bool is_same_flag(const std::string& one, const std::string& other) {
  return one == other || one == "no-" + other || other == "no-" + one;
}

SweepRange parse_range(const std::string& name, const std::string& least, const std::string& most) {
  const auto one = parse_double(least);
  const auto other = parse_double(most);
  if (!one || !other || !(*one > 0) || !(*other > *one) || !std::isfinite(*other))
    fail(ErrorKind::InvalidArgument,
         "tutti sweep: --set {}={}..{} is not a range; it needs two numbers above 0, the smaller one first",
         name, least, most);
  const auto first = parse_int(least);
  const auto last = parse_int(most);
  // Larger whole numbers have no exact double.
  const bool whole = first && last && *last < (int64_t{1} << 53);
  return {*one, *other, whole};
}

void require_different_names(const std::vector<SweepSetting>& settings) {
  std::set<std::string> names;
  for (const SweepSetting& setting : settings) {
    if (!names.insert(with_dashes(setting.name)).second)
      fail(ErrorKind::InvalidArgument, "tutti sweep: --set {} is given twice; list all values in one: {}=A,B",
           setting.name, setting.name);
  }
}

// Returns a number from 0 to just below 1. The distributions of the standard library differ between its
// implementations.
double uniform(std::mt19937_64& generator) { return static_cast<double>(generator() >> 11) * 0x1p-53; }

std::string draw_from(const SweepRange& range, std::mt19937_64& generator) {
  if (range.whole) {
    // Every whole number gets the part of the range around it.
    const double least = std::log(range.least - 0.5);
    const double most = std::log(range.most + 0.5);
    const double value = std::round(std::exp(least + uniform(generator) * (most - least)));
    return fmt::format("{}", static_cast<int64_t>(std::clamp(value, range.least, range.most)));
  }
  const double least = std::log(range.least);
  const double value = std::exp(least + uniform(generator) * (std::log(range.most) - least));
  const double rounded = parse_double(fmt::format("{:.4g}", value)).value_or(value);
  return fmt::format("{}", std::clamp(rounded, range.least, range.most));
}

std::string draw_from(const SweepSetting& setting, std::mt19937_64& generator) {
  if (setting.range) return draw_from(*setting.range, generator);
  const auto count = static_cast<double>(setting.values.size());
  return setting.values[static_cast<size_t>(uniform(generator) * count)];
}

// The number of combinations, or a number above kMostRuns if there are more.
size_t combinations(const std::vector<SweepSetting>& settings) {
  size_t count = 1;
  for (const SweepSetting& setting : settings)
    count = std::min(count, kMostRuns + 1) * (setting.range ? kMostRuns + 1 : setting.values.size());
  return count;
}

void require_no_secret(const std::string& name) {
  if (!is_same_flag(name, "secret")) return;
  fail(ErrorKind::InvalidArgument,
       "tutti sweep: leave --secret out, since a sweep writes its command and settings to files; set the "
       "variable "
       "TUTTI_SECRET instead");
}

}  // namespace

SweepSetting parse_setting(const std::string& text) {
  const size_t equals = text.find('=');
  SweepSetting setting;
  setting.name = text.substr(0, equals);
  setting.name.erase(0, setting.name.find_first_not_of('-'));
  if (equals == std::string::npos || setting.name.empty() || setting.name.front() == '-')
    fail(ErrorKind::InvalidArgument, "tutti sweep: --set {} is not of the form NAME=VALUE,VALUE,...", text);
  if (is_reserved(setting.name))
    fail(ErrorKind::InvalidArgument, "tutti sweep: --set {} is not possible, since the sweep sets this flag",
         setting.name);
  require_no_secret(with_dashes(setting.name));
  const std::string values = text.substr(equals + 1);
  const size_t dots = values.find("..");
  if (dots != std::string::npos && parse_double(values.substr(0, dots)) &&
      values.find(',') == std::string::npos) {
    setting.range = parse_range(setting.name, values.substr(0, dots), values.substr(dots + 2));
    return setting;
  }
  setting.values = split(values, ',');
  for (size_t i = 0; i < setting.values.size(); ++i) {
    const auto end = setting.values.begin() + static_cast<int64_t>(i);
    if (setting.values[i].empty())
      fail(ErrorKind::InvalidArgument, "tutti sweep: --set {} has an empty value", text);
    if (std::find(setting.values.begin(), end, setting.values[i]) != end)
      fail(ErrorKind::InvalidArgument, "tutti sweep: --set {} has the value '{}' twice", text,
           setting.values[i]);
  }
  return setting;
}

std::vector<RunValues> grid_of(const std::vector<SweepSetting>& settings) {
  require_different_names(settings);
  for (const SweepSetting& setting : settings) {
    if (setting.range)
      fail(ErrorKind::InvalidArgument,
           "tutti sweep: --set {} is a range, of which a grid cannot have all values; add --random N, or "
           "list values",
           setting.name);
  }
  if (combinations(settings) > kMostRuns)
    fail(ErrorKind::InvalidArgument,
         "tutti sweep: the grid has more than {} runs; add --random N to draw some", kMostRuns);
  std::vector<RunValues> runs = {{}};
  for (const SweepSetting& setting : settings) {
    std::vector<RunValues> longer;
    for (const RunValues& run : runs) {
      for (const std::string& value : setting.values) {
        longer.push_back(run);
        longer.back().push_back(value);
      }
    }
    runs = std::move(longer);
  }
  return runs;
}

std::vector<RunValues> draw(const std::vector<SweepSetting>& settings, size_t count, uint64_t seed) {
  require_different_names(settings);
  // The number of draws until all combinations of a grid have been drawn is count * ln(count) on average.
  const size_t most_attempts = 1000 * (count + 1000);
  std::mt19937_64 generator(seed);
  std::vector<RunValues> runs;
  std::set<RunValues> drawn;
  for (size_t attempt = 0; runs.size() < count && attempt < most_attempts; ++attempt) {
    if (count > combinations(settings)) break;
    RunValues run;
    for (const SweepSetting& setting : settings) run.push_back(draw_from(setting, generator));
    if (drawn.insert(run).second) runs.push_back(std::move(run));
  }
  if (runs.size() < count)
    fail(ErrorKind::InvalidArgument,
         "tutti sweep: --random {} is more than there are different combinations; ask for fewer, or leave it "
         "out",
         count);
  return runs;
}

std::vector<size_t> runs_to_check(const std::vector<SweepSetting>& settings,
                                  const std::vector<RunValues>& runs) {
  std::set<size_t> found = {0};
  for (size_t i = 0; i < settings.size(); ++i) {
    if (settings[i].range) {
      const auto number = [i](const RunValues& run) { return parse_double(run[i]).value_or(0); };
      const auto [least, most] = std::minmax_element(
          runs.begin(), runs.end(), [&](const auto& a, const auto& b) { return number(a) < number(b); });
      found.insert(static_cast<size_t>(least - runs.begin()));
      found.insert(static_cast<size_t>(most - runs.begin()));
      continue;
    }
    std::set<std::string> seen;
    for (size_t run = 0; run < runs.size(); ++run) {
      if (seen.insert(runs[run][i]).second) found.insert(run);
    }
  }
  return {found.begin(), found.end()};
}

void require_not_given(const std::vector<SweepSetting>& settings, const std::vector<std::string>& command) {
  // Before the dashes are the flags of `tutti run`.
  const auto dashes = std::find(command.begin(), command.end(), "--");
  for (auto word = dashes == command.end() ? command.begin() : dashes; word != command.end(); ++word) {
    const std::string name = flag_in(*word);
    require_no_secret(name);
    if (is_reserved(name))
      fail(ErrorKind::InvalidArgument,
           "tutti sweep: leave {} out of the program's arguments, since the sweep gives each run its own",
           *word);
    for (const SweepSetting& setting : settings) {
      if (is_same_flag(name, with_dashes(setting.name)))
        fail(ErrorKind::InvalidArgument,
             "tutti sweep: the program's arguments have {}, but --set {} gives each run a value of its own; "
             "leave one of them out",
             *word, setting.name);
    }
  }
}

void require_same_steps(const std::vector<SweepSetting>& settings) {
  for (const SweepSetting& setting : settings) {
    if (with_dashes(setting.name) == "steps" && (setting.range || setting.values.size() > 1))
      fail(ErrorKind::InvalidArgument,
           "tutti sweep: --halving compares runs after the same number of steps, so it cannot be combined "
           "with different numbers of steps (--set {}); give --steps N to the program, or leave out "
           "--halving",
           setting.name);
  }
}

SweepGoal parse_goal(const std::string& text) {
  const size_t colon = text.rfind(':');
  const std::string name = text.substr(0, colon);
  const std::string direction = colon == std::string::npos ? "" : text.substr(colon + 1);
  const bool is_loss = name.find("loss") != std::string::npos || name.find("mse") != std::string::npos;
  if (name.empty() || (!direction.empty() && direction != "max" && direction != "min") ||
      (colon != std::string::npos && direction.empty()))
    fail(ErrorKind::InvalidArgument, "tutti sweep: --by {} is not of the form METRIC:max or METRIC:min",
         text);
  if (direction.empty() && !is_loss)
    fail(ErrorKind::InvalidArgument, "tutti sweep: say whether more is better: --by {}:max or --by {}:min",
         name, name);
  return {name, direction == "max"};
}

std::vector<Stage> halving_stages(size_t runs, int64_t steps, int64_t least) {
  std::vector<Stage> stages = {{0, runs}};
  // The step of the first stage is steps / 2^(stages - 1).
  for (int64_t first = steps / 2; stages.back().runs > 1 && first >= std::max<int64_t>(1, least); first /= 2)
    stages.push_back({0, (stages.back().runs + 1) / 2});
  int64_t stop_after = steps;
  for (size_t i = stages.size() - 1; i-- > 0;) stages[i].stop_after = stop_after /= 2;
  return stages;
}

}  // namespace tutti

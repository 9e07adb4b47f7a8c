#include <algorithm>

#include <fmt/format.h>

#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/launch/cores.h"
#include "tools/launch/gpus.h"
#include "tools/launch/host_slots.h"
#include "tools/sweep/runner.h"
#include "tutti/base/error.h"

namespace tutti {
namespace {

constexpr const char* kAboutSweep =
    "Runs PROGRAM with all combinations of some flags' values, several runs at a time, and prints a table, "
    "the best\n"
    "run first. PROGRAM is a program that calls tutti::run, or tutti run with such a program.\n"
    "  tutti sweep --logdir DIR --set NAME=VALUE,VALUE,... [--set ...] -- PROGRAM [ARGUMENTS...]\n"
    "  tutti sweep --logdir DIR --set rate=1e-5..1e-2 --random N -- PROGRAM [ARGUMENTS...]\n"
    "If the sweep is stopped or killed, the same command continues it.";

struct SweepArguments {
  SweepOptions sweep;
  std::vector<std::string> settings;
  std::string by = "loss:min";
  size_t random = 0;
  uint64_t seed = 1;
};

void add_options(CLI::App& app, SweepArguments& arguments) {
  app.add_option("--logdir", arguments.sweep.folder,
                 "Folder for the results, with a log directory for each run (required)");
  app.add_option("--set", arguments.settings,
                 "A flag of the program and its values, NAME=VALUE,VALUE,...; with --random also a range, "
                 "NAME=LEAST..MOST; "
                 "may be repeated")
      ->allow_extra_args(false);
  app.add_option("--random", arguments.random,
                 "Draw this number of combinations; from a range, values are drawn log-uniformly")
      ->check(CLI::Range(size_t{1}, kMostRuns));
  app.add_option("--seed", arguments.seed, "The seed of --random (default: 1)");
  app.add_option("--by", arguments.by,
                 "The value of the report that decides, METRIC:max or METRIC:min (default: loss:min)");
  app.add_flag("--halving", arguments.sweep.halving,
               "Stop the worse half of the runs early, repeatedly, each time after twice as many steps");
  app.add_option("--min-steps", arguments.sweep.least_steps,
                 "With --halving: no run is stopped before this step (default: 1)")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000'000'000}));
  app.add_option(
         "-n,--slots", arguments.sweep.slots,
         "Number of runs at the same time (default: one per visible GPU, or per core without GPUs, but "
         "not more than the number of runs)")
      ->check(CLI::Range(1, 4096));
  app.add_option("--restarts", arguments.sweep.restarts,
                 "How many times a run is restarted after it was killed or has lost a task (default: 3)")
      ->check(CLI::Range(0, 1'000'000));
}

std::string command_line_of(const std::vector<std::string>& arguments) {
  std::string line = "tutti sweep";
  for (const std::string& argument : arguments) line += " " + quoted(argument);
  return line;
}

void require_sweep(const SweepArguments& arguments, const CLI::App& app) {
  if (arguments.sweep.folder.empty())
    fail(ErrorKind::InvalidArgument, "tutti sweep: name the folder for the results: --logdir DIR");
  if (arguments.settings.empty())
    fail(ErrorKind::InvalidArgument,
         "tutti sweep: name a flag of the program and its values, as in --set rate=1e-4,1e-3");
  if (app.count("--seed") > 0 && arguments.random == 0)
    fail(ErrorKind::InvalidArgument, "tutti sweep: --seed has no effect without --random");
  if (app.count("--min-steps") > 0 && !arguments.sweep.halving)
    fail(ErrorKind::InvalidArgument, "tutti sweep: --min-steps has no effect without --halving");
}

}  // namespace

int sweep_command(const std::vector<std::string>& arguments, const Environment& environment) {
  CLI::App app(kAboutSweep, "tutti sweep");
  SweepArguments given;
  const std::vector<std::string> gpus = visible_gpus(environment);
  given.sweep.slots = static_cast<int>(gpus.empty() ? usable_cores().size() : gpus.size());
  add_options(app, given);
  const auto dashes = std::find(arguments.begin(), arguments.end(), "--");
  if (!parse_arguments(app, {arguments.begin(), dashes})) return 0;
  require_sweep(given, app);
  warn_of_missing_gpus(
      gpus, Log(parse_log_level(environment.get("TUTTI_LOG_LEVEL").value_or("info")), "tutti sweep"));
  if (dashes == arguments.end() || dashes + 1 == arguments.end())
    fail(ErrorKind::InvalidArgument,
         "tutti sweep: name the program after --, as in tutti sweep ... -- ./mnist --steps 1000");
  const std::vector<std::string> command(dashes + 1, arguments.end());
  for (const std::string& text : given.settings) given.sweep.settings.push_back(parse_setting(text));
  require_not_given(given.sweep.settings, command);
  if (given.sweep.halving) require_same_steps(given.sweep.settings);
  given.sweep.runs =
      given.random > 0 ? draw(given.sweep.settings, given.random, given.seed) : grid_of(given.sweep.settings);
  // The cores are divided among the slots.
  given.sweep.slots = std::min(given.sweep.slots, static_cast<int>(given.sweep.runs.size()));
  given.sweep.goal = parse_goal(given.by);
  given.sweep.command_line = command_line_of(arguments);
  return Sweep(command, environment, given.sweep).run();
}

}  // namespace tutti

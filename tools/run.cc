#include <algorithm>
#include <chrono>

#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/launch/launcher.h"
#include "tools/launch/meeting_words.h"
#include "tools/launch/mpirun.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti {

namespace {

constexpr const char* kAbout =
    "Starts PROGRAM as the workers of one job, each with its share of the cores and a GPU of its own where\n"
    "there are any, and ends them all when one fails.\n"
    "  tutti run [-n WORKERS] [--ps P] [--restarts K] -- PROGRAM [ARGUMENTS...] on this machine\n"
    "  tutti run -H host:slots,... [-n WORKERS] -- PROGRAM [ARGUMENTS...]       on several, by Open MPI's "
    "mpirun\n"
    "  TF_CONFIG='{...}' tutti run [-n WORKERS] -- PROGRAM [ARGUMENTS...]       on each of the hosts that it "
    "names\n"
    "Without -n: one worker per visible GPU (CUDA_VISIBLE_DEVICES, NVIDIA_VISIBLE_DEVICES), one in all "
    "without.\n"
    "With --strategy in-graph among the ARGUMENTS, or as TUTTI_STRATEGY, one more task is started: the "
    "master.";

struct RunOptions {
  LaunchOptions launch;
  std::string hosts;
};

void add_options(CLI::App& app, RunOptions& options) {
  app.add_option("-n,--workers", options.launch.workers,
                 "How many on this machine, or with -H in all (one per visible GPU, all slots)")
      ->check(CLI::Range(1, kMostWorkersOfAHost));
  app.add_option("--ps", options.launch.servers, "Parameter servers beside them, on this machine (0)")
      ->check(CLI::Range(0, kMostWorkersOfAHost));
  app.add_option("-H,--hosts", options.hosts, "Hand HOST:SLOTS,HOST:SLOTS,... to Open MPI's mpirun");
  app.add_option("--restarts", options.launch.restarts,
                 "Start all again up to this often after one has failed (0)")
      ->check(CLI::NonNegativeNumber);
  app.add_option_function<double>(
         "--start-timeout",
         [&options](double seconds) {
           options.launch.start_timeout = std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
         },
         "With TF_CONFIG: seconds for the launchers of the other hosts to come (300)")
      ->check(CLI::Range(0.001, 1e6));
  app.prefix_command();  // `--` may be left out where PROGRAM's name shows where it begins
}

// As the program's own flags say, or its variables.
bool wants_master(const std::vector<std::string>& command, const Environment& environment) {
  constexpr const char* kInGraph = "in-graph";
  std::string strategy = environment.get("TUTTI_STRATEGY").value_or("");
  for (size_t i = 1; i < command.size(); ++i) {
    if (command[i] == "--strategy" && i + 1 < command.size()) strategy = command[i + 1];
    if (command[i].starts_with("--strategy=")) strategy = command[i].substr(command[i].find('=') + 1);
  }
  return strategy == kInGraph;
}

[[noreturn]] void hand_to_mpirun(const RunOptions& options, std::vector<std::string> command,
                                 const Environment& environment) {
  if (options.launch.servers > 0)
    fail(ErrorKind::InvalidArgument,
         "tutti run: --ps {} does not go with -H: start the servers with `tutti serve`, and name them in "
         "--cluster_spec",
         options.launch.servers);
  if (options.launch.restarts > 0)
    fail(ErrorKind::InvalidArgument,
         "tutti run: --restarts {} does not go with -H: mpirun ends the job where a worker fails",
         options.launch.restarts);
  become_mpirun({parse_hosts(options.hosts), options.launch.workers.value_or(0), std::move(command)},
                environment, launcher_log(environment));
}

}  // namespace

int run_command(const std::vector<std::string>& arguments, const Environment& environment) {
  CLI::App app(kAbout, "tutti run");
  RunOptions options;
  add_options(app, options);

  const auto dashes = std::find(arguments.begin(), arguments.end(), "--");
  if (!parse_arguments(app, {arguments.begin(), dashes})) return 0;
  std::vector<std::string> command = app.remaining();
  if (!command.empty() && command.front().starts_with('-')) {
    const std::string name = command.front().substr(0, command.front().find('='));
    const std::vector<std::string> known = {"--workers",       "--ps",  "--hosts", "--restarts",
                                            "--start-timeout", "--help"};
    fail(ErrorKind::InvalidArgument, "tutti run: no flag '{}'{}; flags of the program go behind its name",
         name, did_you_mean(name, known));
  }
  // A `--` behind the program's name is the program's own.
  const auto rest = command.empty() && dashes != arguments.end() ? dashes + 1 : dashes;
  command.insert(command.end(), rest, arguments.end());
  if (command.empty()) {
    fail(ErrorKind::InvalidArgument, "tutti run: no program; say which: tutti run -n 2 -- build/bin/mnist");
  }
  if (app.count("--hosts") > 0) hand_to_mpirun(options, std::move(command), environment);
  options.launch.master = wants_master(command, environment);
  return launch(command, environment, options.launch);
}

}  // namespace tutti

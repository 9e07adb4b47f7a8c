#include "tutti/train/run.h"

#include <chrono>
#include <cstdio>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/deadline.h"
#include "tutti/base/environment.h"
#include "tutti/base/error.h"
#include "tutti/base/guarded_main.h"
#include "tutti/base/memory.h"
#include "tutti/base/text.h"
#include "tutti/cluster/identity.h"
#include "tutti/cluster/roles.h"
#include "tutti/cluster/threads.h"
#include "tutti/ps/server.h"
#include "tutti/train/export.h"
#include "tutti/train/export/check.h"
#include "tutti/train/load.h"
#include "tutti/train/passive/master.h"
#include "tutti/train/stop_signals.h"
#include "tutti/transport/members.h"

namespace tutti {
namespace {

// Changes the configuration so that only the checkpoint is read, and no files of a run are written.
void export_instead_of_training(RunConfig& config) {
  if (config.exports.from.empty()) config.exports.from = config.checkpoints.logdir;
  if (config.exports.from.empty())
    fail(ErrorKind::InvalidArgument, "--export needs a checkpoint: give --export-from, or --logdir");
  config.exports.from = checkpoint_at(config.exports.from);
  config.training.strategy = "single";
  config.checkpoints.logdir.clear();
  config.output.report.clear();
  config.output.timeline.clear();
  config.output.web.clear();
  config.output.profile_steps.clear();
}

int run_program(int argc, char** argv, const Program& program, const std::function<void(Context&)>& body) {
  RunConfig config = program.defaults;
  FlagSet set(program.about);
  if (program.add_flags) program.add_flags(set);
  add_standard_flags(set, config);
  const Environment environment = Environment::of_process();
  // A launcher reads what the program prints, line by line, also if the program is killed later.
  if (environment.get(kLaunchVariable)) std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  // This program may run again to check what it has exported.
  if (const auto code = answer_export_check(environment)) return *code;
  if (const auto text = set.parse(argc, argv, environment)) {
    fmt::print("{}", *text);
    return 0;
  }
  config.training.stop_on_signals = true;
  if (const auto signal = parse_int(environment.get(kPreemptVariable).value_or("")))
    StopSignals::also_stop_on(static_cast<int>(*signal));
  config.exports.checker = "/proc/self/exe";
  const bool exports = !config.exports.dir.empty();
  if (exports) export_instead_of_training(config);
  Context context(config, discover(config, environment), set.values());
  set_threads(context.threads());
  if (is_server_job(context.task().job)) {
    serve(context, program.optimizers ? program.optimizers() : std::vector<ElementwiseOptimizer>());
    return 0;
  }
  if (exports && context.world() > 1)
    fail(ErrorKind::InvalidArgument,
         "--export needs a single process, but there are {} workers (found through {}): start the program by "
         "itself",
         context.world(), context.identity().source);
  torch::manual_seed(config.training.seed);
  try {
    body(context);
  } catch (const ExportDone& done) {
    fmt::print("{}\n", done.path());
    return 0;
  }
  if (exports)
    fail(ErrorKind::InvalidArgument,
         "nothing was exported: --export needs a program that calls fit() of a Trainer");
  return 0;
}

}  // namespace

void add_learning_rate(FlagSet& flags, double& rate) {
  flags.add("--learning-rate", rate, "learning rate of the optimiser; with a schedule, its highest");
  flags.at_least("--learning-rate", 0);
}

int run(int argc, char** argv, const std::function<void(Context&)>& body) {
  return run(argc, argv, Program{}, body);
}

int run(int argc, char** argv, const Program& program, const std::function<void(Context&)>& body) {
  tune_heap();
  return guarded_main([&] {
    try {
      return run_program(argc, argv, program, body);
    } catch (const Error& error) {
      const auto signal = StopSignals::not_acted_on();
      if (!signal || !comm::is_loss(error)) throw;
      throw Interrupted(
          *signal,
          fmt::format(
              "{}: {}\nstopped by {}, without a new checkpoint, since the other tasks did not take part",
              to_string(error.kind()), error.what(), signal_name(*signal)));
    }
  });
}

Server::Server(const ClusterSpec& cluster, const std::string& job, int index, const RunConfig& config,
               std::vector<ElementwiseOptimizer> optimizers)
    : Server(Context(config, identity_in(cluster, {.job = job, .index = index}, "the program")),
             std::move(optimizers)) {}

Server::Server(const Context& context, std::vector<ElementwiseOptimizer> optimizers)
    : context_(context), server_(std::make_unique<ps::Server>(context_, std::move(optimizers))) {
  context_.log().info("serving at {}", target());
}

Server::~Server() = default;

std::string Server::target() const { return server_->target(); }

void Server::join() {
  using Clock = std::chrono::steady_clock;
  const StopSignals signals(context_.config());
  std::optional<int> signal;
  Clock::time_point deadline;
  while (!server_->join_for(std::chrono::milliseconds(100))) {
    if (signal && Clock::now() >= deadline) {
      context_.log().warning(
          "{} callers have not disconnected within {:g} s (--timeout); the server ends anyway",
          server_->callers(), context_.config().network.timeout);
      break;
    }
    if (signal || !signals.received()) continue;
    signal = signals.received();
    deadline = Clock::now() + milliseconds_of(context_.config().network.timeout);
    server_->end();
    if (const int callers = server_->callers(); callers > 0)
      context_.log().info(
          "{}: waiting for the callers to disconnect ({} left); a second signal ends the server at once",
          signal_name(*signal), callers);
  }
  if (signal)
    throw Interrupted(*signal,
                      fmt::format("{} stopped by {}", context_.task().short_name(), signal_name(*signal)));
  context_.log().info("the job is done");
}

void serve(const Context& context, std::vector<ElementwiseOptimizer> optimizers) {
  if (!is_server_job(context.task().job)) return follow_master(context);
  Server(context, std::move(optimizers)).join();
}

}  // namespace tutti

#include "tutti/train/run.h"

#include <malloc.h>

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/environment.h"
#include "tutti/base/error.h"
#include "tutti/base/guarded_main.h"
#include "tutti/base/interrupted.h"
#include "tutti/cluster/identity.h"
#include "tutti/cluster/roles.h"
#include "tutti/cluster/threads.h"
#include "tutti/train/serve.h"
#include "tutti/train/stop_signals.h"

namespace tutti {
namespace {

// Every step allocates and frees the same tensors. By default glibc returns blocks of this size to the system
// each time, and the kernel clears their pages again, which costs a seventh of a step of a small network
// (docs/benchmarks.md).
void keep_freed_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
  mallopt(M_TOP_PAD, 64 << 20);
#endif
}

bool leaves_nobody_to_save_with(const Error& error) {
  return error.kind() == ErrorKind::Timeout || error.kind() == ErrorKind::PeerLost;
}

int run_program(int argc, char** argv, const Program& program, const std::function<void(Context&)>& body) {
  RunConfig config = program.defaults;
  FlagSet set(program.about);
  if (program.add_flags) program.add_flags(set);
  add_standard_flags(set, config);
  const Environment environment = Environment::of_process();
  if (const auto text = set.parse(argc, argv, environment)) {
    fmt::print("{}", *text);
    return 0;
  }
  config.training.stop_on_signals = true;
  Context context(config, discover(config, environment), set.values());
  set_threads(context.threads());
  if (context.identity().is_evaluator) {
    context.log().warning(
        "evaluating during the training in a separate task is not supported yet: this task ends now, and the "
        "training continues without it. To evaluate after the training, call evaluate() in the program");
    return 0;
  }
  if (is_server_job(context.task().job)) {
    serve(context, program.optimizers ? program.optimizers() : std::vector<ElementwiseOptimizer>());
    return 0;
  }
  torch::manual_seed(config.training.seed);
  body(context);
  return 0;
}

}  // namespace

int run(int argc, char** argv, const std::function<void(Context&)>& body) {
  return run(argc, argv, Program{}, body);
}

int run(int argc, char** argv, const Program& program, const std::function<void(Context&)>& body) {
  keep_freed_memory();
  return guarded_main([&] {
    try {
      return run_program(argc, argv, program, body);
    } catch (const Error& error) {
      const auto signal = StopSignals::not_acted_on();
      if (!signal || !leaves_nobody_to_save_with(error)) throw;
      throw Interrupted(
          *signal,
          fmt::format("{}: {}\nstopped by {}: no checkpoint was saved, since the other tasks did not take "
                      "part; the newest checkpoint is an earlier one",
                      to_string(error.kind()), error.what(), signal_name(*signal)));
    }
  });
}

}  // namespace tutti

#include "tutti/train/stopping.h"

#include <string>

#include <fmt/format.h>

#include "tutti/base/interrupted.h"

namespace tutti {
namespace {

std::string of_how_many(const Training& training) {
  return training.end_step == Training::kEndless ? "" : fmt::format(" of {}", training.end_step);
}

}  // namespace

Wishes wish_to_stop(const Training& training, const StopSignals& signals) {
  return {.stop = training.stop_reason.has_value(), .signal = signals.received().value_or(0)};
}

void end_as_wished(const Training& training, const Wishes& wishes, const StopSignals& signals) {
  if (training.stop_reason)
    training.context.log().info("stopped after step {}: {}", training.step, *training.stop_reason);
  if (const int number = wishes.signal; number != 0 && training.step < training.end_step) {
    signals.forget();
    const std::string kept = training.context.config().checkpoints.logdir.empty()
                                 ? "nothing was saved, since --logdir was not given"
                                 : "checkpoint saved; run the program again to continue";
    throw Interrupted(number, fmt::format("stopped by {} after step {}{}: {}", signal_name(number),
                                          training.step, of_how_many(training), kept));
  }
}

}  // namespace tutti

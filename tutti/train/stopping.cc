#include "tutti/train/stopping.h"

#include <string.h>
#include <string>

#include <fmt/format.h>

#include "tutti/base/interrupted.h"

namespace tutti {
namespace {

constexpr int64_t kHookSaidSo = 1;  // above that, this and the number of a signal

std::string of_how_many(const Training& training) {
  return training.end_step == Training::kEndless ? "" : fmt::format(" of {}", training.end_step);
}

}  // namespace

int64_t wish_to_stop(const Training& training, const StopSignals& signals) {
  if (const auto number = signals.received()) return kHookSaidSo + *number;
  return training.stop_reason ? kHookSaidSo : 0;
}

void end_as_wished(const Training& training, int64_t wish, const StopSignals& signals) {
  if (const auto number = static_cast<int>(wish - kHookSaidSo);
      number > 0 && training.step < training.end_step) {
    signals.forget();
    const std::string kept = training.context.flags().logdir.empty()
                                 ? "nothing was saved, since there is no --logdir"
                                 : "saved; start it again to go on";
    throw Interrupted(number, fmt::format("stopped by {} after step {}{}: {}", strsignal(number),
                                          training.step, of_how_many(training), kept));
  }
  if (training.stop_reason)
    training.context.log().info("stopped after step {}: {}", training.step, *training.stop_reason);
}

}  // namespace tutti

#include "tutti/train/strategies/driven.h"

#include <csignal>

#include <nlohmann/json.hpp>

#include "tutti/ps/wire.h"

namespace tutti {

StepResult DrivenSteps::step(int64_t step, const Wishes& wishes, data::BatchQueue& /*queue*/,
                             const LaneObserver& /*observe*/) {
  for (;;) {
    const passive::Line::Request request = line_.next();
    if (request.method == "finish") {
      line_.keep();
      const auto signal = static_cast<int>(ps::number_within(request.message->head, "signal", 0, SIGRTMAX));
      return {.step = step,
              .made = false,
              .examples = 0,
              .loss_sum = {},
              .wishes = {.stop = true, .signal = signal}};
    }
    const int64_t made = request.method == "step" ? ps::number_in(request.message->head, "step") : step;
    // Only the master decides when to save; this worker does not learn about it.
    line_.answer_with([&] {
      return server_.serve(request.method, *request.message, {.stop = wishes.stop, .signal = wishes.signal});
    });
    if (request.method == "step")
      return {.step = made + 1, .made = false, .examples = 0, .loss_sum = {}, .wishes = {}};
  }
}

}  // namespace tutti

#include "tutti/train/strategies/driven.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "tutti/ps/wire.h"

namespace tutti {

StepResult DrivenSteps::step(int64_t step, const Wishes& wishes, data::BatchQueue& /*queue*/,
                             const LaneObserver& /*observe*/) {
  for (;;) {
    const passive::Line::Request request = line_.next();
    if (request.method == "finish") {
      line_.keep();
      const int64_t stop = std::max<int64_t>(1, ps::number_in(request.message->head, "stop"));
      return {.step = step, .made = true, .examples = 0, .loss_sum = {}, .wishes = {.stop = stop}};
    }
    const int64_t made = request.method == "step" ? ps::number_in(request.message->head, "step") : step;
    line_.answer_with([&] { return server_.serve(request.method, *request.message, wishes); });
    if (request.method == "step")
      return {.step = made + 1, .made = false, .examples = 0, .loss_sum = {}, .wishes = {}};
  }
}

}  // namespace tutti

#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "tutti/train/test_training.h"
#include "tutti/train/trainer.h"

namespace tutti {

inline const OptimizerOptions kAdam = torch::optim::AdamOptions(1e-2);

// Calls a function after every step.
class AfterStep final : public Hook {
 public:
  explicit AfterStep(std::function<void(Training&)> body) : body_(std::move(body)) {}
  void after_step(Training& training, const StepResult&) override { body_(training); }

 private:
  std::function<void(Training&)> body_;
};

// Trains to `steps`, or ends with an exception after `crash_after` steps; returns the hash of the weights.
inline std::string train(RunConfig config, int64_t steps, std::optional<int64_t> crash_after = {}) {
  config.training.steps = steps;
  const Context context = test_context(config);
  Trainer trainer(context, test_net(), kAdam, test_loss);
  trainer.add_hook(std::make_unique<AfterStep>([&](Training& training) {
    if (training.step == crash_after) throw std::runtime_error("crash");
  }));
  try {
    trainer.fit(test_feed().shuffle());
  } catch (const std::runtime_error& error) {
    if (!crash_after) throw;
  }
  return trainer.parameters().sha256();
}

}  // namespace tutti

// A hook that lets the hardware of one worker of a test compute wrongly, without an error: "1@5/weight" flips
// a bit on worker 1 before step 5. The places: a weight, a buffer, and in the first lane that the worker
// computes in this step an activation, its gradient ("backward"), or the gradient of a parameter; "broken" is
// every activation from this step on. In a loop of the program's own, and in the audited range, "sum" is the
// sum of the worker's lanes, and "update" a weight once the lanes have been computed.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include <torch/types.h>

#include "tutti/base/text.h"
#include "tutti/cluster/context.h"
#include "tutti/step/audited_range.h"
#include "tutti/train/hook.h"
#include "tutti/train/strategies/audits.h"

namespace tutti::testing {

class Fault final : public tutti::Hook {
 public:
  explicit Fault(const std::string& text) {
    if (text.empty()) return;
    const size_t at = text.find('@');
    const size_t slash = text.find('/');
    if (at == std::string::npos || slash == std::string::npos) throw std::runtime_error(text);
    worker_ = parse_int(text.substr(0, at)).value();
    step_ = parse_int(text.substr(at + 1, slash - at - 1)).value();
    place_ = text.substr(slash + 1);
  }

  void before_step(tutti::Training& training) override {
    if (training.context.task().index != worker_) return;
    const tutti::Parameters& parameters = training.parameters;
    if (place_ == "gradient" && !std::exchange(watches_, true)) {
      parameters.trained().back().tensor.register_hook([this](const torch::Tensor& gradient) {
        return std::exchange(due_, false) ? flipped(gradient) : gradient;
      });
    }
    due_ = training.step == step_ || (place_ == "broken" && training.step > step_);
    if (due_)
      range_ = tutti::draw_audit(training.context.config().training.seed, training.step, 1, {""}, 1).range;
    if (due_ && place_ != "broken") step_ = -1;  // once, also if the step is made again
    if (due_ && place_ == "weight") flip(parameters.trained().back().tensor);
    if (due_ && place_ == "buffer") flip(parameters.buffers().front().tensor);
  }
  // Returns the activation as this worker has computed it.
  torch::Tensor in(const torch::Tensor& activation) {
    if (place_ == "broken" && due_) flip(activation);
    if (place_ == "activation" && std::exchange(due_, false)) flip(activation);
    if (place_ == "backward" && std::exchange(due_, false))
      activation.register_hook([](const torch::Tensor& gradient) { return flipped(gradient); });
    return activation;
  }
  // Called when the lanes of a step have been added.
  void after_lanes(const tutti::Parameters& parameters) {
    if ((place_ != "sum" && place_ != "update") || !std::exchange(due_, false)) return;
    const tutti::AuditedRange range = tutti::draw_range(parameters, range_);
    const tutti::Section& block = parameters.blocks()[parameters.trained()[range.parameter].block];
    flip(tutti::elements_of(place_ == "sum" ? block.grads : block.values, range.elements));
  }

 private:
  // Flips the highest bit of the first number's mantissa.
  static void flip(const torch::Tensor& tensor) {
    auto* const bytes = static_cast<unsigned char*>(tensor.data_ptr());
    bytes[2] = static_cast<unsigned char>(bytes[2] ^ 0x40);
  }
  static torch::Tensor flipped(const torch::Tensor& tensor) {
    torch::Tensor other = tensor.clone();
    flip(other);
    return other;
  }

  int64_t worker_ = -1;
  int64_t step_ = 0;
  std::string place_;
  uint64_t range_ = 0;  // that is audited in this step
  bool due_ = false;
  bool watches_ = false;
};

}  // namespace tutti::testing

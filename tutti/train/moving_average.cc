#include "tutti/train/moving_average.h"

#include <map>
#include <string>

#include <fmt/format.h>
#include <torch/utils.h>

#include "tutti/base/error.h"

namespace tutti {

MovingAverage::MovingAverage(Parameters& parameters, double decay) : parameters_(parameters), decay_(decay) {
  if (!(decay > 0 && decay < 1))
    fail(ErrorKind::InvalidArgument, "the decay of a moving average is {}, expected a number between 0 and 1",
         decay);
}

void MovingAverage::begin() {
  if (!average_.empty()) return;
  for (const Stretch& block : parameters_.blocks()) average_.push_back(block.values.detach().clone());
}

void MovingAverage::update() {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < average_.size(); ++i) average_[i].lerp_(parameters_.blocks()[i].values, 1 - decay_);
}

void MovingAverage::with_average(const std::function<void()>& body) {
  if (average_.empty()) return body();
  const torch::NoGradGuard no_grad;
  const auto swap = [this] {
    for (size_t i = 0; i < average_.size(); ++i) {
      const torch::Tensor values = parameters_.blocks()[i].values.detach();
      const torch::Tensor before = values.clone();
      values.copy_(average_[i]);
      average_[i].copy_(before);
    }
  };
  swap();
  try {
    body();
  } catch (...) {
    swap();
    throw;
  }
  swap();
}

StatePart MovingAverage::part() {
  return {[this] { return snapshot(); }, [this](const Snapshot& saved) { restore(saved); }};
}

Snapshot MovingAverage::snapshot() const {
  Snapshot all;
  if (average_.empty()) return all;
  for (const auto& view : parameters_.trained())
    all.tensors.push_back({view.name, parameters_.view_of(view, average_[view.block])});
  return all;
}

void MovingAverage::restore(const Snapshot& saved) {
  std::map<std::string, torch::Tensor> by_name;
  for (const auto& [name, tensor] : saved.tensors) by_name.emplace(name, tensor);
  std::vector<torch::Tensor> average;
  for (const Stretch& block : parameters_.blocks()) average.push_back(block.values.detach().clone());
  for (const auto& view : parameters_.trained()) {
    const auto found = by_name.find(view.name);
    torch::Tensor own = parameters_.view_of(view, average[view.block]);
    if (found == by_name.end() || found->second.sizes() != own.sizes())
      fail(ErrorKind::InvalidArgument, "the moving average in the checkpoint does not fit the model: '{}' {}",
           view.name, found == by_name.end() ? "is missing" : "has another shape");
    own.copy_(found->second);
  }
  average_ = std::move(average);
}

}  // namespace tutti

#pragma once

#include <torch/nn/module.h>

namespace tutti {

// Puts the module into evaluation mode for the duration of the scope.
class EvaluationScope {
 public:
  explicit EvaluationScope(torch::nn::Module& module) : module_(module), was_training_(module.is_training()) {
    if (was_training_) module_.eval();
  }
  ~EvaluationScope() {
    if (was_training_) module_.train();
  }
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  torch::nn::Module& module_;
  bool was_training_;
};

}  // namespace tutti

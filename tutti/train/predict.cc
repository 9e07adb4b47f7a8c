#include "tutti/train/predict.h"

#include <vector>

#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/data/batch_queue.h"
#include "tutti/data/sampler.h"
#include "tutti/train/evaluation_scope.h"

namespace tutti {
namespace {

torch::Device device_of(const torch::nn::Module& module) {
  const std::vector<torch::Tensor> parameters = module.parameters();
  return parameters.empty() ? torch::Device(torch::kCPU) : parameters.front().device();
}

}  // namespace

torch::Tensor predict(const Trainable& model, const data::Feed& feed, const PredictOptions& options) {
  if (!model.predict) fail_no_predictions();
  const torch::NoGradGuard no_grad;
  const EvaluationScope evaluation(*model.module);
  const torch::Device device = device_of(*model.module);
  const data::Sampler sampler(feed.size(), {.order = data::Order::Sequential, .batch = options.batch});
  data::BatchQueue queue(feed, sampler, {.end_step = sampler.steps_per_epoch(), .device = device});
  std::vector<torch::Tensor> rows;
  while (const auto batch = queue.next()) rows.push_back(model.predict(batch->to(device)).cpu());
  return rows.empty() ? torch::Tensor() : torch::cat(rows);
}

}  // namespace tutti

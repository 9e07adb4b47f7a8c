#include "tutti/train/trainable.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include <fmt/ranges.h>

#include "tutti/params/parameters.h"

namespace tutti {
namespace {

using Named = Batch::Tensors::value_type;

bool is_label(std::string_view name) {
  constexpr std::array<std::string_view, 5> kLabels = {"y", "label", "labels", "target", "targets"};
  return std::find(kLabels.begin(), kLabels.end(), name) != kLabels.end();
}

std::vector<const Named*> inputs_among(const Batch& batch) {
  std::vector<const Named*> inputs;
  for (const Named& named : batch.tensors()) {
    if (named.first == "x" || named.first == "image") inputs.push_back(&named);
  }
  if (!inputs.empty()) return inputs;
  for (const Named& named : batch.tensors()) {
    if (!is_label(named.first)) inputs.push_back(&named);
  }
  std::vector<const Named*> floating;
  std::copy_if(inputs.begin(), inputs.end(), std::back_inserter(floating),
               [](const Named* named) { return named->second.is_floating_point(); });
  return floating.empty() ? inputs : floating;
}

}  // namespace

bool evaluates_by_loss(const Trainable& model) {
  const bool is_own = model.predict && model.predict.target<internal::ForwardPass>() == nullptr;
  return model.loss_predicts || !is_own;
}

void fail_no_predictions() {
  fail(ErrorKind::InvalidArgument,
       "the model has no function for predictions: give its class a forward(torch::Tensor) or a "
       "forward(const tutti::Batch&), set Trainable::predict, or, for evaluations, let the loss function "
       "return {{loss, prediction}}");
}

const torch::Tensor& input_of(const Batch& batch, const std::string& name) {
  if (!name.empty()) return batch[name];
  const std::vector<const Named*> inputs = inputs_among(batch);
  if (inputs.size() == 1) return inputs.front()->second;
  std::vector<std::string> columns;
  for (const auto& [column, tensor] : batch.tensors()) columns.push_back(column + " " + describe(tensor));
  std::vector<std::string> names;
  for (const Named* input : inputs) names.push_back(input->first);
  fail(ErrorKind::InvalidArgument,
       "predictions: the batch has {}, and {} the input of the model's forward(Tensor). Name it, as in "
       "make_trainable(net, loss, {{.input = \"{}\"}}), call it \"x\" in the feed, or set Trainable::predict",
       columns.empty() ? "no tensors" : fmt::format("{}", fmt::join(columns, ", ")),
       names.empty() ? "none of them can be" : fmt::format("each of {} could be", fmt::join(names, ", ")),
       names.empty() ? "name" : names.front());
}

}  // namespace tutti

#include "tutti/train/history.h"

#include <utility>

#include <torch/utils.h>

namespace tutti {

void HistoryHook::begin(Training&) {
  if (std::exchange(restored_, false)) return;
  history_.rows.clear();
  loss_sum_ = torch::Tensor();
  examples_ = 0;
}

void HistoryHook::after_step(Training& training, const StepResult& result) {
  if (!result.has_loss() || training.steps_per_epoch == 0) return;
  const torch::NoGradGuard no_grad;
  loss_sum_ = loss_sum_.defined() ? loss_sum_ + result.loss_sum : result.loss_sum.clone();
  examples_ += result.examples;
}

// Returns the row of the current step, which may be the end of an epoch as well as a validation.
History::Row& HistoryHook::row_of(const Training& training) {
  if (history_.rows.empty() || history_.rows.back().step != training.step) {
    History::Row row{.step = training.step, .epoch = training.epoch};
    if (loss_sum_.defined()) row.loss = loss_sum_.item<double>() / static_cast<double>(examples_);
    history_.rows.push_back(std::move(row));
    loss_sum_ = torch::Tensor();
    examples_ = 0;
  }
  return history_.rows.back();
}

void HistoryHook::end_epoch(Training& training) { row_of(training); }

void HistoryHook::after_validation(Training& training, const std::map<std::string, double>& values) {
  row_of(training).validation = values;
}

Snapshot HistoryHook::state() const {
  Json rows = Json::array();
  for (const History::Row& row : history_.rows) {
    Json json = {{"step", row.step}, {"epoch", row.epoch}, {"validation", row.validation}};
    if (row.loss) json["loss"] = *row.loss;
    rows.push_back(std::move(json));
  }
  Snapshot state;
  state.values = {{"rows", std::move(rows)}, {"examples", examples_}};
  if (loss_sum_.defined()) state.values["loss_sum"] = loss_sum_.item<double>();
  return state;
}

void HistoryHook::restore(const Snapshot& saved) {
  const Json& state = saved.values;
  history_.rows.clear();
  for (const Json& row : state.at("rows")) {
    // A value that was not finite is null in a checkpoint.
    std::map<std::string, double> validation;
    for (const auto& [name, value] : row.at("validation").items()) {
      if (value.is_number()) validation[name] = value.get<double>();
    }
    const auto loss = row.find("loss");
    history_.rows.push_back(
        {.step = row.at("step").get<int64_t>(),
         .epoch = row.at("epoch").get<int64_t>(),
         .loss = loss != row.end() && loss->is_number() ? std::optional(loss->get<double>()) : std::nullopt,
         .validation = std::move(validation)});
  }
  examples_ = state.at("examples").get<int64_t>();
  const auto sum = state.find("loss_sum");
  loss_sum_ = sum != state.end() && sum->is_number() ? torch::full({}, sum->get<double>(), torch::kDouble)
                                                     : torch::Tensor();
  restored_ = true;
}

}  // namespace tutti

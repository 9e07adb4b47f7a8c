#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/train/hook.h"

namespace tutti {

// What a fit has reached, with a row for every epoch and every validation. A resumed fit continues the
// history of the run.
struct History {
  struct Row {
    int64_t step = 0;
    int64_t epoch = 0;  // its index, from 0
    // The mean training loss since the previous row; nullopt if this worker does not know it.
    std::optional<double> loss = {};
    std::map<std::string, double> validation = {};  // empty if the model was not validated at this step

    bool operator==(const Row&) const = default;
  };
  std::vector<Row> rows;
};

// Records the history of a training. The losses stay on their device until a row is added.
class HistoryHook final : public Hook {
 public:
  const History& history() const { return history_; }

  void begin(Training& training) override;
  void after_step(Training& training, const StepResult& result) override;
  void end_epoch(Training& training) override;
  void after_validation(Training& training, const std::map<std::string, double>& values) override;
  std::string name() const override { return "history"; }
  Snapshot state() const override;
  void restore(const Snapshot& saved) override;

 private:
  History::Row& row_of(const Training& training);

  History history_;
  torch::Tensor loss_sum_;  // since the last row; undefined: none
  int64_t examples_ = 0;    // since the last row
  bool restored_ = false;   // since the last begin()
};

}  // namespace tutti

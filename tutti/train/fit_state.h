#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "tutti/base/json.h"
#include "tutti/base/torch_compat.h"
#include "tutti/data/feed.h"
#include "tutti/embedding/tables.h"
#include "tutti/params/parameters.h"
#include "tutti/train/hook.h"

// The state that a Trainer or a Loop keeps from step to step and from fit to fit, besides nets and
// optimisers.
namespace tutti {

// The losses and validations of a fit or a loop, with a row for every epoch and every validation. A resumed
// one continues the history of the run.
struct History {
  // The state after an epoch or at a validation.
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

// The rows for a report: {"step": 100, "epoch": 0, "loss": 0.3, "validation": {"accuracy": 0.9}}. Values that
// are unknown or not finite are null, and rows without a validation have none.
Json to_json(const History& history);

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
  bool restored_ = false;   // since the last begin() or step
};

// The feeds that a program trains on, numbered from 0 in the order of their first use. The numbers are the
// same on all workers and when the program is run again, since it calls fit() in the same order, so
// checkpoints refer to feeds by number.
//
// Two feeds are the same if they have the same sources, combined in the same way, and the same size, order
// and partition; transforms are not compared. A source that was destroyed is replaced by the next one in a
// feed that is the same otherwise, because a program may read its data again for each fit. Not thread-safe.
class FeedsSeen {
 public:
  // Returns the number of the feed. `ranges` are the examples of the feed's lanes.
  size_t number_of(const data::Feed& feed, const std::vector<data::ExampleRange>& ranges);

 private:
  struct Seen {
    std::vector<std::weak_ptr<const data::Source>> sources;
    std::string recipe;
    int64_t size;
    data::Order order;
    std::vector<data::ExampleRange> ranges;
  };

  std::vector<Seen> seen_;
};

// An exponential moving average of the parameters of one or more nets, which often generalises better than
// the last values: the mean of the values after all steps so far, in which the values of k steps ago have the
// weight decay^k (AverageWeights). The values before the first step have no weight. Buffers are not averaged.
// Not thread-safe.
class MovingAverage final : public Hook {
 public:
  // The parameters and tables must outlive this. If the name is not empty, it is a prefix of the tensors'
  // names.
  struct Net {
    std::string name;
    Parameters& parameters;
    double decay;
    // The sharded tables of the net, whose owners keep the average of their rows; null if it has none.
    embedding::Tables* tables = nullptr;
    std::vector<torch::Tensor> average = {};  // one vector per block
  };

  // There is at least one net. Throws InvalidArgument unless 0 < decay < 1.
  explicit MovingAverage(std::vector<Net> nets);

  void after_start(Training& training) override;
  void after_step(Training& training, const StepResult& result) override;
  // Begins again with the present values of the parameters.
  void restart();
  // Calls `body` while the parameters have the averaged values, or the values of the last step, and lookups
  // read such rows. May be nested.
  void with_average(const std::function<void()>& body);
  void without_average(const std::function<void()>& body);
  // Returns true if the parameters have the averaged values.
  bool is_in_use() const { return swapped_; }
  // Returns the average as tensors with the names of the parameters; empty before the first step.
  store::NamedTensors tensors() const;
  // The average as a part of a run's state.
  StatePart part();

 private:
  void restore_average(const Snapshot& saved);
  void while_swapped(const std::function<void()>& body);
  void swap();

  std::vector<Net> nets_;
  bool has_begun_ = false;
  int64_t steps_ = 0;     // that are averaged
  bool swapped_ = false;  // the parameters have the averaged values
};

// Measures the time that steps take on a GPU, without waiting for it. Does nothing on a CPU. Not thread-safe.
class DeviceClock {
 public:
  explicit DeviceClock(torch::Device device) : device_(device) {}

  void begin_step();
  void end_step();
  // Returns the time of all steps, waiting for the last; nullopt without a GPU or if it cannot be read.
  std::optional<double> seconds();

 private:
  void add_passed();

  const torch::Device device_;
  std::optional<compat::TimedEvent> begin_;
  std::deque<std::pair<compat::TimedEvent, compat::TimedEvent>> under_way_;
  std::optional<double> milliseconds_;
};

}  // namespace tutti

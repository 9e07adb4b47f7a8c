#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/store/checkpoint.h"
#include "tutti/store/manifest.h"
#include "tutti/train/fit_state.h"
#include "tutti/train/hooks.h"
#include "tutti/train/run_folder.h"
#include "tutti/train/snapshot.h"

namespace tutti::hooks {
namespace {

bool is_smaller_better(const std::string& name, Goal goal) {
  if (goal != Goal::Auto) return goal == Goal::Smaller;
  return name.ends_with("loss") || name.ends_with("error") || name.ends_with("mse");
}

// The best value of a validation so far, which a resumed run continues with.
class Best {
 public:
  Best(std::string monitor, Goal goal, double min_delta)
      : monitor_(std::move(monitor)), sign_(is_smaller_better(monitor_, goal) ? -1 : 1), delta_(min_delta) {}

  // Called at the beginning of a training: forgets the value, and returns true, unless it was just restored.
  bool forget() {
    if (std::exchange(restored_, false)) return false;
    value_.reset();
    return true;
  }

  // Returns true if the monitored value is better than all before, which NaN, or none, never is; nullopt if
  // it belongs to another evaluation, or to a hook. Throws InvalidArgument if no evaluation can have it.
  std::optional<bool> improves(const Training& training, const std::map<std::string, double>& values) {
    restored_ = false;
    const auto found = values.find(monitor_);
    is_told_ = is_told_ || found != values.end() || !training.reported.contains(monitor_);
    if (found == values.end()) {
      if (training.reported.contains(monitor_)) return std::nullopt;
      for (const auto& [name, value] : values) others_.insert(name);
      evaluations_.insert(training.evaluation);
      if (static_cast<int>(evaluations_.size()) < training.evaluations) return std::nullopt;
      if (training.knows_values) return false;
      fail(ErrorKind::InvalidArgument, "the {} has no value '{}', which a hook monitors; its values are: {}",
           training.evaluations > 1 ? "training" : "validation", monitor_, fmt::join(others_, ", "));
    }
    if (std::isnan(found->second)) return false;
    if (value_ && !(sign_ * (found->second - *value_) > delta_)) return false;
    value_ = found->second;
    return true;
  }

  // At the end of a training, warns if no values were ever told. Hooks of the program may tell some as well,
  // so that this is not known earlier.
  void warn_if_untold(const Training& training, const std::string& hook) const {
    if (is_told_ || value_ || training.interrupted || !training.writes()) return;
    if (training.reported.contains(monitor_))
      training.context.log().warning("{} did nothing, since '{}', which a hook is to tell, was never told",
                                     hook, monitor_);
    else if (training.evaluations == 0)
      training.context.log().warning(
          "{} did nothing, since nothing was evaluated: give fit() a validation feed, or add "
          "hooks::evaluation()",
          hook);
  }

  const std::optional<double>& value() const { return value_; }
  Json json() const { return value_ ? json_of_number(*value_) : Json(nullptr); }
  void restore(const Json& json) {
    value_ = json.is_null() ? std::nullopt : std::optional(number_of_json(json, "the best value"));
    restored_ = true;
  }

 private:
  const std::string monitor_;
  const double sign_;
  const double delta_;
  std::optional<double> value_;
  bool restored_ = false;  // since the last forget() or value
  bool is_told_ = false;
  std::set<std::string> evaluations_;  // that did not have the value
  std::set<std::string> others_;       // their values
};

// All weights and buffers of all nets, which are the nets' own.
std::vector<torch::Tensor> values_of(const std::vector<SessionPart>& parts) {
  std::vector<torch::Tensor> values;
  for (const SessionPart& part : parts) {
    for (const Section& block : part.parameters.blocks()) values.push_back(block.values.detach());
    for (const auto& view : part.parameters.buffers()) values.push_back(view.tensor.detach());
  }
  return values;
}

std::vector<torch::Tensor> copies_of(const std::vector<SessionPart>& parts) {
  std::vector<torch::Tensor> copies = values_of(parts);
  for (torch::Tensor& tensor : copies) tensor = tensor.clone();
  return copies;
}

// Throws DataLoss unless the tensors, which were restored, have the types and shapes of the nets' own.
void require_copies_of(const std::vector<SessionPart>& parts, const std::vector<torch::Tensor>& copies) {
  const auto is_alike = [](const torch::Tensor& a, const torch::Tensor& b) {
    return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes();
  };
  const std::vector<torch::Tensor> values = values_of(parts);
  if (!std::equal(values.begin(), values.end(), copies.begin(), copies.end(), is_alike))
    fail(ErrorKind::DataLoss,
         "the best weights in the checkpoint, which early_stopping keeps, are not weights of this model");
}

void copy_back(const std::vector<torch::Tensor>& copies, const std::vector<SessionPart>& parts) {
  const torch::NoGradGuard no_grad;
  const std::vector<torch::Tensor> values = values_of(parts);
  for (size_t i = 0; i < values.size(); ++i) values[i].copy_(copies[i]);
}

// A checkpoint of the weights of all nets, without the states of their optimisers.
store::Checkpoint weights_of(const std::vector<SessionPart>& parts) {
  store::Checkpoint all;
  for (const auto& [name, parameters, optimizer] : parts)
    add_part(all, name, snapshot(parameters, optimizer.options(), {}));
  return all;
}

class EarlyStopping final : public Hook {
 public:
  explicit EarlyStopping(const EarlyStoppingOptions& options)
      : options_(options), best_(options.monitor, options.goal, options.min_delta) {
    if (options.patience < 0)
      fail(ErrorKind::InvalidArgument, "the patience of early_stopping is {}, expected 0 or more",
           options.patience);
  }

  void begin(Training& training) override {
    if (options_.restore_best && training.keeps_parameters_elsewhere)
      fail(ErrorKind::InvalidArgument,
           "early_stopping cannot restore the best weights, since the parameter servers hold them: use "
           "keep_best(), which saves them");
    if (options_.restore_best && training.has_rows)
      fail(ErrorKind::InvalidArgument,
           "early_stopping cannot restore the best rows of sharded embeddings: use keep_best(), which saves "
           "them");
    if (!best_.forget()) return;
    without_ = 0;
    weights_.clear();
  }

  void after_start(Training& training) override {
    if (!weights_.empty()) require_copies_of(training.parts, weights_);
  }

  void after_validation(Training& training, const std::map<std::string, double>& values) override {
    const std::optional<bool> improves = best_.improves(training, values);
    if (!improves) return;
    if (*improves) {
      without_ = 0;
      if (options_.restore_best) training.with_average([&] { weights_ = copies_of(training.parts); });
      return;
    }
    if (++without_ <= options_.patience || training.stop_reason) return;
    training.stop_reason =
        fmt::format("{} has not improved for {} validations; its best value is {}", options_.monitor,
                    without_, best_.value() ? fmt::format("{:.6g}", *best_.value()) : "none");
  }

  void end(Training& training) override {
    best_.warn_if_untold(training, name());
    if (weights_.empty() || training.interrupted) return;
    copy_back(weights_, training.parts);
    if (training.writes())
      training.context.log().info(
          "early_stopping has restored the weights of the best validation ({} {:.6g})", options_.monitor,
          best_.value().value_or(std::nan("")));
    if (training.average != nullptr) training.average->restart();
    training.save_at_end = true;
  }

  std::string monitored() const override { return options_.monitor; }

  std::string name() const override { return "early_stopping"; }
  Snapshot state() const override {
    Snapshot state;
    state.values = {{"best", best_.json()}, {"without", without_}};
    for (const torch::Tensor& tensor : weights_)
      state.tensors.push_back({std::to_string(state.tensors.size()), tensor});
    return state;
  }
  void restore(const Snapshot& state) override {
    best_.restore(state.values.at("best"));
    without_ = state.values.at("without").get<int64_t>();
    weights_.clear();
    for (const auto& [name, tensor] : state.tensors) weights_.push_back(tensor.clone());
  }

 private:
  const EarlyStoppingOptions options_;
  Best best_;
  int64_t without_ = 0;                 // validations since the last improvement
  std::vector<torch::Tensor> weights_;  // of the best validation
};

class KeepBest final : public Hook {
 public:
  explicit KeepBest(const KeepBestOptions& options)
      : options_(options), best_(options.monitor, options.goal, 0) {}

  void begin(Training& training) override {
    best_.forget();
    if (training.folder.empty() && training.writes())
      training.context.log().warning("keep_best saves nothing without --logdir");
  }

  void after_validation(Training& training, const std::map<std::string, double>& values) override {
    if (!best_.improves(training, values).value_or(false) || training.folder.empty()) return;
    training.with_average([&] {
      const Snapshot rows = training.has_rows ? training.rows() : Snapshot();
      if (!training.writes()) return;
      store::Checkpoint checkpoint = weights_of(training.parts);
      if (!rows.empty()) {
        checkpoint.more[store::kRowsPart] = rows.tensors;
        checkpoint.state["state"][store::kRowsPart] = rows.values;
      }
      checkpoint.step = training.step;
      record_flags(training.context, checkpoint);
      checkpoint.state["best"] = {{options_.monitor, best_.json()}};
      store::CheckpointDir(training.folder + "/" + options_.folder, {.keep = 1}).save(checkpoint);
    });
  }

  void end(Training& training) override { best_.warn_if_untold(training, name()); }

  std::string monitored() const override { return options_.monitor; }

  std::string name() const override { return "keep_best"; }
  Snapshot state() const override {
    Snapshot state;
    state.values = {{"best", best_.json()}};
    return state;
  }
  void restore(const Snapshot& state) override { best_.restore(state.values.at("best")); }

 private:
  const KeepBestOptions options_;
  Best best_;
};

}  // namespace

std::unique_ptr<Hook> early_stopping(const EarlyStoppingOptions& options) {
  return std::make_unique<EarlyStopping>(options);
}

std::unique_ptr<Hook> keep_best(const KeepBestOptions& options) {
  return std::make_unique<KeepBest>(options);
}

}  // namespace tutti::hooks

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/comm/executor.h"
#include "tutti/params/lane_vectors.h"
#include "tutti/ps/client.h"
#include "tutti/train/lane_runner.h"
#include "tutti/train/replica.h"
#include "tutti/train/strategy.h"

namespace tutti {

struct PsAsyncOptions {
  int rank = 0;
  int world = 1;
  int64_t lanes = 1;
  double clip_norm = 0;
  // What is pushed and what comes back travels while the next gradients are computed: these are then of
  // values that are one update of each worker older.
  bool overlap = true;
  Allocate allocate = {};
  Timeline* timeline = nullptr;
};

// Every worker pulls the newest parameters, computes the mean gradient of its lanes, and pushes it; the
// servers apply it at once. Every push that is applied is a step.
class PsAsync final : public Strategy {
 public:
  // All outlive the strategy. The vectors are the client's extras.
  PsAsync(Replica& replica, ps::Client& client, LaneVectors& vectors, const PsAsyncOptions& options);
  ~PsAsync() override;

  std::string name() const override { return "ps-async"; }
  LaneRange lanes() const override { return block_; }
  bool in_step() const override { return false; }
  // Its share: where the others make as many.
  StepRange data_steps(int64_t step, int64_t end) const override {
    return {step / options_.world, step / options_.world + (end - step) + 1};
  }
  void ends_at(int64_t step) override { end_ = step; }
  StepResult step(int64_t step, const Wishes& wishes, data::BatchQueue& queue,
                  const LaneObserver& observe) override;
  void settle() override {
    if (under_way_) push_.wait();
  }
  int64_t finish(int64_t step) override;
  std::string reduce() const override { return "none"; }

 private:
  // What goes out, or comes back; in the host's memory.
  struct Vectors {
    std::vector<torch::Tensor> blocks;
    ps::Extras extras;
  };

  Vectors like_ours() const;
  bool compute(int64_t step, data::BatchQueue& queue, const LaneObserver& observe);
  void start_push(int64_t of);
  StepResult end_push();

  Replica& replica_;
  ps::Client& client_;
  LaneVectors& vectors_;
  const PsAsyncOptions options_;
  const LaneRange block_;
  std::vector<torch::Tensor> gradients_;  // the parameters'
  LaneRunner lanes_;
  ps::Extras before_;  // buffers that the lanes began with, and then how they have changed them
  Vectors going_;
  Vectors coming_;
  int64_t end_ = -1;
  int64_t now_ = 0;
  int64_t values_step_ = -1;  // the one whose values came with the last push; -1: there was none
  int64_t examples_ = 0;
  ps::Client::Applied applied_;  // written by the thread
  bool under_way_ = false;
  int64_t pushed_examples_ = 0;  // of the push under way
  torch::Tensor pushed_loss_;
  comm::Work push_;
  comm::Executor thread_;  // last, so that it ends first
};

}  // namespace tutti

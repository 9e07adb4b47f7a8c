#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/comm/executor.h"
#include "tutti/params/lane_sum.h"
#include "tutti/ps/client.h"
#include "tutti/train/lane_runner.h"
#include "tutti/train/replica.h"
#include "tutti/train/strategies/server_steps.h"

namespace tutti {

struct PsAsyncOptions {
  int rank = 0;
  int world = 1;
  int64_t lanes = 1;
  double clip_norm = 0;
  // Pushes and receives values while the next gradients are computed. Those gradients are then computed from
  // values that are one update of each worker older.
  bool overlap = true;
  Allocate allocate = {};
  Timeline* timeline = nullptr;
};

// Every worker pulls the newest parameters, computes the mean gradient of its lanes, and pushes it; the
// servers apply it at once. Every push that is applied is a step. The servers move the floating buffers
// towards those of the push by the worker's share, 1/world, so that they stay between the values that workers
// have computed: with the changes of several workers added up, a running variance may become negative.
class PsAsync final : public ServerSteps {
 public:
  // All must outlive the strategy. The buffers and counters of `vectors` are the client's extras.
  PsAsync(Replica& replica, ps::Client& client, LaneVectors& vectors, const PsAsyncOptions& options);
  ~PsAsync() override;

  // This worker's share of the steps, if all workers make equally many.
  StepRange begin(int64_t step, int64_t end, int64_t feed_begin) override {
    end_ = feed_begin + end;
    return {step / options_.world, step / options_.world + (end - step) + 1};
  }
  StepResult make(int64_t step, const Wishes& wishes, data::BatchQueue& queue,
                  const LaneObserver& observe) override;
  void settle() override {
    if (under_way_) push_.wait();
  }
  int64_t finish(int64_t step) override;
  std::string reduce() const override { return "none"; }

 private:
  // The vectors that are pushed, or that come back; in host memory.
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
  std::vector<torch::Tensor> gradients_;  // those of the parameters
  LocalSum sum_;
  LaneRunner lanes_;
  ps::Extras results_;  // of the lanes: the floating buffers, and the changes of the counters
  Vectors going_;
  Vectors coming_;
  int64_t end_ = -1;
  int64_t now_ = 0;
  int64_t values_step_ = -1;  // the step of the values from the last push; -1: none
  int64_t examples_ = 0;
  ps::Client::Applied applied_;  // written by the thread
  bool under_way_ = false;
  int64_t pushed_examples_ = 0;  // of the current push
  torch::Tensor pushed_loss_;
  comm::Work push_;
  comm::Executor thread_;  // last member, so that it ends first
};

}  // namespace tutti

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/ps/client.h"
#include "tutti/ps/server_rows.h"
#include "tutti/step/control_word.h"
#include "tutti/step/lane_sum.h"
#include "tutti/train/data_parallel.h"
#include "tutti/train/replica.h"
#include "tutti/transport/executor.h"

// The two ways in which the workers of parameter servers (ParameterServers) make their steps.
namespace tutti {

struct ServerStepsOptions {
  int rank = 0;
  int world = 1;
  int64_t lanes = 1;
  double clip_norm = 0;
  int64_t backup = 0;  // PsSync: the number of workers that a step need not wait for
  // PsAsync: pushes and receives values while the next gradients are computed. Those gradients are then
  // computed from values that are one update of each worker older.
  bool overlap = true;
  Allocate allocate = {};  // of vectors that are pushed by PsAsync
  Timeline* timeline = nullptr;
};

// See DataParallel, whose methods these are.
class ServerSteps {
 public:
  // All must outlive this. The buffers and counters of `vectors` are the client's extras.
  ServerSteps(Replica& replica, ps::Client& client, ps::ServerRows& rows, LaneVectors& vectors,
              const ServerStepsOptions& options)
      : replica_(replica),
        client_(client),
        rows_(rows),
        vectors_(vectors),
        options_(options),
        own_lanes_(lanes_of(options.rank, options.world, options.lanes)) {}
  virtual ~ServerSteps() = default;
  virtual StepRange steps_of_feed(int64_t step, int64_t end, int64_t /*feed_begin*/) { return {step, end}; }
  virtual LaneSum& begin_step(int64_t step, const Wishes& wishes) = 0;
  virtual StepResult end_step() = 0;
  virtual void settle() {}
  // Waits for pending requests and applies their results; returns the number of steps made.
  virtual int64_t finish(int64_t step) { return step; }
  // The way in which gradients are added, for the report.
  virtual std::string reduce() const = 0;

 protected:
  Replica& replica_;
  ps::Client& client_;
  ps::ServerRows& rows_;
  LaneVectors& vectors_;
  const ServerStepsOptions options_;
  const LaneRange own_lanes_;
  Wishes wishes_;  // of this worker, for the current step
};

// Every worker computes its lanes and pushes the sums; the servers add them along the tree over all lanes,
// update the parameters, and return them. The result has the same bits as without servers.
//
// With backup workers, a step uses the first gradients that are ready. A worker that is later than that
// continues with the step that the others have reached; the lanes that it missed count as lanes without data.
class PsSync final : public ServerSteps {
 public:
  PsSync(Replica& replica, ps::Client& client, ps::ServerRows& rows, LaneVectors& vectors,
         const ServerStepsOptions& options);

  // Waits for the workers that have not started yet.
  StepRange steps_of_feed(int64_t step, int64_t end, int64_t feed_begin) override {
    if (step < end) client_.await_workers();
    return ServerSteps::steps_of_feed(step, end, feed_begin);
  }
  LaneSum& begin_step(int64_t step, const Wishes& wishes) override;
  StepResult end_step() override;
  std::string reduce() const override {
    return options_.backup > 0 ? "tree, of those who were there" : "tree";
  }

 private:
  StepResult push(const std::vector<TreeSum::Subtree>& subtrees, const embedding::TableGradients& rows,
                  int64_t expected);
  StepResult result_of(ControlWord& control, const std::vector<torch::Tensor>& control_words);
  StepResult catch_up();
  void add_sums(const std::vector<TreeSum::Subtree>& subtrees, ps::Client::Push& push) const;

  LocalSum sum_;
  ControlWord control_;
  const torch::Tensor own_control_word_;
  int64_t step_ = 0;  // the current one
};

// Every worker pulls the newest parameters, computes the mean gradient of its lanes, and pushes it; the
// servers apply it at once. Every push that is applied is a step. The servers move the floating buffers
// towards the buffers of the push by the worker's share, 1/world, so that they stay between the values that
// workers have computed: with the changes of several workers added up, a running variance may become
// negative.
class PsAsync final : public ServerSteps {
 public:
  PsAsync(Replica& replica, ps::Client& client, ps::ServerRows& rows, LaneVectors& vectors,
          const ServerStepsOptions& options);

  // This worker's share of the steps, if all workers make equally many.
  StepRange steps_of_feed(int64_t step, int64_t end, int64_t feed_begin) override {
    end_ = feed_begin + end;
    return {step / options_.world, step / options_.world + (end - step) + 1};
  }
  LaneSum& begin_step(int64_t step, const Wishes& wishes) override;
  StepResult end_step() override;
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
  bool finish_lanes();
  void start_push();
  StepResult end_push();

  std::vector<torch::Tensor> gradients_;  // those of the parameters
  LocalSum sum_;
  ps::Extras results_;  // of the lanes: the floating buffers, and the changes of the counters
  embedding::TableGradients row_gradients_;  // of the lanes
  embedding::TableGradients going_rows_;
  Vectors going_;
  Vectors coming_;
  int64_t end_ = -1;
  int64_t now_ = 0;
  int64_t of_ = 0;            // the step of the values from which the current gradients are computed
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

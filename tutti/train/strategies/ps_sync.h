#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/params/control_word.h"
#include "tutti/params/lane_sum.h"
#include "tutti/ps/client.h"
#include "tutti/train/lane_runner.h"
#include "tutti/train/replica.h"
#include "tutti/train/strategies/server_steps.h"

namespace tutti {

struct PsSyncOptions {
  int rank = 0;
  int world = 1;
  int64_t lanes = 1;
  int64_t backup = 0;  // the number of workers that a step need not wait for
  double clip_norm = 0;
  Timeline* timeline = nullptr;
};

// Every worker computes its lanes and pushes the sums; the servers add them along the tree over all lanes,
// update the parameters, and return them. The result has the same bits as without servers.
//
// With backup workers, a step uses the first gradients that are ready. A worker that is later than that
// continues with the step that the others have reached; the lanes that it missed count as lanes without data.
class PsSync final : public ServerSteps {
 public:
  // All must outlive the strategy. The buffers and counters of `vectors` are the client's extras.
  PsSync(Replica& replica, ps::Client& client, LaneVectors& vectors, const PsSyncOptions& options);

  StepRange begin(int64_t step, int64_t end, int64_t) override { return {step, end}; }
  StepResult make(int64_t step, const Wishes& wishes, data::BatchQueue& queue,
                  const LaneObserver& observe) override;
  void settle() override {}
  int64_t finish(int64_t step) override { return step; }
  std::string reduce() const override {
    return options_.backup > 0 ? "tree, of those who were there" : "tree";
  }

 private:
  StepResult push(int64_t step, const Wishes& wishes, const std::vector<TreeSum::Subtree>& subtrees,
                  int64_t expected);
  StepResult catch_up(int64_t step, data::BatchQueue& queue);
  std::vector<std::vector<torch::Tensor>> pieces_of(const std::vector<TreeSum::Subtree>& subtrees) const;

  Replica& replica_;
  ps::Client& client_;
  LaneVectors& vectors_;
  const PsSyncOptions options_;
  const LaneRange block_;
  LocalSum sum_;
  LaneRunner lanes_;
  ControlWord word_;
  const torch::Tensor own_word_;
};

}  // namespace tutti

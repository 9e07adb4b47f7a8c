#include <cstdint>
#include <utility>

#include "tutti/params/plan.h"
#include "tutti/train/strategies/all_reduce.h"
#include "tutti/train/strategies/connected.h"

// The part of AllReduce in which its workers change while they train: some are lost, others come.
namespace tutti {

bool AllReduce::joins() const { return comm_.epochs() != nullptr && comm_.epochs()->is_joining(); }

// Whatever the former workers have made together ends here.
void AllReduce::regroup(const std::optional<Error>& why) {
  if (comm_.epochs() == nullptr) return;
  if (why) *writer_is_lost_ = true;
  if (mean_) mean_->break_off();
  mean_.reset();
  rows_.reset();
  module_group_.reset();
  comm_.reconfigure(why);
  group_.refresh();
  context_.set_chief(group_.is_chief());
}

// Returns why a lost worker takes with it what the others need; "" if they have all of it.
std::string AllReduce::why_not_survive(int64_t lanes) const {
  if (!replica_.tables().empty()) return "each worker has rows of sharded tables";
  if (reducer_.scatter) return "each worker has a part of the optimiser's state (--optimizer-state sharded)";
  if (!replica_.parameters().communicator_users().empty()) return "SyncBatchNorm needs the same workers";
  if (reducer_.wire.type != torch::ScalarType::Undefined)
    return "each worker has residuals of --wire-precision";
  return lanes == 1 ? "there is only one lane" : "";
}

// Returns true if the workers that are left can go back to the newest checkpoint together.
bool AllReduce::can_go_back(int64_t lanes) const {
  return lanes > 1 && !reducer_.scatter && replica_.parameters().communicator_users().empty() &&
         !context_.config().checkpoints.logdir.empty();
}

// Usually all workers are as far, and nothing has to be sent.
std::optional<Strategy::Standing> AllReduce::go_on(Session& session, const std::vector<std::string>& plan,
                                                   const Standing* mine) {
  require_same(plan);
  audits_.may_repeat_steps();
  Together together = come_together(comm_, session, half_taken_over_ ? nullptr : mine);
  if (!together.has_begun) return Standing{.has_begun = false};
  prepare(session.lanes());
  if (together.all_are_there) return std::nullopt;
  half_taken_over_ = together.standing.has_value();
  broadcast_from(together.leader);
  half_taken_over_ = false;
  return std::move(together.standing);
}

}  // namespace tutti

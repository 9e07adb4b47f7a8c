#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/ps/peers.h"
#include "tutti/ps/service.h"
#include "tutti/ps/wire.h"

// The part of a parameter server that goes on with other workers (`tutti run --min`).
namespace tutti::ps {
namespace {

int64_t epoch_in(const rpc::Message& request) {
  return number_within(request.head, "epoch", -1, kMostSteps, -1);
}

}  // namespace

bool Service::is_of_epoch(const rpc::Message& request) const {
  return run_ && run_->id == text_in(request.head, "run") && run_->epoch == epoch_in(request) &&
         run_->over.empty();
}

void Service::require_epoch(const rpc::Message& request) const {
  const int64_t epoch = epoch_in(request);
  if (epoch != run_->epoch)
    fail(ErrorKind::PeerLost, "a message of epoch {} came in epoch {} of the workers", epoch, run_->epoch);
  if (!run_->over.empty()) fail(ErrorKind::PeerLost, "{}", run_->over);
}

// A chief that was stopped and has lost its place must not begin anything.
void Service::require_later_epoch(const rpc::Message& request) const {
  const int64_t epoch = epoch_in(request);
  if (run_ && epoch < run_->epoch)
    fail(ErrorKind::PeerLost, "the workers of epoch {} have changed: it is epoch {} now", epoch, run_->epoch);
}

void Service::end_epoch(const std::string& why) {
  if (!run_ || run_->epoch < 0 || !run_->over.empty()) return;
  run_->over = why;
  changed_.notify_all();
}

rpc::Message Service::abandon(Lock&, const rpc::Caller& caller, const rpc::Message& request) {
  if (is_of_epoch(request))
    end_epoch(fmt::format("{} gave up: {}", name_of(caller), text_in(request.head, "why")));
  return {};
}

// Discards the gradients of a step that is not made yet, since other workers compute its lanes again. A step
// that was made, or added up, stays: the workers send their gradients for it once more, so that other servers
// make it too, and receive the same results.
rpc::Message Service::regroup(Lock&, const rpc::Caller& caller, const rpc::Message& request) {
  if (!run_ || run_->id != text_in(request.head, "run") || !run_->sync)
    fail(ErrorKind::PeerLost, "this server is not in the run that is to go on");
  require_later_epoch(request);
  run_->epoch = epoch_in(request);
  run_->over.clear();
  run_->late.clear();
  run_->workers = static_cast<int>(number_within(request.head, "workers", 1, kMostWorkers));
  run_->sync = std::make_shared<SyncStep>(run_->sync->with_workers(run_->workers));
  run_->agreed.clear();
  run_->holder = 0;
  kept_.reset();
  workers_.clear();
  log_.info("going on at step {} with {} worker{}, says {}", run_->step, run_->workers,
            run_->workers == 1 ? "" : "s", name_of(caller));
  changed_.notify_all();
  return {};
}

}  // namespace tutti::ps

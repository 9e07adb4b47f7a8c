#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/params/optimizer_state.h"
#include "tutti/ps/peers.h"
#include "tutti/ps/service.h"
#include "tutti/ps/wire.h"

// The part of a parameter server that goes on with other workers (`tutti run --min`).
namespace tutti::ps {
namespace {

int64_t epoch_in(const rpc::Message& request) {
  return number_within(request.head, "epoch", -1, kMostSteps, -1);
}

using Tensors = std::vector<torch::Tensor>;

Tensors clones_of(const Tensors& tensors) {
  Tensors clones;
  for (const torch::Tensor& tensor : tensors) clones.push_back(tensor.clone());
  return clones;
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

Json Service::Run::pack_last_step(std::vector<rpc::Piece>& pieces) const {
  Tensors tensors = clones_of(previous);
  for (const Section& section : shard.sections()) tensors.push_back(section.grads.clone());
  tensors.push_back(control_words);
  return {{"index", added_up},
          {"workers", workers_added_up},
          {"row_squares", row_squares},
          {"rate", shard.optimizer().learning_rate()},
          {"had_data", sync->had_data()},
          {"tensors", pack(tensors, pieces)}};
}

bool Service::Run::take_last_step(const Json& last, Reader& reader) {
  added_up = number_within(last, "index", -1, kMostSteps);
  workers_added_up = static_cast<int>(number_within(last, "workers", 0, kMostWorkers));
  row_squares = last.at("row_squares").get<std::vector<double>>();
  shard.optimizer().set_learning_rate(last.at("rate").get<double>());
  Tensors places = previous;
  for (const Section& section : shard.sections()) places.push_back(section.grads);
  const Tensors tensors = unpack(last.at("tensors"), reader);
  if (tensors.size() != places.size() + 1)
    fail(ErrorKind::InvalidArgument, "the last step has {} tensors, expected {}", tensors.size(),
         places.size() + 1);
  for (size_t i = 0; i < places.size(); ++i) places[i].copy_(tensors[i]);
  control_words = tensors.back();
  return last.at("had_data").get<bool>();
}

// What is handed over are copies, since this server may go on meanwhile.
rpc::Message Service::hand_over(Lock&, const rpc::Caller&, const rpc::Message& request) {
  require_run(request);
  if (!run_->sync || run_->rows)
    fail(ErrorKind::InvalidArgument, "only the parameters of a synchronous run can be handed over");
  const torch::NoGradGuard no_grad;
  rpc::Message all{run_->begun_with, {}};
  all.head.update({{"epoch", run_->epoch},
                   {"workers", run_->workers},
                   {"step", run_->step},
                   {"progress", run_->progress}});
  for (const Section& section : run_->shard.sections()) append(all, {section.values.clone()});
  all.head["buffers"] = pack(clones_of(run_->buffers), all.pieces);
  all.head["counters"] = pack(clones_of(run_->counters), all.pieces);
  all.head["frozen"] = pack(run_->frozen, all.pieces);
  all.head["state"] = pack_snapshot(snapshot_of(run_->shard.optimizer().state()), all.pieces);
  all.head["last_step"] = run_->pack_last_step(all.pieces);
  return all;
}

}  // namespace tutti::ps

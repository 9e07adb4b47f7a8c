#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/types.h>

#include "tutti/base/error.h"
#include "tutti/params/optimizer_state.h"
#include "tutti/ps/service.h"
#include "tutti/ps/wire.h"
#include "tutti/store/shared_files.h"

// The methods of a parameter server that take and write consistent copies for checkpoints.
namespace tutti::ps {
namespace {

void require_plain(const std::string& name) {
  if (name.find('/') != std::string::npos)
    fail(ErrorKind::InvalidArgument,
         "this server cannot write '{}', which is not the name of a file in a folder", name);
}

}  // namespace

// Workers push to this server first, and enter steps here. So from now on no new update reaches any server,
// and updates applied here are already on their way to the others.
rpc::Message Service::hold(Lock& lock, const rpc::Caller& caller, const rpc::Message& request) {
  require_run(request);
  wait(
      lock, caller, request, [&] { return run_->holder == 0 || run_->holder == caller.id; },
      [] { return std::string("another task is taking a snapshot of the servers"); });
  run_->holder = caller.id;
  const auto is_late = [&](int rank, const Worker&) {
    return run_->entered.contains(rank) && !run_->sync->has(rank);
  };
  try {
    wait(
        lock, caller, request, [&] { return run_->entering < run_->step || run_->entered.size() < enough(); },
        [&] { return fmt::format("no gradients for step {} from {}", run_->step, missing(is_late)); });
  } catch (const Error&) {
    release_hold(caller);
    throw;
  }
  Json pushes = Json::array();
  for (const auto& [rank, worker] : workers_) pushes.push_back({rank, worker.pushes_since_join});
  return {{{"step", run_->step}, {"pushes", std::move(pushes)}}, {}};
}

rpc::Message Service::release(Lock&, const rpc::Caller& caller, const rpc::Message&) {
  release_hold(caller);
  return {};
}

void Service::release_hold(const rpc::Caller& caller) {
  if (!run_ || run_->holder != caller.id) return;
  run_->holder = 0;
  changed_.notify_all();
}

// Waits until every update that server 0 has applied is applied here, except updates of workers that are
// gone.
void Service::await_pushes(Lock& lock, const rpc::Caller& caller, const rpc::Message& request) {
  std::map<int, int64_t> due;
  for (const Json& entry : request.head.at("pushes"))
    due[entry.at(0).get<int>()] = entry.at(1).get<int64_t>();
  const auto is_due = [&](int rank, const Worker& worker) {
    const auto found = due.find(rank);
    return found != due.end() && worker.caller != 0 && worker.pushes_since_join < found->second;
  };
  wait(
      lock, caller, request,
      [&] {
        return std::none_of(workers_.begin(), workers_.end(),
                            [&](const auto& entry) { return is_due(entry.first, entry.second); });
      },
      [&] {
        return fmt::format("an update that the first server has applied has not arrived from {}",
                           missing(is_due));
      });
}

rpc::Message Service::snapshot(Lock& lock, const rpc::Caller& caller, const rpc::Message& request) {
  require_run(request);
  if (run_->synchronous) {
    const int64_t step = number_within(request.head, "step", 0, kMostSteps);
    wait(
        lock, caller, request, [&] { return run_->step >= step; },
        [&] {
          return fmt::format("the server has not reached step {}; it is at step {}", step, run_->step);
        });
    if (run_->step > step || run_->added_up >= step) return {{{"is_ahead", true}}, {}};
  } else {
    await_pushes(lock, caller, request);
  }
  Optimizer::State state = run_->shard.optimizer().state();  // a copy
  const store::Snapshot slots = snapshot_of(state);
  rpc::Message answer{{{"step", run_->step}, {"progress", run_->progress}, {"state", outline_of(slots)}}, {}};
  for (const Section& section : run_->shard.sections())
    answer.pieces.push_back(piece_of(section.values.clone()));
  append_copies(answer, run_->buffers, request);
  append_copies(answer, run_->counters, request);
  store::NamedTensors rows = copies_of_rows(request, answer.head);
  if (request.head.value("keep", false)) {
    kept_ = Kept{caller.id, std::move(state), std::move(rows)};
    return answer;
  }
  answer.head["state"] = pack_snapshot(slots, answer.pieces);
  if (run_->rows) answer.head["rows"] = pack_named(rows, answer.pieces);
  return answer;
}

// Returns the folder of the chief's mark, or "". A file system may be slow, so others go on meanwhile.
std::string Service::marked_folder(Lock& lock, const rpc::Message& request) {
  const std::string mark = text_in(request.head, "mark");
  lock.unlock();
  std::string folder = store::folder_of_mark(mark);
  lock.lock();
  return folder;
}

rpc::Message Service::shares(Lock& lock, const rpc::Caller&, const rpc::Message& request) {
  return {{{"shares", !marked_folder(lock, request).empty()}}, {}};
}

// The chief knows the names of the parameters and which part of each slot belongs to which. It also gives the
// step, which with ps-async only the first server counts exactly.
rpc::Message Service::write(Lock& lock, const rpc::Caller& caller, const rpc::Message& request) {
  const std::string folder = marked_folder(lock, request);
  require_run(request);
  const std::string name = text_in(request.head, "name");
  const std::string rows_name = request.head.value("rows_name", "");
  for (const std::string& file : {name, rows_name}) require_plain(file);
  if (folder.empty())
    fail(ErrorKind::InvalidArgument, "this server cannot write '{}': it does not share the folder of {}",
         name, text_in(request.head, "mark"));
  if (!kept_ || kept_->caller != caller.id)
    fail(ErrorKind::PeerLost,
         "the connection was lost before this server had written its part of a checkpoint");
  const Kept kept = *std::exchange(kept_, std::nullopt);
  store::NamedTensors tensors;
  for (const Json& one : request.head.at("tensors")) {
    const torch::Tensor& slot = kept.state.slots.at(one.at("slot").get<size_t>()).vector;
    tensors.push_back({text_in(one, "name"), slot.as_strided(one.at("shape").get<std::vector<int64_t>>(),
                                                             one.at("strides").get<std::vector<int64_t>>(),
                                                             number_in(one, "begin"))});
  }
  const int64_t step = number_within(request.head, "step", 0, kMostSteps);
  std::map<std::string, store::NamedTensors> files = {{name, std::move(tensors)}};
  if (!rows_name.empty()) files[rows_name] = kept.rows;
  writer_.run([folder, step, files = std::move(files), log = log_] {
    try {
      for (const auto& [file, content] : files) store::write_shared_file(folder, file, content, step);
    } catch (const std::exception& error) {
      log.warning("this server's part of the checkpoint of step {} was not written: {}", step, error.what());
    }
  });
  return {};
}

}  // namespace tutti::ps

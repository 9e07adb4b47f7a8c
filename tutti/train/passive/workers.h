#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/base/json.h"
#include "tutti/cluster/context.h"
#include "tutti/params/lane_vectors.h"
#include "tutti/params/lanes.h"
#include "tutti/ps/peers.h"
#include "tutti/rpc/arena.h"
#include "tutti/train/replica.h"
#include "tutti/train/trainable.h"

namespace tutti::passive {

// The tasks of a cluster that compute for a master: all but it, in the order of their ranks.
std::vector<Task> tasks_of(const ClusterSpec& cluster);

// How a master wants its workers to compute.
struct Beginning {
  std::vector<std::string> plan;  // that of a worker which has the model itself has to be the same
  int64_t lanes = 1;
  Json progress = Json::object();
};

// The passive workers of a master, as it sees them. They keep nothing: parameters and batches go to them with
// every step. One that is lost is waited for, for --start-timeout, and asked again. Not thread-safe.
class Workers {
 public:
  // All outlive this.
  Workers(const Context& context, const Trainable& model, Replica& replica, LaneVectors& vectors,
          std::shared_ptr<rpc::Arena> arena);
  ~Workers();

  int count() const { return static_cast<int>(peers_.size()); }
  // Waits for all of them, and makes them ready. InvalidArgument: a worker has another plan, or has never
  // seen the model and was given no script, or may not carry one out.
  void begin(const Beginning& beginning);

  // What goes with the run, for one that comes back.
  void set_progress(const Json& progress) { beginning_.progress = progress; }

  LaneRange lanes_of(int worker) const;
  // Sends the parameters as they are and the batches of the worker's lanes, as the feed gives them; computes
  // there. Batches and parameters are not to change until the work is done.
  comm::Work ask(int worker, int64_t step, std::vector<Batch> batches);
  // What the last one that was asked for gave, once it is there. The sums are what ps::SyncStep takes.
  struct Answer {
    rpc::Message sums;
    std::vector<std::optional<LossOutput>> outputs;  // by lane of the worker, where there was data
  };
  const Answer& answer(int worker) const { return answers_[static_cast<size_t>(worker)]; }

  // To all: parameters and buffers as they are now, at the end of a fit.
  void finish(const Json& progress, int64_t stop);
  // To all: JSON under a key.
  void note(const std::string& key, const Json& value);
  // To those who are still there: nothing more will come.
  void end();

 private:
  struct Place;  // where a worker's sums go

  void begin_one(size_t worker);
  void until_done(size_t worker, const std::function<void()>& body);
  void compute(size_t worker, int64_t step, const std::vector<Batch>& batches);
  void fetch_predictions(size_t worker, Answer& answer);

  const Context& context_;
  const Trainable model_;
  Replica& replica_;
  LaneVectors& vectors_;
  const std::shared_ptr<rpc::Arena> arena_;
  Beginning beginning_;
  std::vector<Place> places_;  // by worker
  std::vector<Answer> answers_;
  std::vector<char> ready_;  // whether it has been begun; by worker, each of its thread
  ps::Peers peers_;          // last, so that their threads end first
};

}  // namespace tutti::passive

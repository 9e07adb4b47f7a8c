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
#include "tutti/params/lane_sum.h"
#include "tutti/params/lanes.h"
#include "tutti/ps/peers.h"
#include "tutti/rpc/arena.h"
#include "tutti/train/replica.h"
#include "tutti/train/trainable.h"

namespace tutti::passive {

// Returns the tasks of a cluster that compute for a master: all but the master, in rank order.
std::vector<Task> tasks_of(const ClusterSpec& cluster);

// The settings that a master sends to its workers at the beginning.
struct Beginning {
  std::vector<std::string> plan;  // has to equal the plan of a worker that has the model itself
  int64_t lanes = 1;
  Json progress = Json::object();
};

// The passive workers of a master, seen from the master. They keep no state: parameters and batches are sent
// with every step. Waits for a lost worker for --start-timeout, and repeats the request. Not thread-safe.
class Workers {
 public:
  // All arguments must outlive this.
  Workers(const Context& context, const Trainable& model, Replica& replica, LaneVectors& vectors,
          std::shared_ptr<rpc::Arena> arena);
  ~Workers();

  int count() const { return static_cast<int>(peers_.size()); }
  // Waits for all workers and makes them ready. Throws InvalidArgument if a worker has another plan, or if it
  // does not have the model and was given no script, or may not run scripts.
  void begin(const Beginning& beginning);

  // Sets the progress that is sent to a worker that comes back.
  void set_progress(const Json& progress) { beginning_.progress = progress; }

  LaneRange lanes_of(int worker) const;
  // Sends the current parameters and the batches of the worker's lanes, as the feed returns them, and
  // computes on the worker. Neither batches nor parameters may change until the work is done.
  comm::Work ask(int worker, int64_t step, std::vector<Batch> batches);
  // The worker's last result, after the work of ask() is done. `sums` is in the form that ps::SyncStep takes.
  struct Answer {
    rpc::Message sums;
    std::vector<std::optional<LossOutput>> outputs;  // by lane of the worker; empty for lanes without data
  };
  const Answer& answer(int worker) const { return answers_[static_cast<size_t>(worker)]; }

  // Sends the current parameters and buffers to all workers, at the end of a fit.
  void finish(const Json& progress, int signal);
  // Sends JSON under a key to all workers.
  void note(const std::string& key, const Json& value);
  // Tells all workers that are still there that no more requests will come.
  void end();

 private:
  struct Place;  // the vectors that receive a worker's sums

  void begin_one(size_t worker);
  void refuse(const std::string& why);
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
  std::vector<char> ready_;  // whether it has been begun; by worker, each used by its own thread
  ps::Peers peers_;          // last member, so that its threads end first
};

}  // namespace tutti::passive

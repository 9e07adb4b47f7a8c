#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/base/json.h"
#include "tutti/cluster/context.h"
#include "tutti/params/optimizer.h"
#include "tutti/step/lane_sum.h"
#include "tutti/train/replica.h"
#include "tutti/train/trainable.h"

namespace tutti {

namespace ps {
class Peers;
class SyncStep;
}  // namespace ps

namespace passive {
// Returns the tasks of a cluster that compute for a master: all but the master, in rank order.
std::vector<Task> tasks_of(const ClusterSpec& cluster);
}  // namespace passive

// Returns the options for the replica of a master. It is on the CPU: batches and sums travel over the
// network, so a GPU would be useful only to the workers.
ReplicaOptions options_of_master(ReplicaOptions options, const std::shared_ptr<rpc::Arena>& arena);

// The client of in-graph training: it holds the parameters, and passive workers (passive/worker.h) compute
// gradients for it on request. A step by hand is three calls, and the program may do other things between
// them:
//
//   for (int w = 0; w < master.workers(); ++w) master.gradients(w, {batches[w]});
//   const Master::Mean mean = master.average();       // the gradients are in parameters().grads()
//   master.apply();
//
// Gradients are summed along the tree over the lanes, so the bits are the same as with any other strategy.
// The workers keep no state: parameters and batches are sent with every step. If a worker is lost, the master
// waits for it for --start-timeout, and repeats the request. Not thread-safe.
class Master {
 public:
  // One lane per worker; the parameters start with the module's values. The workers are the other tasks of
  // the cluster: servers (`tutti serve --allow-programs`, if the model has a script), or processes of this
  // program that call follow_master(). Waits until they are connected. Throws InvalidArgument if a worker has
  // another plan, or if it does not have the model and was given no script, or may not run scripts.
  Master(const Context& context, const Trainable& model, const OptimizerOptions& optimizer);
  // For a trainer, which begins or resumes a run. The replica must outlive the master.
  struct Run {
    std::vector<std::string> plan;  // has to equal the plan of a worker that has the model itself
    int64_t lanes = 1;
    int64_t step = 0;
    Json progress = Json::object();  // for the workers
  };
  Master(const Context& context, const Trainable& model, Replica& replica, std::shared_ptr<rpc::Arena> arena,
         Run run);
  // Lets the workers end, unless the destructor runs because of an exception: then they wait for another
  // master.
  ~Master();

  int workers() const;
  Parameters& parameters() { return replica_.parameters(); }
  Optimizer& optimizer() { return replica_.optimizer(); }
  int64_t step() const { return run_.step; }

  // Asks the worker to compute the gradients of its lanes with the current parameters; does not wait for
  // them. Takes one batch per lane, in the order of lanes_of(); a batch without examples is ignored. Neither
  // batches nor parameters may change before average() has returned.
  void gradients(int worker, std::vector<Batch> batches);
  LaneRange lanes_of(int worker) const;

  // Waits for all gradients that were requested. Afterwards gradients and buffers are the means over all
  // examples and lanes.
  struct Mean {
    int64_t examples = 0;
    torch::Tensor loss_sum = {};  // over all examples, float64; undefined if there were none
    std::vector<std::optional<LossOutput>> outputs = {};  // by lane; empty for lanes without data
    Wishes wishes = {};                                   // of the workers

    double loss() const { return loss_sum.item<double>() / static_cast<double>(examples); }
  };
  Mean average();
  // Updates the parameters with the current gradients and begins the next step.
  void apply();

  // Sets the progress that is sent to a worker that comes back.
  void set_progress(const Json& progress) { run_.progress = progress; }
  // Sends the current parameters and buffers to all workers, at the end of a fit.
  void finish(const Json& progress, int signal);
  // Sends JSON under a key to all workers.
  void note(const std::string& key, const Json& value);

 private:
  struct Worker;  // a passive worker, seen from here

  void begin(Run run);
  void begin_one(size_t worker);
  void require_same_kernels() const;
  void tell(const char* method, const Json& head);
  void until_done(size_t worker, const std::function<void()>& body);
  void compute(size_t worker, int64_t step, const std::vector<Batch>& batches);
  std::exception_ptr wait_for_all() noexcept;

  const Context& context_;
  const Trainable model_;
  const int exceptions_ = std::uncaught_exceptions();  // at construction
  const std::shared_ptr<rpc::Arena> arena_;
  const std::unique_ptr<Replica> own_;  // null if a trainer has the replica
  Replica& replica_;
  Run run_;
  std::optional<LaneVectors> vectors_;  // set by begin()
  std::unique_ptr<ps::SyncStep> sum_;   // too
  std::vector<Worker> workers_;
  std::unique_ptr<ps::Peers> peers_;  // last member, so that its threads end first
};

// Runs a passive worker for the master of this cluster until the master ends. With a model the worker
// computes that model; without one it runs the programs that a master sends, which requires --allow-programs.
// Throws Interrupted after SIGTERM, SIGINT or SIGHUP.
void follow_master(const Context& context, const std::optional<Trainable>& model = std::nullopt);

}  // namespace tutti

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/cluster/context.h"
#include "tutti/params/optimizer.h"
#include "tutti/params/parameters.h"
#include "tutti/ps/peers.h"
#include "tutti/ps/placement.h"
#include "tutti/rpc/arena.h"

namespace tutti::ps {

// Memory for parameters, gradients and what else is sent: servers of this machine see it, and nothing of it
// is copied on the way to them.
Allocate arena_allocator(std::shared_ptr<rpc::Arena> arena);

// What there is once, beside the parameters: kept by server 0.
struct Extras {
  std::vector<torch::Tensor> buffers = {};   // one-dimensional; summed over the lanes
  std::vector<torch::Tensor> counters = {};  // any shape; taken over from one of the workers
};

// How the chief wants steps to be made.
struct RunOptions {
  std::string strategy = "ps-async";  // or "ps-sync"
  int64_t lanes = 1;
  int64_t backup = 0;
  int64_t staleness = -1;
  bool clipped = false;  // ps-sync: every step is scaled
  OptimizerOptions optimizer;
};

// A worker's side of the parameter servers: all of them as one. Values that come back are written into the
// parameters, those of the extras into these. A server that is lost is a PeerLost, which names it; connect()
// and join() again is what mends it. Not thread-safe.
class Client {
 public:
  // The servers are those of the context's cluster. Context and parameters outlive the client.
  Client(const Context& context, Parameters& parameters, const Placement& placement,
         std::shared_ptr<rpc::Arena> arena);
  ~Client();

  // Waits for all servers, and says every ten seconds for whom. Not longer than --start-timeout: then a
  // Timeout names each that is missing, and why.
  void connect() { peers_.connect(); }

  // From begin() or pull() on.
  void set_extras(const Extras& extras) { extras_ = extras; }

  // Of what the servers have: where the run stands that they are all in. Nothing where they are in none, or
  // not all in one.
  struct Standing {
    int64_t step = 0;
    Json progress = Json::object();
    std::map<int64_t, int64_t> staleness = {};  // updates by the age of their values, in steps
    int64_t dropped = 0;                        // gradients that came too late
  };
  std::optional<Standing> standing();
  // What they have used of their cores so far, all together.
  double cpu_seconds();
  // The furthest that any of them had come.
  int64_t furthest_step() const { return furthest_step_; }

  // The chief: all servers begin, at this step, with the values that parameters and extras have.
  void begin(const RunOptions& options, const Standing& standing, const Optimizer::State& state,
             const std::vector<std::string>& plan);
  // Everybody: once the chief has begun, on all servers. InvalidArgument: the plan is not the chief's.
  Standing join(const std::vector<std::string>& plan);

  // Takes over the newest values that all servers have, which are not older than of that step: it is waited
  // for. Returns their step.
  int64_t pull(int64_t at_least = 0);

  // What this worker's lanes gave of a step: for each subtree that has data, by server, the server's parts,
  // and those of the extras for server 0. Waits for all workers. The control words of all, one after the
  // other.
  struct Push {
    int64_t step = 0;
    std::optional<double> learning_rate = {};
    torch::Tensor word = {};
    std::vector<std::vector<torch::Tensor>> pieces = {};  // [server], in the order that SyncStep wants
    // The update is not made yet: the mean gradient comes back in the place of the values.
    bool scaled = false;
  };
  torch::Tensor push_synchronous(const Push& push, int64_t workers);
  // Now it is, with the gradient times the factor, which is the same on all workers.
  void scale(int64_t step, double factor);
  // Where some may be left behind: how many are in this step with us, or nothing if it was made without us.
  std::optional<int64_t> enter(int64_t step);

  // Gradients, one vector a block, that are applied as they are, unless `end` steps are made already.
  struct Update {
    const std::vector<torch::Tensor>& gradients;
    const Extras& changes;
    int64_t of = 0;  // the step that the values stood at of which they are the gradients
    int64_t examples = 0;
    int64_t end = -1;  // -1: no end
    std::optional<double> learning_rate = {};
  };
  struct Applied {
    bool made = false;
    int64_t step = 0;  // which it was
    int64_t now = 0;   // steps made, as far as the values show
  };
  // The newest values come back into `values`, one vector a block, and `extras`.
  Applied push_asynchronous(const Update& update, const std::vector<torch::Tensor>& values,
                            const Extras& extras);

  // For a checkpoint: values and extras are taken over, and the whole of the optimiser's state.
  struct Snapshot {
    int64_t step = 0;
    Json progress = Json::object();
    Optimizer::State state = {};
  };
  Snapshot snapshot();

  // From the chief to all workers, who wait for it, longer than for one another.
  void note(const std::string& key, const Json& value);
  Json read(const std::string& key);
  // What does not depend on which run the servers are in, or whether they are in any.
  Json read_from_any_run(const std::string& key);

  // The chief: what goes with the run, for whoever joins.
  void set_progress(const Json& progress);
  // This worker's last update of so many fits is in.
  void finish(int64_t fits);
  // The chief: so is that of everybody else. One that is gone and does not come back is not waited for.
  void await_others(int64_t fits);
  // The chief: servers end when everybody has left.
  void end();
  // This worker does not come back: it is not waited for at the end.
  void leave();

  // What a server has of the gradients: views into them.
  std::vector<torch::Tensor> gradients_of(int server) const;
  int servers() const { return static_cast<int>(peers_.size()); }
  const Placement& placement() const { return placement_; }

 private:
  Json call(size_t server, const char* method, const rpc::Message& request,
            const std::vector<torch::Tensor>& into, rpc::CallOptions options);
  std::vector<Json> states_of_all();
  int64_t common_step();
  int64_t pull_at(std::optional<int64_t> step);
  std::vector<Json> join_each(const std::vector<std::string>& plan, std::chrono::milliseconds wait);
  Json read_with(Json head, const std::string& key);
  Json head() const;
  std::vector<torch::Tensor> parts_of(size_t server, const std::vector<torch::Tensor>& blocks) const;
  std::vector<torch::Tensor> own_values() const;
  std::vector<torch::Tensor> own_gradients() const;
  std::vector<torch::Tensor> places(size_t server, const std::vector<torch::Tensor>& values,
                                    const Extras& extras) const;

  const Context& context_;
  Parameters& parameters_;
  const Placement placement_;
  const bool in_step_;  // servers make every step together
  Extras extras_;
  std::vector<std::vector<Placement::Part>> parts_;  // of each server
  std::string run_;
  int64_t step_ = 0;  // for error messages
  int64_t furthest_step_ = 0;
  Peers peers_;  // last, so that their threads end first
};

}  // namespace tutti::ps

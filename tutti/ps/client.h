#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/agreement.h"
#include "tutti/base/json.h"
#include "tutti/cluster/context.h"
#include "tutti/comm/group.h"
#include "tutti/embedding/row_state.h"
#include "tutti/embedding/tables.h"
#include "tutti/params/optimizer.h"
#include "tutti/params/parameters.h"
#include "tutti/ps/peers.h"
#include "tutti/ps/placement.h"
#include "tutti/rpc/arena.h"
#include "tutti/store/named_tensors.h"

namespace tutti::ps {

// Returns an allocator for parameters, gradients and other tensors that are sent. Servers on the same machine
// map this memory, so that tensors are not copied on the way to them.
Allocate arena_allocator(std::shared_ptr<rpc::Arena> arena);

// Tensors that exist once, beside the parameters. Server 0 keeps them.
struct Extras {
  std::vector<torch::Tensor> buffers = {};   // one-dimensional; summed over the lanes
  std::vector<torch::Tensor> counters = {};  // any shape; copied from one of the workers
};

// The sharded tables with which the chief begins a run.
struct RowsToBegin {
  std::vector<embedding::TableSpec> tables = {};
  int64_t seed = 1;  // of the initial rows
  // The counts of the ids of tables that grow, so far.
  std::map<std::string, embedding::GrowthCounts> counts = {};
  int64_t averaged_steps = 0;  // of the moving averages
  // Passes rows with other values than the initial ones, and then those that have changed since a checkpoint
  // had all of them. May be empty.
  std::function<void(const embedding::VisitRows&)> all = {};
  bool all_are_saved = false;  // a checkpoint has them
  std::function<void(const embedding::VisitRows&)> changed = {};
};

// The chief's settings for the steps of a run.
struct RunOptions {
  std::string strategy = "ps-async";  // or "ps-sync"
  int64_t lanes = 1;
  int64_t backup = 0;
  int64_t staleness = -1;
  bool clipped = false;  // ps-sync: every step calls scale()
  OptimizerOptions optimizer;
  bool has_rows = false;  // begin_rows() was called before
};

struct ClientOptions {
  // 1: the next server holds a copy of each server's part, for which there have to be several, and no sharded
  // tables. A copy receives what its server receives, in the same calls, and so has the same bits.
  int64_t replicas = 0;
};

// A worker's connection to all parameter servers. Results are written into the parameters and the extras.
// Throws PeerLost with the name of a server that was lost; after that, connect() and join() have to be called
// again. Not thread-safe.
class Client {
 public:
  // Uses the servers of the context's cluster, together with the other workers of the group. The context and
  // the parameters must outlive the client.
  Client(const Context& context, Group group, Parameters& parameters, const Placement& placement,
         std::shared_ptr<rpc::Arena> arena, const ClientOptions& options = {});
  ~Client();

  // Waits until all servers are connected, for --start-timeout (Waiting).
  void connect() { peers_.connect(); }

  // Enters an epoch of workers that change: the group has other ranks, and all requests are of this epoch.
  void enter_epoch(const Group& group);

  // Sets a predicate that ends the wait for an answer with a Timeout (Peers::set_give_up).
  void set_give_up(Peers::GiveUp give_up) { peers_.set_give_up(std::move(give_up)); }

  // Takes effect with the next begin() or pull().
  void set_extras(const Extras& extras) { extras_ = extras; }

  // Returns the position of the run that all servers are in, or nullopt if a server is in no run or the
  // servers are in different runs.
  struct Standing {
    int64_t step = 0;
    Json progress = Json::object();
    std::map<int64_t, int64_t> staleness = {};  // updates by the age of their values, in steps
    int64_t dropped = 0;                        // gradients that arrived too late
  };
  std::optional<Standing> standing();
  // Returns the run that all servers are in, which other workers may have begun, and the run that this worker
  // has joined; "": there is none. A server that was started again is in no run, but its copy may be.
  std::string common_run();
  const std::string& run() const { return run_; }
  // Chief only: lets this run go on with the workers of the epoch, who have to join it again. A server that
  // was started again gets its part from its copy, and the copy that it holds from the server that has the
  // part.
  void regroup(const std::string& run);
  // Tells the servers that this worker leaves its epoch because of an error, so that the others do too. Does
  // not throw.
  void abandon(const std::string& why) noexcept;
  // Returns the servers that were in no run at the last call of standing() or common_run(), if begin() was
  // not called since.
  const std::vector<int>& servers_without_run() const { return without_run_; }
  // Returns the CPU time that all servers together have used so far.
  double cpu_seconds();
  // Returns the highest step of any server at the last call of standing().
  int64_t furthest_step() const { return furthest_step_; }

  // Chief only: makes the sharded tables of the run that begin() will start.
  void begin_rows(const RowsToBegin& rows);
  // Chief only: starts a run on all servers, at the step of `standing` and with the values of parameters and
  // extras.
  void begin(const RunOptions& options, const Standing& standing, const Optimizer::State& state,
             const std::vector<std::string>& plan);
  // All workers: waits until the chief has begun the run on all servers, for --start-timeout (Waiting).
  // Throws InvalidArgument if the plans differ or, in a run whose bits are the same at any speed, the kernels
  // (see --mixed-machines).
  Standing join(const std::vector<std::string>& plan);
  // Waits until as many workers have joined the run as a step of ps-sync needs, for --start-timeout.
  void await_workers();

  // Takes over the chief's values of the parameters that are not trained. They may come from a checkpoint,
  // which only the chief has read.
  void pull_frozen();
  // Copies the newest values that all servers have into parameters and extras; waits until all servers have
  // reached step `at_least`. Returns the step of the values.
  int64_t pull(int64_t at_least = 0);
  // Pulls the values at this step, which all servers are at or have just made; nullopt: the newest.
  int64_t pull_at(std::optional<int64_t> step);

  // Returns rows of sharded tables, by server: at this step, for which it waits, or the newest ones.
  std::vector<torch::Tensor> read_rows(const embedding::RowOwners::Request& asked,
                                       std::optional<int64_t> step);
  // Returns these values of the rows of all servers, with the names of a checkpoint, without what belongs to
  // them besides.
  store::NamedTensors all_rows(embedding::RowValues values);
  // Returns a checksum of all rows, and what has happened to the ids of tables that grow.
  struct RowsSummary {
    std::string checksum;
    std::map<std::string, embedding::GrowthCounts> counts;
  };
  RowsSummary sum_up_rows();

  // Contribution of this worker's lanes to a step. push_synchronous() waits for all workers.
  struct Push {
    int64_t step = 0;
    std::optional<double> learning_rate = {};
    torch::Tensor control_word = {};
    // [server][subtree with data]: the server's parts of the gradients.
    std::vector<std::vector<std::vector<torch::Tensor>>> gradients = {};
    // For server 0: the buffers of each subtree with data, and, if there is any, the counters.
    std::vector<torch::Tensor> extras = {};
    std::vector<embedding::RowGradients> rows = {};  // [server]; empty: there are no tables, or no data
    // If true, the servers return the mean gradient instead of the values and make no update until scale().
    bool scaled = false;
  };
  struct Summed {
    torch::Tensor control_words;  // the control words of all workers, concatenated
    int workers = 1;              // their number
    bool is_made_before = false;  // the step was added up before this worker joined, maybe by other workers
    double row_squares = 0;       // with Push::scaled: of the mean gradients of all rows
  };
  Summed push_synchronous(const Push& push, int64_t workers);
  // Makes that update with the gradient multiplied by the factor, which must be the same on all workers.
  void scale(int64_t step, double factor);
  // If a step may leave workers behind: returns the number of workers in it, or nullopt if it was made
  // without this one.
  std::optional<int64_t> enter(int64_t step);

  // Gradients, one vector per block. A server applies them as they are, unless `end` steps have already been
  // made.
  struct Update {
    const std::vector<torch::Tensor>& gradients;
    const Extras& results;  // floating buffers after the step, and the changes of counters
    int64_t of = 0;         // the step of the values that the gradients were computed from
    int64_t examples = 0;
    int64_t end = -1;  // -1: no limit
    std::optional<double> learning_rate = {};
    // [server]: mean gradients of rows, over this worker's lanes; empty if there are no tables.
    std::vector<embedding::RowGradients> rows = {};
    int64_t lanes = 1;  // of this worker
  };
  struct Applied {
    bool made = false;
    int64_t step = 0;  // the index of the step that was made
    int64_t now = 0;   // number of steps in the returned values
  };
  // The newest values are written into `values`, one vector per block, and into `extras`.
  Applied push_asynchronous(const Update& update, const std::vector<torch::Tensor>& values,
                            const Extras& extras);

  // Takes a checkpoint: copies values and extras, and returns the complete state of the optimiser. The state
  // is consistent: each step is in the parts of all servers or of none, and so is each asynchronous push,
  // except for one whose worker died before it had pushed to all servers. Other workers wait meanwhile. A
  // Timeout names the worker whose push is late.
  struct Snapshot {
    int64_t step = 0;
    Json progress = Json::object();
    Optimizer::State state = {};
    // With Slots::Keep, the servers keep copies of the slots until write(): `state` has none, and these are
    // the slots of each server, without values.
    std::vector<std::vector<Optimizer::Slot>> kept = {};  // [server]
    // Of sharded tables: the rows, which the servers keep too; what happened to their ids; and the share of
    // the rows of a server that have changed since all of them were saved, the greatest of all servers.
    store::NamedTensors rows = {};
    std::map<std::string, embedding::GrowthCounts> row_counts = {};
    int64_t averaged_steps = 0;  // of their moving averages
    double changed_share = 0;
  };
  enum class Slots { Send, Keep };
  Snapshot snapshot(Slots slots = Slots::Send,
                    embedding::RowShard::Which rows = embedding::RowShard::Which::All);
  // Returns true if all servers see this mark of a folder (store/shared_files.h).
  bool all_share(const std::string& mark);
  // Has a server write the slots that it has kept into the folder of the mark, in the background
  // (store::write_shared_file). `tensors` are views of each of Snapshot::kept, with their names in the file.
  // `rows_file` is for the rows of sharded tables; "": there are none.
  void write(int server, const std::string& mark, const std::string& file, int64_t step,
             const std::vector<store::NamedTensors>& tensors, const std::string& rows_file = "");

  // Checks that all workers pass the same lines under this key; the first worker to arrive defines them.
  // Throws InvalidArgument with the difference, on all workers of the run.
  void agree(const std::string& key, const std::vector<std::string>& lines);
  // note() passes a value from the chief to all workers; read() waits for it, ten times as long as --timeout.
  void note(const std::string& key, const Json& value);
  Json read(const std::string& key) { return read(key, run_); }
  // Like read(), but works whichever run the servers are in, and also if they are in none.
  Json read_from_any_run(const std::string& key) { return read(key, ""); }

  // Chief only: stores data with the run for workers that join later.
  void set_progress(const Json& progress);
  // Tells the servers that this worker has pushed its last update of this number of fits.
  void finish(int64_t fits);
  // Chief only: waits until the other workers have done so too, but not longer than --timeout (a warning).
  void await_others(int64_t fits);
  // Chief only: tells the servers to end when all workers have left.
  void end();
  // Tells the servers that this worker does not come back, so that they do not wait for it at the end.
  void leave();

  // Returns false if the last call of this server has found its connection broken.
  bool is_connected(int server) const { return peers_.is_connected(static_cast<size_t>(server)); }
  // Returns views into a server's parts of the gradients.
  std::vector<torch::Tensor> gradients_of(int server) const;
  int servers() const { return placement_.servers(); }
  bool has_copies() const { return peers_.size() > static_cast<size_t>(servers()); }
  // "ps/0 (h:2222)".
  const std::string& name(int server) const { return peers_.name(static_cast<size_t>(server)); }
  const Placement& placement() const { return placement_; }

 private:
  // The peers are the servers and then the copies of their parts, in the same order.
  size_t part_of(size_t peer) const { return peer % static_cast<size_t>(servers()); }
  bool is_copy(size_t peer) const { return peer >= static_cast<size_t>(servers()); }
  // Like Peers::for_all(), without the copies.
  template <class Body>
  void for_servers(Body body) {
    peers_.for_all([&](size_t i) {
      if (!is_copy(i)) body(i);
    });
  }
  void hand_over(size_t from, size_t to);
  std::vector<Json> note_states();
  Agreement kernels() const;
  Agreement kernels_of_updates();
  Json call(size_t server, const char* method, const rpc::Message& request,
            const std::vector<torch::Tensor>& into, rpc::CallOptions options);
  std::vector<Json> states_of_all();
  int64_t common_step();
  std::optional<std::vector<rpc::Message>> try_to_snapshot(Slots slots, embedding::RowShard::Which rows);
  void send_rows(const RowsToBegin& rows, const embedding::RowChunk& chunk, bool changed);
  // Asks all servers until nobody is missing (Service, "await").
  void await_nobody(Waiting& waiting, const Json& head, std::string_view end);
  std::vector<Json> join_each(const std::vector<std::string>& plan, std::chrono::milliseconds wait);
  void hear_from_others(const std::function<void(size_t)>& join_one);
  Json read(const std::string& key, const std::string& run);
  rpc::Message request(const Json& more = Json::object(),
                       const std::vector<torch::Tensor>& tensors = {}) const;
  void tell_all(const char* method, const Json& more, const char* what);
  std::vector<torch::Tensor> elements_held_by(size_t server, const std::vector<torch::Tensor>& blocks) const;
  std::vector<torch::Tensor> own_values() const;
  std::vector<torch::Tensor> places(size_t server, const std::vector<torch::Tensor>& values,
                                    const Extras& extras) const;

  const Context& context_;
  Group group_;
  int64_t epoch_ = -1;  // -1: the workers never change
  Parameters& parameters_;
  const Placement placement_;
  const bool in_step_;    // ps-sync: all servers make each step together
  const bool same_bits_;  // and no worker is left behind, so that the bits do not depend on who is faster
  Extras extras_;
  std::vector<std::vector<BlockRange>> block_ranges_;  // of each server
  std::string run_;
  // For each server the last step that it had added up when this worker joined, and what it says of it.
  struct AddedUp {
    int64_t step;
    int workers;
    int64_t numbers;  // in their control words
  };
  std::vector<AddedUp> added_up_;
  int64_t step_ = 0;  // for error messages
  int64_t furthest_step_ = 0;
  std::vector<int> without_run_;
  Peers peers_;  // last, so that their threads end first
};

}  // namespace tutti::ps

#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/live_line.h"
#include "tutti/cluster/context.h"
#include "tutti/comm/group.h"
#include "tutti/params/optimizer.h"
#include "tutti/params/parameters.h"
#include "tutti/store/event_file.h"
#include "tutti/store/report.h"
#include "tutti/store/shared_files.h"
#include "tutti/train/run_folder.h"
#include "tutti/train/snapshot.h"
#include "tutti/transport/executor.h"

namespace tutti {

// The part of a checkpoint with the states of LibTorch's random generators. Each rank has its own.
inline constexpr const char* kGenerators = "random";
// The part with the history of the current fit, which a hook keeps.
inline constexpr const char* kHistory = "hook-history";

// A net of a run with its optimiser. If a run has several, each has a name.
struct SessionPart {
  std::string name;
  Parameters& parameters;
  Optimizer& optimizer;
};

// Options of a Session.
struct SessionOptions {
  // The number of lanes; 0: as --lanes says, else as in the checkpoint, else one per worker.
  int64_t lanes = 0;
  // The name of the folder in --logdir; "": the log directory itself.
  std::string name = {};
};

// The state of a run beyond its parameters, as far as it is needed to resume exactly.
struct Progress {
  int64_t step = 0;       // steps done
  int64_t fit = 0;        // the index of the current call of fit(), from 0
  int64_t fit_begin = 0;  // the step at which it began
  int64_t examples = 0;
  int64_t restarts = 0;  // the number of times that the run was resumed
  int64_t end_step = 0;  // the step at which the fit was to end, when it was begun; 0: unknown
  // The mean loss of the last step that had examples, when the checkpoint or report was written.
  std::optional<double> loss = {};
  // A hook has ended the fit before its last step; the fit is complete.
  bool stopped = false;
  // A hook has asked to end the fit; the fit ends with the next step.
  std::optional<std::string> stop_reason = {};
  // For each feed that was trained on, in the order of their first use: the steps that the fits before this
  // one have made on it.
  std::vector<int64_t> feeds = {};
};

// Returns the parts of a checkpoint besides the model and its optimiser.
Snapshots parts_in(const store::Checkpoint& checkpoint);

// Convert to and from the form that other tasks and checkpoints receive. Missing numbers are 0.
Json to_json(const Progress& progress);
Progress progress_of(const Json& json);

// The checkpoints and event files of a run in the log directory. Decides, as --resume says, whether the run
// starts anew or resumes. Only the group's chief writes. Without a log directory nothing is written except
// the report.
class Session {
 public:
  // All references must outlive the session.
  Session(const Context& context, const Group& group, std::vector<SessionPart> parts,
          const SessionOptions& options = {});
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Locks the folder against other jobs, on the chief, before the first step.
  void lock() {
    if (group_.is_chief()) folder_.lock();
  }
  // Sets the facts that a run must share with its checkpoints to resume. Called on the chief before start().
  void describe(RunFacts facts) { facts_ = std::move(facts); }
  const RunFacts& facts() const { return facts_; }
  // Sets the function that returns the present state besides the model and its optimiser. Called before
  // start().
  void set_state(std::function<Snapshots()> state) { state_ = std::move(state); }
  Snapshots state() const { return state_(); }
  // Describes the data of the current fit by name, on the chief. Throws InvalidArgument if the fit was
  // resumed and was trained on other data before.
  void describe_data(const Json& data, const Progress& progress);

  // Copies the state of the run and writes it to a checkpoint in the background, after the previous
  // checkpoint has been written. `optimizers` has the whole state of each part's optimiser. Throws the error
  // of the previous checkpoint, if it could not be written.
  //
  // `shared` are files that are written besides: into the folder that open_folder() has made, by other tasks
  // or by write_parts(). With `rows_base`, only the rows of sharded tables that have changed since
  // the checkpoint of that step are saved.
  void save(const Progress& progress, const std::vector<Optimizer::State>& optimizers,
            const Snapshots& more = {}, const std::vector<store::SharedFile>& shared = {},
            std::optional<int64_t> rows_base = {});
  // Returns the step of the last checkpoint with all rows of sharded tables, on the chief, if the checkpoint
  // of this step may have only the rows that have changed since (--checkpoint-rows).
  std::optional<int64_t> rows_base(int64_t step) const;
  // Makes the folder of the next checkpoint, on the chief; returns "" if nothing is written.
  std::string open_folder();
  // Copies what this worker has of these parts of the state, and writes a file of each to the folder in the
  // background.
  using Tensors = std::map<std::string, std::vector<store::NamedTensor>>;  // by the name of the part
  void write_parts(const std::string& folder, const Tensors& parts, int64_t step);
  // Waits until all checkpoints have been written; throws the error of the last one.
  void finish_saving();
  // Like finish_saving(), but only logs a warning if a task was lost before it had written its part of the
  // last checkpoint: the one before it is the newest.
  void pass_over_lost_checkpoint();
  // Returns true if finish_saving() would not wait.
  bool has_saved() const { return saving_.done(); }
  // A checkpoint that has been written.
  struct Saved {
    std::string path;
    int64_t step = 0;
  };
  // Returns the checkpoints whose writing has ended since the last call, on the chief.
  std::vector<Saved> take_saved();
  // The line that shows how far the training is, and what is going on besides. Only the chief shows it.
  LiveLine& line() { return group_.is_chief() ? line_ : no_line_; }
  // Null if this worker writes no events.
  store::EventWriter* events() { return events_.get(); }

  // The state with which the run starts or resumes.
  struct Start {
    Progress progress;
    std::vector<Optimizer::State> optimizers = {{}};  // one per part
    Snapshots more = {};
    // Of the sharded tables (store::kRowsPart), which are not in `more`. If the checkpoint has only rows that
    // have changed, `rows` are all rows of its base.
    Snapshot rows = {};
    std::optional<Snapshot> changed_rows = {};
    // False if the run begins with weights alone (--resume weights).
    bool has_optimizer = true;
  };
  // Called on the chief only. Restores the parameters of the newest intact checkpoint, if there is one and
  // --resume asks for it. Logs a warning if the last checkpoint was not saved because a task was lost that
  // had to write a part of it.
  Start start();
  // The parts of the newest checkpoint besides the model and its optimiser.
  struct Parts {
    Snapshots snapshots;
    std::optional<int64_t> step;  // nullopt: there is no checkpoint
    // The names of the parts that a run at a later step cannot take over exactly. Random generators and the
    // history are not among them, since later steps do not depend on them.
    std::vector<std::string> outdated;
  };
  // Called on a chief that finds the run at this step. Logs a warning as start() does.
  Parts newest_parts(int64_t step);
  // Called on a chief that takes part in a run which has continued without it.
  void go_on(int64_t step);
  bool went_on() const { return went_on_; }
  // Called on a worker that becomes the chief of a run that goes on at this step.
  void take_over(int64_t step);
  // Called on the other tasks, with the number of lanes that the chief has found.
  void follow(int64_t lanes);

  // For tasks that follow the run from outside: says how far it is, and that this process is alive. Called on
  // the chief; does nothing elsewhere. `change` is one of the workers.
  void note(const Progress& progress, RunState::Phase phase, const std::string& change = "");
  void show_life(const Progress& progress);
  // The training has failed.
  void note_error(const std::exception& error) noexcept;
  // Called on every worker before it goes back to the newest checkpoint, because a task was lost.
  void count_failure() { folder_.count_failure(); }
  const RunState& run_state() const { return folder_.state(); }

  // Called in an evaluator: takes the weights and the lanes of a checkpoint, and returns the rows of its
  // tables.
  Start load(const RunFolder::Found& found);
  // Called in an evaluator, which writes its events elsewhere.
  void set_events(std::shared_ptr<store::EventWriter> events) { events_ = std::move(events); }

  // The number of lanes, which is fixed for the whole run. Valid after start().
  int64_t lanes() const { return lanes_; }

  // The folder of checkpoints and event files; "" if nothing is written.
  const std::string& folder() const { return folder_.path(); }
  // The hash of the trained parameters of all nets.
  std::string weights_sha256() const;
  // fill() sets the report's values of the whole run; write() writes the file of --report, on the chief.
  void fill(store::Report& report, const Progress& progress) const;
  void write(const store::Report& report) const;

 private:
  std::optional<RunFolder::Found> newest();
  Start resume(const RunFolder::Found& found);
  void restore_all_weights(const RunFolder::Found& found);
  void take_weights(const RunFolder::Found& found);
  static void take_rows(Start& start, Snapshots& parts, const store::Checkpoint& checkpoint);
  void warn_of_other_options(const SessionPart& part, const store::Checkpoint& saved,
                             const std::string& where) const;
  void open_events(const std::optional<int64_t>& resumed_after);

  const Context& context_;
  const Group& group_;
  const std::vector<SessionPart> parts_;
  RunFolder folder_;
  std::function<Snapshots()> state_ = [] { return Snapshots(); };
  RunFacts facts_;
  Json data_;          // of the current fit
  Json resumed_data_;  // of the resumed fit, until it has been compared
  int64_t resumed_fit_ = -1;
  std::shared_ptr<store::EventWriter> events_;  // shared with the context's events()
  bool lanes_are_given_;
  int64_t lanes_;
  bool went_on_ = false;
  std::optional<int64_t> rows_base_;  // the step of the last checkpoint with all rows
  std::optional<Saved> being_saved_;
  std::vector<Saved> saved_;  // until take_saved()
  LiveLine line_;
  LiveLine no_line_{kLogPlain};
  comm::Work saving_;
  comm::Executor writer_;  // last member, so that it ends first
};

}  // namespace tutti

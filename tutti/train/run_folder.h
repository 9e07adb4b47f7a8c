#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/base/json.h"
#include "tutti/cluster/context.h"
#include "tutti/params/parameters.h"
#include "tutti/store/checkpoint.h"
#include "tutti/store/folder_lock.h"
#include "tutti/train/run_state.h"

namespace tutti {

// The identity of a run beyond its flags: only the same run may resume from its checkpoints. Compared key by
// key; keys that only one side has are not compared.
struct RunFacts {
  // Facts that change the result: {"clip-norm": 1.0, "reduction": "reduce tree"}.
  nlohmann::json settings = nlohmann::json::object();
  // Facts that change only the last bits: {"threads": 1, "libraries": "LibTorch 2.15.0 with AVX512"}. A
  // difference is a warning.
  nlohmann::json conditions = nlohmann::json::object();
  // What makes the bits depend on the number of workers, which then is one of the conditions:
  // {"SyncBatchNorm"}.
  std::vector<std::string> depends_on_workers = {};
};

// Returns "NAME was, not now" for each key that both have with different values, in the order of `now`.
std::vector<std::string> differing(const Json& saved, const Json& now);

// Puts the flags of the program into a checkpoint, except for flags that may differ between processes, so
// that a later process can make the same model (tutti export).
void record_flags(const Context& context, store::Checkpoint& checkpoint);

// The folder inside of a run's folder to which evaluators write.
inline constexpr const char* kEvaluatorFolder = "evaluator";

// The checkpoints of one run, in --logdir or a folder in it, as set by --resume and --keep. Without --logdir
// there are none, and nothing is written. The context must outlive this.
class RunFolder {
 public:
  // A checkpoint that was found, and where.
  struct Found {
    store::Checkpoint checkpoint;
    std::string where;     // the path, for messages
    int64_t sequence = 0;  // for an Evaluator
  };

  // If `name` is not empty, uses the folder of that name in --logdir. Reserves the folder for one training of
  // this program: throws InvalidArgument if another training has it, whether it has begun or not.
  RunFolder(const Context& context, const std::string& name);
  // If nothing was begun, another training of the program may have the folder.
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  bool exists() const { return checkpoints_.has_value(); }
  const std::string& path() const { return path_; }

  // Locks the folder, on the chief before it trains, against training by another job (store::FolderLock),
  // also again if the lock is gone.
  void lock();

  // Returns the newest intact checkpoint, if --resume asks for it. With --resume weights or never, a run
  // begins anew once: later calls in the same process, and tasks that the same launcher has started again,
  // get the newest checkpoint of that new run.
  std::optional<Found> newest(const OnProgress& on_progress = {});
  // Returns true if the last newest() was asked only for the weights of the checkpoint.
  bool only_weights() const { return only_weights_; }
  // Throws InvalidArgument that lists all differences with both values, if the run resumes with other lanes,
  // another value of a flag of the model or the data (FlagScope::Model), or other settings (see
  // refuse_other_run()). Logs a warning for flags with FlagScope::Run and for conditions.
  void require_same_run(const Found& found, int64_t lanes, const RunFacts& facts);
  // Throws the InvalidArgument that the run in this folder has `what`, such as "--lanes 1, not 2". With
  // --resume anyway, records and logs this instead.
  void refuse_other_run(const std::string& what);
  // The differences that --resume anyway has accepted.
  const std::vector<std::string>& differences() const { return differences_; }
  // With --nan-guard, throws InvalidArgument if a parameter is not finite, so that bad weights are not saved.
  void require_finite(const Parameters& parameters, int64_t step) const;
  // Makes the folder of the next checkpoint, to which all tasks may write; "" if nothing is written.
  std::string open() { return checkpoints_ ? checkpoints_->open() : ""; }
  // Saves the checkpoint, with the values that require_same_run() compares.
  void save(store::Checkpoint checkpoint, int64_t lanes, const RunFacts& facts,
            const store::SharedFiles& shared, const OnProgress& on_progress = {});
  // For tasks that follow the run from outside (RunState). Called on the chief.
  enum class Begins { Anew, FromItsCheckpoint, WithOthers };
  // Before the first checkpoint is saved: later calls do nothing. If the run goes back to its checkpoint
  // although it was not ended, it has failed.
  void begin_run(Begins begins);
  // The run that was begun here goes back to its checkpoint after a failure.
  void count_failure() { run_.failures += run_.id.empty() ? 0 : 1; }
  const RunState& state() const { return run_; }
  // Says how far the run is, if this process holds the lock: `now` has its phase, fit, steps and workers, and
  // the last change of the workers if that is new.
  void note(const RunState& now);
  // The same now and then, which also shows that the chief is alive, for file systems without locks.
  void show_life(const RunState& now);
  // Says that the training has ended with this error, if this process holds the lock for certain.
  void note_error(const std::string& error);
  // The folder of the checkpoint of this step.
  std::string path_of(int64_t step) const;

 private:
  bool is_of_this_launch(const store::Checkpoint& checkpoint) const;
  void name_launcher() const;
  std::string secret_of_members() const;
  bool is_used_by_this_job() const;
  void write_state();
  // Throws PeerLost if the lock was taken away.
  void require_lock() const;
  std::vector<std::string> changed_flags(const nlohmann::json& state, FlagScope scope) const;

  const Context& context_;
  const std::string path_;
  std::optional<store::CheckpointDir> checkpoints_;
  std::optional<store::FolderLock> lock_;
  bool begun_ = false;  // newest() has been called
  bool told_removal_ = false;
  bool only_weights_ = false;
  RunState run_;  // its id is "" until begin_run()
  std::chrono::steady_clock::time_point last_sign_;
  std::vector<std::string> differences_;
};

}  // namespace tutti

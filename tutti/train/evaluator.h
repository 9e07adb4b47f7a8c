#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/cluster/context.h"
#include "tutti/store/checkpoint.h"
#include "tutti/store/event_file.h"
#include "tutti/store/folder_lock.h"
#include "tutti/train/run_folder.h"
#include "tutti/train/run_state.h"
#include "tutti/train/stop_signals.h"

namespace tutti {

// Follows a run from outside, in a task of its own: finds the checkpoints that the run saves, each once, and
// knows when the run has ended. Records the evaluations in evaluator/evaluations.json in the run's folder, so
// that a task that is started again goes on where the last one ended, and opens an event file there. Changes
// nothing else in the folder. Not thread-safe.
class Evaluator {
 public:
  // Reserves the folder of the evaluator. Throws InvalidArgument without a log directory, or if another
  // evaluator has the folder. The context must outlive this.
  Evaluator(const Context& context, const std::string& run);

  const std::string& folder() const { return folder_; }

  // A checkpoint with its weights, its moving average and the rows of its tables.
  using Found = RunFolder::Found;
  // Waits for the next checkpoint of this call of fit(); returns nullopt when the fit is complete, and all of
  // its checkpoints were returned. Checkpoints are returned in the order in which they were saved; if one is
  // removed before it is read (--keep), the newest comes next.
  //
  // Also returns nullopt if --stop-after has ended the job (stopped()).
  //
  // Throws Timeout if nobody trains, and the fit is not complete, for --start-timeout seconds, and
  // Interrupted after a signal.
  std::optional<Found> next(int64_t fit, const StopSignals& signals);

  bool stopped() const { return stopped_; }
  // Returns the newest intact checkpoint of this fit, evaluated or not.
  std::optional<Found> newest(int64_t fit) const;

  // The run that is followed; "" before next() has returned. It changes if a run begins anew in the folder.
  const std::string& run_id() const { return id_; }
  // Returns the last argument of record() for this run, also by an earlier task; null if there was none.
  const Json& state() const { return state_; }
  // The step of the last evaluation; -1: there is none.
  int64_t last_step() const;
  // Returns the event file for an evaluation after this step. It is a new one if an earlier evaluation was of
  // this step or a later one, so that TensorBoard forgets that.
  const std::shared_ptr<store::EventWriter>& events_at(int64_t step);
  // Records the values of an evaluation, and forgets earlier ones of this step or later ones. `state` is for
  // a task that is started again.
  void record(const Found& found, const std::map<std::string, double>& values, double seconds, Json state);

 private:
  using Clock = std::chrono::steady_clock;

  struct Look {
    std::optional<RunState> state;
    std::optional<std::string> holder;  // of the run's lock
  };
  Look look();
  bool is_of_this_job(const Look& look) const;
  void follow(const std::string& id);
  std::vector<store::SavedCheckpoint> candidates(const RunState& state, int64_t fit) const;
  std::optional<Found> load_next(const RunState& state, int64_t fit);
  [[noreturn]] void give_up(const Look& look) const;

  const Context& context_;
  const std::string run_;
  const std::string folder_;
  const std::string launch_;  // of this task; "": unknown
  const store::FolderLock lock_;
  const std::string first_text_;  // of the run's state, when this task began
  std::string last_text_;         // when it was last looked at
  Clock::time_point last_sign_;   // of the job's life
  Clock::time_point list_until_;  // the folder may have changed
  std::filesystem::file_time_type folder_changed_;
  bool job_has_begun_ = false;  // the state is that of this job
  bool stopped_ = false;

  // The record of the run that is followed.
  std::string id_;  // "": none yet
  Json evaluations_ = Json::array();
  Json state_;
  int64_t last_sequence_ = -1;  // of the checkpoints that were returned, or skipped
  std::shared_ptr<store::EventWriter> events_;
};

}  // namespace tutti

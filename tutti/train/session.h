#pragma once

#include <memory>
#include <optional>
#include <string>

#include "tutti/base/interrupted.h"
#include "tutti/base/json.h"
#include "tutti/cluster/context.h"
#include "tutti/params/optimizer.h"
#include "tutti/params/parameters.h"
#include "tutti/store/event_file.h"
#include "tutti/store/report.h"
#include "tutti/train/run_folder.h"

namespace tutti {

// Where a run stands, beyond its parameters: what has to be known to go on exactly.
struct Progress {
  int64_t step = 0;       // steps done
  int64_t fit = 0;        // which call of fit() they belong to, from 0
  int64_t fit_begin = 0;  // the step at which it began
  int64_t examples = 0;
  int64_t restarts = 0;  // how often the run was resumed
};

// As it is told to other tasks. What is missing is 0.
Json to_json(const Progress& progress);
Progress progress_of(const Json& json);

// What a run leaves behind and finds again: checkpoints and event files in the log directory. Decides between
// a fresh start and a resumed one as --resume says. Only the chief writes; without a log directory nothing is
// written at all, but for the report.
class Session {
 public:
  // With so many lanes; 0: as many as the flags say, else the checkpoint, else one a worker. All references
  // outlive the session.
  Session(const Context& context, Parameters& parameters, Optimizer& optimizer, int64_t lanes = 0);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // `optimizer` is the whole state.
  void save(const Progress& progress, const Optimizer::State& optimizer);
  store::EventWriter* events() { return events_.get(); }

  // Where the run goes on.
  struct Start {
    Progress progress;
    Optimizer::State optimizer;
  };
  // The chief alone: restores the parameters of the newest whole checkpoint, if there is one and --resume
  // wants it.
  Start start();
  // The chief, where the run goes on by itself: it has only been away.
  void go_on(int64_t step) {
    open_events(step);
    went_on_ = true;
  }
  bool went_on() const { return went_on_; }
  // Those that are told: with what the chief has found.
  void follow(int64_t lanes) { lanes_ = lanes; }

  // Fixed for the whole run. After start().
  int64_t lanes() const { return lanes_; }

  // What there is to say of the run as a whole; and --report, of the chief.
  void fill(store::Report& report, const Progress& progress) const;
  void write(const store::Report& report) const;

 private:
  Start resume(const RunFolder::Found& found);
  void open_events(const std::optional<int64_t>& resumed_after);

  const Context& context_;
  Parameters& parameters_;
  Optimizer& optimizer_;
  RunFolder folder_;
  std::unique_ptr<store::EventWriter> events_;
  bool lanes_are_given_;
  int64_t lanes_;
  bool went_on_ = false;
};

}  // namespace tutti

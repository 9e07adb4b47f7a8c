#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/timeline.h"
#include "tutti/cluster/context.h"
#include "tutti/data/sampler.h"
#include "tutti/store/report.h"
#include "tutti/train/evaluation.h"
#include "tutti/train/evaluation_hook.h"
#include "tutti/train/evaluator.h"
#include "tutti/train/fit_state.h"
#include "tutti/train/hook.h"
#include "tutti/train/schedule.h"
#include "tutti/train/session.h"
#include "tutti/train/stop_signals.h"
#include "tutti/train/strategy.h"

namespace tutti {

// The work of a training besides its steps, for Trainer and Loop: checkpoints, resuming, hooks, validations,
// the moving average, the history, wishes to stop, signals, and the report. Between start() and the end, the
// owner makes steps and calls, for each of them, before_step(), after_lane(), after_step(). Not thread-safe.
class Engine {
 public:
  // The context and the team must outlive this, and the objects that the parts refer to. Hooks see the first
  // part, whose sharded tables are `tables`. `replica` is the model of a Trainer; null in a Loop.
  Engine(const Context& context, Team& team, std::vector<SessionPart> parts, const SessionOptions& options,
         embedding::Tables& tables, Replica* replica = nullptr);

  // Adds a hook after those of the configuration, but before the one that saves checkpoints, so that a
  // checkpoint includes what hooks have changed.
  void add_hook(std::unique_ptr<Hook> hook);
  bool has_own_hooks() const { return has_own_hooks_; }

  // Adds a part to the state that checkpoints contain. Throws InvalidArgument if the name is taken or is not
  // a valid file name.
  void add_state(const std::string& name, StatePart part);

  // Keeps a moving average of the weights, which checkpoints contain as the part "average". `decays` has a
  // number for each part; 0: its weights are not averaged. Called once, before the start.
  void keep_average(const std::vector<double>& decays);
  // Sets the learning rates of the parts from here on: a schedule for each; empty: its rate stays as it is.
  void schedule(std::vector<Schedule> of_parts) { schedules_ = std::move(of_parts); }
  // The facts about the schedules that have to be the same on all workers.
  std::vector<std::string> schedule_plan() const;
  // Sets the validation of a fit or a Loop (Evaluation).
  void validate(Evaluation evaluation);
  // The facts about the evaluations that have to be the same on all workers. Throws InvalidArgument if two
  // evaluations have the same name, or if a hook monitors a value that none of them has.
  std::vector<std::string> evaluation_plan() const;
  // In an evaluator: evaluates the checkpoints of this call of fit(), each once, until the fit is complete.
  void follow(int64_t fit);
  // Evaluates batch by batch, in the order of the feed, in evaluation mode, without gradients, and without
  // disturbing the program's random numbers. Returns the metrics with the counts of all workers and, as the
  // last one, the mean loss, if it was counted. Every worker has to call it, unless it evaluates `here`.
  // Evaluates the model of the Trainer, unless another one is given.
  metrics::List evaluate(const data::Feed& feed, const metrics::List& list, const EvaluateOptions& options,
                         const Trainable* other = nullptr);
  // Makes an evaluation of a training now, and returns its values; nullopt on a worker that takes no part.
  std::optional<std::map<std::string, double>> evaluate(const Evaluation& evaluation);
  // Returns the predictions of the Trainer's model, one row for each example.
  torch::Tensor predict(const data::Feed& feed, const EvaluateOptions& options);
  // Calls `body` while the parameters have the values that are evaluated: the average, if there is one, or
  // the values after the last step.
  void with_weights(const EvaluateOptions& options, const std::function<void()>& body);
  const History& history() const { return history_->history(); }

  // Begins or resumes the run, or, after another task was lost, begins with the state that the others have.
  void start(const std::vector<std::string>& plan);
  struct Length {
    int64_t end_step = 0;         // the number of steps of the run after which the training ends
    int64_t steps_per_epoch = 0;  // 0: unknown
    int64_t first_epoch_at = 0;   // the step of the run with which the first epoch began
    bool ends_the_run = true;     // false: further trainings of the run may follow
  };
  // Begins a training.
  void begin(const Length& length);
  // Begins the steps of the training, again if start() was called meanwhile. From here to the end, signals
  // are recorded if the configuration asks for it.
  void begin_steps();
  // Starts again, at the step that the others have, after another task was lost in the middle of the steps.
  // The caller begins the steps again.
  void start_again(const Error& error, const std::vector<std::string>& plan);
  void before_step();
  void after_lane(int64_t lane, const Batch& batch, const LossOutput& output);
  // Counts the step, unless the worker took no part in it, and calls the hooks.
  void after_step(const StepResult& result);
  // Returns the reasons to end the training now, before the next step. All workers that make every step
  // together stop after the step in which a wish has reached every worker; a worker without others, or one
  // that makes steps of its own, reacts at once.
  Wishes reasons_to_end() const;
  // The step of the run after which this process makes no more: the end, or --stop-after.
  int64_t last_step() const;
  // Ends the training after its last step, after which all workers have the same weights, and writes the
  // report. Throws Interrupted if a signal is a reason.
  // If --stop-after is, a later process continues as after a signal, but the program goes on: it may
  // evaluate.
  void end(const Wishes& reasons);
  // Throws Interrupted if a training of this program has stopped at --stop-after: this one cannot begin,
  // since the program would begin it with other weights than those at the end of that training.
  void require_nothing_stopped() const;
  // Returns true, and stops the program's trainings, if this one has made as many steps as --stop-after says
  // before a new fit begins.
  bool stops_before_fit();
  // Tells the hooks that the training has failed, unless they have been told.
  void fail(const std::exception& error) noexcept;
  // Tells the other workers that this one "could not start", say.
  void abandon(const std::string& what, const std::exception& error) noexcept;
  // Calls `body`. If that throws, tells the other workers that this one could not do `what`.
  void or_abandon(const std::string& what, const std::function<void()>& body);

  // If servers hold the parameters: throws InvalidArgument if they have changed since the last step.
  void require_parameters_as_they_were(const char* since) const;
  // Fills the report and writes it.
  void write_report();

  // The events of the run's folder, for the program.
  store::Events events() const;

  Session& session() { return session_; }
  const Session& session() const { return session_; }
  Progress& progress() { return progress_; }
  const Progress& progress() const { return progress_; }
  Training& training() { return training_; }
  const Training& training() const { return training_; }
  store::Report& report() { return report_; }
  const store::Report& report() const { return report_; }

 private:
  // Adds a hook of the training itself, before all others, and returns it. It does not count as a hook of the
  // program.
  template <class OwnHook>
  OwnHook* add_first_hook(std::unique_ptr<OwnHook> hook) {
    OwnHook* const added = hook.get();
    hooks_.insert(hooks_.begin(), std::move(hook));
    return added;
  }
  void set_learning_rates();
  // Saves a checkpoint of the steps done. It is written in the background.
  void save();
  void remember_parameters();
  void warn_of_other_lengths() const;
  Wishes own_reasons() const;
  void log_plan();
  void log_stop(const Wishes& reasons) const;
  void stop_early();
  void note_loss();
  void load(const Evaluator::Found& found);
  void take(const Evaluator::Found& found);
  void evaluate_checkpoint(const Evaluator::Found& found);
  void for_each_batch(const data::Feed& feed, const EvaluateOptions& options, data::SamplerOptions how,
                      int part, int parts, Replica* replica, embedding::Tables* fetched,
                      const std::function<void(const Batch&)>& body);
  void require_rows_here(const EvaluateOptions& options);
  Json values_of_hooks() const;
  void restore_hooks_from(const Json& values);
  std::vector<const EvaluationHook*> evaluations() const;
  std::vector<std::string> known_values() const;
  void require_monitored_values() const;
  void note_evaluation(const std::string& name, const std::map<std::string, double>& values);
  void report_validation(const std::map<std::string, double>& values);
  void report_evaluation(const std::string& name, const std::map<std::string, double>& values);
  int64_t epochs_done() const;
  void note_saved();
  void restore_hooks();
  std::vector<std::string> hook_names() const;
  Snapshots state() const;
  void restore_part(const std::string& name, const std::function<void(const Snapshot&)>& restore);
  template <class Call>
  void for_each_hook(Call call) {
    const SpanScope span(context_.timeline(), Activity::Step, "hooks", progress_.step);
    for (const auto& hook : hooks_) call(*hook);
  }

  const Context& context_;
  Team& team_;
  embedding::Tables& tables_;
  Replica* const replica_;  // null in a Loop
  Session session_;
  Training training_;
  std::vector<std::unique_ptr<Hook>> hooks_;
  HistoryHook* history_ = nullptr;        // one of the hooks, like the validation
  EvaluationHook* validation_ = nullptr;  // after the average, which it measures
  bool has_own_hooks_ = false;
  const int64_t stop_after_;  // 0: none
  std::map<std::string, StatePart> parts_;
  std::vector<Schedule> schedules_;  // of the parts; may be fewer
  bool plan_logged_ = false;
  bool hooks_are_stale_ = false;  // the run has been started since they were restored
  Snapshots found_;               // of the checkpoint, until the parts have taken them
  Progress progress_;
  StepResult last_step_;
  store::Report report_;
  uint32_t checksum_ = 0;               // of the parameters after the last step, if servers hold them
  std::optional<StopSignals> signals_;  // during the steps
  bool was_stopped_ = false;            // by a hook, before it was resumed
  bool is_running_ = false;             // between begin_steps() and the end
  Length length_;
  std::unique_ptr<Evaluator> evaluator_;     // in an evaluator, once it follows the run
  std::string followed_;                     // the run whose hooks have begun
  std::map<std::string, double> evaluated_;  // the values of the checkpoint, as in the report
  PassAdvice pass_advice_;
  int64_t epoch_begun_ = -1;                     // -1: none in these steps
  std::chrono::steady_clock::time_point begin_;  // of the training
  int64_t examples_before_ = 0;                  // of the run, when the training began
};

}  // namespace tutti

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
#include "tutti/lanes/sampler.h"
#include "tutti/store/report.h"
#include "tutti/store/weight_hashes.h"
#include "tutti/train/calls.h"
#include "tutti/train/change.h"
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

struct ExportOptions;
struct TrainedModel;

// A training: the order of everything that is done before, between and after its steps. Checkpoints,
// resuming, hooks, validations, the moving average, the history, wishes to stop, signals, and the report. A
// Trainer and a Loop own one, and make the steps:
//   run.start(plan);
//   run.begin(length);
//   while (run.next()) run.step(...);  // or, once the program has made the step, run.done(result)
// Its functions are in training_start.cc, training_run.cc (the steps and the end), training_report.cc,
// evaluation.cc, evaluator.cc and export.cc. Not thread-safe.
class TrainingRun {
 public:
  // The context and the strategy must outlive this, and the objects that the parts refer to. Hooks see the
  // first part. `replica` is the model of a Trainer; null in a Loop.
  TrainingRun(const Context& context, Strategy& strategy, std::vector<SessionPart> parts,
              const SessionOptions& options, Replica* replica = nullptr);

  // Adds a hook after the hooks of the configuration, but before the one that saves checkpoints, so that a
  // checkpoint includes what hooks have changed.
  void add_hook(std::unique_ptr<Hook> hook);
  // Adds a part to the state that checkpoints contain. Throws InvalidArgument if the name is taken or is not
  // a valid file name.
  void add_state(const std::string& name, StatePart part);
  // Keeps a moving average of the weights, which checkpoints contain as the part "average". `decays` has a
  // number for each part; 0: its weights are not averaged. Called once, before the start.
  void keep_average(const std::vector<double>& decays);
  // Sets the learning rates of the parts from here on: a schedule for each; empty: its rate stays as it is.
  void schedule(std::vector<Schedule> of_parts) { schedules_ = std::move(of_parts); }
  // Sets the validation of a fit or a Loop (Evaluation).
  void validate(Evaluation evaluation);
  // The facts about evaluations and schedules that have to be the same on all workers. Throws InvalidArgument
  // if two evaluations have the same name, or if a hook monitors a value that none of them has.
  std::vector<std::string> plan();

  // Begins or resumes the run, or, after another task was lost, begins with the state that the others have.
  // `plan` has to be the same on all workers.
  void start(const std::vector<std::string>& plan);
  // Throws InvalidArgument unless the facts of the fit that begins are the same on all workers. A worker that
  // joins the others in it compares them alone with what they have told.
  using MakePlan = std::function<std::vector<std::string>()>;
  void require_same_fit(bool others_have_begun, const MakePlan& make);
  // The steps of one training of the run.
  struct Length {
    int64_t end_step = 0;         // the number of steps of the run after which the training ends
    int64_t steps_per_epoch = 0;  // 0: unknown
    int64_t first_epoch_at = 0;   // the step of the run with which the first epoch began
    bool ends_the_run = true;     // false: further trainings of the run may follow
  };
  // Begins a training.
  void begin(const Length& length);
  // Does the work between two steps, and returns true if the next step is to be made, with the wishes of
  // training(). Without one, ends the training, after which all workers have the same weights, and writes the
  // report. `has_data` is called if nothing else ends the training; empty: there is data. If another task was
  // lost, starts again at the step that all tasks have, or goes on with the workers that are left.
  //
  // Throws Interrupted if a signal has ended the training. If --stop-after has, a later process continues as
  // after a signal, but the program goes on: it may evaluate.
  bool next(const std::function<bool()>& has_data = {});
  // Returns the steps of the feed that this worker uses, once after the steps have begun or begun again.
  std::optional<StepRange> begun() { return std::exchange(begun_, std::nullopt); }
  // The index of this worker's next step of the feed.
  int64_t batch() const { return batch_; }
  // Makes a step by `make`, in which a lane may be observed (after_lane()).
  void step(const std::function<StepResult()>& make);
  // The step that the program has made itself, or the error of one in which a task was lost.
  void done(const StepResult& result) { made_ = result; }
  void lost(const Error& error) { lost_ = error; }
  void after_lane(int64_t lane, const Batch& batch, const LossOutput& output);
  // Returns true if this call of fit() is none in which this worker, which was started again, can join the
  // others: they have made it already. The program goes on after it.
  bool passes_over(int64_t fit);
  // Returns true if this worker has joined the others in this fit or in a later one: it was started again, or
  // began together with them when another one was lost.
  bool has_joined_since(int64_t fit) const { return fit <= joined_in_; }
  // In an evaluator: evaluates the checkpoints of this call of fit(), each once, until the fit is complete.
  void follow(int64_t fit);
  // Returns true if the present training has ended, or is only followed.
  bool has_ended() const { return has_ended_; }

  // Throws Interrupted if a training of this program has stopped at --stop-after: this one cannot begin,
  // since the program would begin it with other weights than those at the end of that training.
  void require_nothing_stopped() const;
  // Returns true, and stops the program's trainings, if this one has made as many steps as --stop-after says
  // before a new fit begins.
  bool stops_before_fit();
  // Calls `body`. If that throws, tells the other workers that this one could not do `what`.
  void or_abandon(const std::string& what, const std::function<void()>& body);
  // Calls `body`, a part of a training. If that throws, the training has failed.
  void or_give_up(const std::function<void()>& body);
  // Makes a call that all workers make together, such as an evaluation outside of the steps, and returns its
  // outcome. If a worker is lost meanwhile, those that are left make it again from its beginning, so it must
  // not change the state of the training. A worker that joins the others later gets the outcome that they
  // have. In a hook and before the start, `make` is just called.
  Json with_all(const std::function<Json()>& make);
  // Makes an evaluation in the same way or, if `here`, on this worker alone (EvaluateOptions::here).
  using Values = std::map<std::string, double>;
  Values values_of_all(bool here, const std::function<Values()>& measure);
  // Tells the hooks that the training has failed, unless they have been told.
  void fail(const std::exception& error) noexcept;
  // Tells the other workers that this one has given up.
  void give_up(const std::exception& error) noexcept;

  // Evaluates batch by batch, in the order of the feed, in evaluation mode, without gradients, and without
  // disturbing the program's random numbers. Returns the metrics with the counts of all workers and, as the
  // last one, the mean loss, if it was counted. Every worker has to call it, unless it evaluates `here`.
  // Evaluates the model of the Trainer, unless another one is given.
  metrics::List evaluate(const data::Feed& feed, const metrics::List& list, const EvaluateOptions& options,
                         const Trainable* other = nullptr);
  // Returns the predictions of the Trainer's model, one row for each example.
  torch::Tensor predict(const data::Feed& feed, const EvaluateOptions& options);
  // Calls `body` while the parameters have the values that are evaluated: the average, if there is one, or
  // the values after the last step.
  void with_weights(const EvaluateOptions& options, const std::function<void()>& body);
  // Exports the model of the Trainer, or another one, with the rows of the tables (Trainer::export_model()).
  std::string export_model(const std::string& dir, const data::Feed& examples, const ExportOptions& options,
                           const Trainable* other = nullptr);
  // Fills the report and writes it.
  void write_report();

  const History& history() const { return history_->history(); }
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
  friend struct Training;  // whose methods these are

  // Raises `handles_loss_` for its lifetime.
  class LossIsHandled {
   public:
    explicit LossIsHandled(bool& flag) : flag_(flag), before_(std::exchange(flag, true)) {}
    ~LossIsHandled() { flag_ = before_; }
    LossIsHandled(const LossIsHandled&) = delete;
    LossIsHandled& operator=(const LossIsHandled&) = delete;

   private:
    bool& flag_;
    const bool before_;
  };

  // In training_start.cc.
  std::vector<std::string> hook_names() const;
  Snapshots state() const;
  void begin_run();
  void restore_hooks();
  void restore_part(const std::string& name, const std::function<void(const Snapshot&)>& restore);
  void remember_parameters();
  void require_parameters_as_they_were(const char* since) const;
  void log_plan();
  void warn_of_other_lengths() const;

  // In training_run.cc.
  template <class Call>
  void for_each_hook(Call call) {
    const SpanScope span(context_.timeline(), Activity::Step, "hooks", progress_.step);
    for (const auto& hook : hooks_) call(*hook);
  }
  void set_learning_rates();
  void begin_steps();
  void tell_start();
  void before_step();
  void after_step(const StepResult& result);
  Wishes own_reasons() const;
  Wishes reasons_to_end() const;
  int64_t epochs_done() const;
  int64_t last_step() const;
  void start_again(const std::optional<Error>& why);
  // In changing_workers.cc.
  comm::Epochs* epochs() const;
  bool may_change() const;
  bool is_loss(const Error& error) const;
  void change(std::optional<Error> why, int leaving = 0);
  void change_unless_over(const Error& why);
  void know_fit_of_others();
  void finish_if_ended();
  Json make_with_all(const std::function<Json()>& make);
  void save_for_others(int leaving);
  [[noreturn]] void leave(int leaving);
  void add_change();
  void note_change(const std::optional<Error>& error);
  bool go_on(const std::optional<Error>& why);
  void leave_fit();
  bool go_on_with_others();
  void compare_fits(bool others_have_begun);
  void tell_fit() const;
  void begin_together();
  void join();
  void enter_epoch(std::optional<Error> why, const InEpoch& come_together);
  Strategy::Standing standing();
  void take_over(Strategy::Standing standing);
  void begin_feed();
  void open_files();
  void count_step(const StepResult& result);
  void tell_step(const StepResult& result);
  void go_on_with_fit(const Progress& before);
  void stop_early();
  bool is_interrupted(const Wishes& reasons) const;
  bool stops_early(const Wishes& reasons) const;
  void end(const Wishes& reasons);
  void after_end(const Wishes& reasons);
  void log_stop(const Wishes& reasons) const;
  void abandon(const std::string& what, const std::exception& error) noexcept;
  // Returns the hash of the weights, which all workers have.
  std::string compared_weights();
  void note_hash();
  // Saves a checkpoint of the steps done. It is written in the background.
  void save();
  // The same, but what is trained stays as it is.
  void write_checkpoint();
  void note_saved();

  // In training_report.cc.
  std::vector<const EvaluationHook*> evaluations() const;
  void note_evaluations();
  std::vector<std::string> known_values() const;
  void require_monitored_values() const;
  void note_evaluation(const std::string& name, const std::map<std::string, double>& values);
  void report_evaluation(const std::string& name, const std::map<std::string, double>& values);
  void measure_rest();
  void merge(const metrics::List& list);
  void note_loss();
  // Warns of operators that --kernels same does not cover, or throws with --kernels strict.
  void name_not_covered() const;

  // In evaluation.cc.
  std::optional<std::map<std::string, double>> evaluate(const Evaluation& evaluation);
  void for_each_batch(const data::Feed& feed, const EvaluateOptions& options, data::SamplerOptions how,
                      int part, int parts, Replica* replica, embedding::Tables* fetched,
                      const std::function<void(const Batch&)>& body);
  void require_rows_here(const EvaluateOptions& options);

  // In evaluator.cc.
  void load(const Evaluator::Found& found);
  void take_checkpoint(const Evaluator::Found& found);
  void evaluate_checkpoint(const Evaluator::Found& found);
  Json values_of_hooks() const;
  void restore_hooks_from(const Json& values);

  // In export.cc.
  std::string export_once(const std::string& dir, const data::Feed& examples, const ExportOptions& options,
                          const Trainable* other);
  std::string export_now(const TrainedModel& model, const std::string& dir, const data::Feed& examples,
                         const ExportOptions& options);

  const Context& context_;
  Strategy& strategy_;
  embedding::Tables& tables_;  // of the first part
  Replica* const replica_;     // null in a Loop
  Session session_;
  Training training_;
  std::vector<std::unique_ptr<Hook>> hooks_;
  HistoryHook* history_ = nullptr;            // one of the hooks, like the validation
  EvaluationHook* validation_ = nullptr;      // after the average, which it measures
  std::vector<EvaluationHook*> evaluations_;  // among the hooks: the validation, then those of the program
  bool has_own_hooks_ = false;                // of the program
  const int64_t stop_after_;                  // 0: none
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
  std::vector<std::string> plan_;       // of the start
  std::vector<std::string> fit_plan_;   // of the present fit; empty in a Loop
  Length length_;
  bool is_running_ = false;    // between begin_steps() and the end
  bool is_started_ = false;    // the hooks were told that these steps begin
  bool handles_loss_ = false;  // whoever has called this goes on if a worker is lost
  Calls calls_;
  bool has_ended_ = false;
  bool has_failed_ = false;   // the error is known to the hooks and to those who watch the run
  bool is_prepared_ = false;  // the hooks have been called for the next step
  int changes_in_step_ = 0;   // of the workers; many of them lead nowhere
  bool joins_;                // this worker was started again, and the others train already
  int64_t joined_in_ = -1;    // the fit in which this worker has joined the others
  bool has_begun_ = false;    // this worker has the state of the run
  bool is_chief_;             // since the last change of the workers
  // The last step is counted, but only the first `hooks_told_` hooks were told of it.
  bool is_told_ = true;
  size_t hooks_told_ = 0;
  int64_t batch_ = 0;
  std::optional<StepRange> begun_;             // until the owner has taken it
  std::optional<StepResult> made_;             // the step that next() has to count
  std::optional<Error> lost_;                  // in that step
  std::optional<store::WeightHashes> hashes_;  // of --hash-every
  DeviceClock device_clock_;
  std::unique_ptr<Evaluator> evaluator_;     // in an evaluator, once it follows the run
  std::string followed_;                     // the run whose hooks have begun
  std::map<std::string, double> evaluated_;  // the values of the checkpoint, as in the report
  PassAdvice pass_advice_;
  int64_t epoch_begun_ = -1;                     // -1: none in these steps
  std::chrono::steady_clock::time_point begin_;  // of the training
  int64_t examples_before_ = 0;                  // of the run, when the training began
};

}  // namespace tutti

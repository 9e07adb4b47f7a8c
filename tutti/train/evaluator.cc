#include "tutti/train/evaluator.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <sys/stat.h>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/version.h"
#include "tutti/store/manifest.h"
#include "tutti/train/training_run.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;

constexpr const char* kRecordName = "evaluations.json";
constexpr milliseconds kBetweenRunLooks{200};
constexpr milliseconds kLockPatience{3000};
const std::set<std::string> kEvaluatedParts = {store::kWeightsPart, store::kAveragePart, store::kRowsPart};
constexpr milliseconds kExactness{3000};  // of the times of files, on any file server

const std::string& require_run_folder(const Context& context, const std::string& run) {
  if (run.empty())
    fail(ErrorKind::InvalidArgument,
         "{} needs --logdir: it evaluates the checkpoints that the training saves there",
         context.task().short_name());
  return run;
}

// Returns the text of a file with the time of its last change, which also changes if the chief only shows
// that it is alive; "" if it cannot be read.
std::string text_and_time(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return "";
  try {
    return fmt::format("{}.{} {}", status.st_mtim.tv_sec, status.st_mtim.tv_nsec, read_file(path));
  } catch (const Error&) {
    return "";  // it is being replaced on a file server
  }
}

int64_t fit_of(const store::Manifest& manifest) {
  return manifest.state.is_object() ? manifest.state.value("fit", int64_t{0}) : 0;
}

bool is_there(const store::SavedCheckpoint& saved) {
  try {
    return store::read_folder_manifest(saved.path).sequence == saved.manifest.sequence;
  } catch (const Error&) {
    return false;
  }
}

std::string name_of(const store::SavedCheckpoint& saved) {
  return fmt::format("ckpt-{}", saved.manifest.step);
}

}  // namespace

Evaluator::Evaluator(const Context& context, const std::string& run)
    : context_(context),
      run_(require_run_folder(context, run)),
      folder_(run + "/" + kEvaluatorFolder),
      launch_(launch_of(context)),
      lock_(folder_, store::holder_name(context.task().short_name()), kLockPatience),
      first_text_(text_and_time(run_ + "/" + kRunStateName)),
      last_text_(first_text_) {}

// Reads what was recorded of this run. The record of another run in the folder is replaced.
void Evaluator::follow(const std::string& id) {
  if (id_ == id) return;
  id_ = id;
  evaluations_ = Json::array();
  state_ = Json();
  last_sequence_ = -1;
  events_.reset();
  const std::string path = folder_ + "/" + kRecordName;
  if (!path_exists(path)) return;
  const Json record = parse_json(read_file(path), path, ErrorKind::DataLoss);
  if (value_in<std::string>(record, "run", path) != id) return;
  const auto found = record.find("evaluations");
  if (found == record.end() || !found->is_array())
    fail(ErrorKind::DataLoss, "{}: 'evaluations' should be a list; remove the file to begin a new one", path);
  for (const Json& each : *found) static_cast<void>(value_in<int64_t>(each, "step", path));
  evaluations_ = *found;
  state_ = record.value("state", Json());
  last_sequence_ = value_in<int64_t>(record, "last_sequence", path);
}

int64_t Evaluator::last_step() const {
  return evaluations_.empty() ? -1 : evaluations_.back().at("step").get<int64_t>();
}

// Reads the state before the checkpoints are listed: if it says that the fit is complete, its last checkpoint
// is there. They are listed only for a while after something has changed, since there may be many, but a
// while longer than the times of a file server are exact.
Evaluator::Look Evaluator::look() {
  Look look;
  std::string text = text_and_time(run_ + "/" + kRunStateName);
  if (!text.empty()) look.state = read_run_state(run_);
  look.holder = store::lock_holder(run_);
  std::error_code ignored;
  const auto changed = std::filesystem::last_write_time(run_, ignored);
  const auto now = Clock::now();
  if (look.holder || text != last_text_) last_sign_ = now;
  if (text != last_text_ || changed != folder_changed_) list_until_ = now + kExactness;
  folder_changed_ = changed;
  last_text_ = std::move(text);
  return look;
}

// A task that knows its launch compares it. Any other one may have found the state of an earlier job, unless
// it has changed meanwhile or its writer still holds the lock: a job that has just taken the lock has not
// written its state yet.
bool Evaluator::is_of_this_job(const Look& look) const {
  if (!look.state) return false;
  if (!launch_.empty()) return look.state->launch == launch_;
  return look.holder == look.state->chief || last_text_ != first_text_;
}

std::optional<Evaluator::Found> Evaluator::next(int64_t fit, const StopSignals& signals) {
  const milliseconds patience = milliseconds_of(context_.config().network.start_timeout);
  last_sign_ = list_until_ = Clock::now();
  folder_changed_ = {};
  for (;; std::this_thread::sleep_for(kBetweenRunLooks)) {
    if (const auto signal = signals.received()) {
      signals.forget();
      throw Interrupted(
          *signal, fmt::format("{} stopped by {}; its evaluations are in {}/{}", context_.task().short_name(),
                               signal_name(*signal), folder_, kRecordName));
    }
    const Look seen = look();
    const bool is_silent = Clock::now() >= last_sign_ + patience;
    // If no job begins, the one that has left this state may have ended before this task was started.
    const bool has_ended = is_silent && launch_.empty() && seen.state;
    if (!job_has_begun_ && (is_of_this_job(seen) || has_ended)) {
      job_has_begun_ = true;
      list_until_ = Clock::now() + kExactness;  // what was there before was not listed
    }
    if (job_has_begun_ && seen.state) {
      follow(seen.state->id);
      if (auto found = load_next(*seen.state, fit)) return found;
      const bool complete = seen.state->phase == RunState::Phase::Complete && seen.state->fit == fit;
      if (seen.state->fit > fit || complete) return std::nullopt;
      stopped_ = seen.state->phase == RunState::Phase::Stopped && (has_ended || is_of_this_job(seen));
      if (stopped_) return std::nullopt;
    }
    if (is_silent) give_up(seen);
  }
}

// Returns the checkpoints of this fit that were not returned yet, in the order in which they were saved.
std::vector<store::SavedCheckpoint> Evaluator::candidates(const RunState& state, int64_t fit) const {
  std::vector<store::SavedCheckpoint> saved = store::CheckpointDir(run_).saved();
  std::erase_if(saved, [&](const store::SavedCheckpoint& each) {
    return each.manifest.sequence <= last_sequence_ || each.manifest.sequence < state.first_sequence ||
           fit_of(each.manifest) != fit;
  });
  return saved;
}

std::optional<Evaluator::Found> Evaluator::newest(int64_t fit) const {
  std::vector<store::SavedCheckpoint> saved = store::CheckpointDir(run_).saved();
  std::erase_if(saved, [&](const store::SavedCheckpoint& each) { return fit_of(each.manifest) != fit; });
  for (; !saved.empty(); saved.pop_back()) {
    const store::SavedCheckpoint& last = saved.back();
    try {
      return Found{store::load_checkpoint(last.path, kEvaluatedParts), last.path, last.manifest.sequence};
    } catch (const Error& error) {
      context_.log().warning("skipped {}: {}", name_of(last), error.what());
    }
  }
  return std::nullopt;
}

std::optional<Evaluator::Found> Evaluator::load_next(const RunState& state, int64_t fit) {
  if (Clock::now() >= list_until_) return std::nullopt;
  for (auto saved = candidates(state, fit); !saved.empty(); saved = candidates(state, fit)) {
    const store::SavedCheckpoint first = saved.front();
    try {
      Found found{store::load_checkpoint(first.path, kEvaluatedParts), first.path, first.manifest.sequence};
      last_sequence_ = found.sequence;
      return found;
    } catch (const Error& error) {
      if (is_there(first) && error.kind() != ErrorKind::DataLoss) throw;
      if (is_there(first)) {
        context_.log().warning("skipped {}: {}", name_of(first), error.what());
        last_sequence_ = first.manifest.sequence;
        continue;
      }
    }
    // It was removed, or saved again, while it was read.
    saved = candidates(state, fit);
    if (saved.empty()) return std::nullopt;
    context_.log().info("{} was removed before it was evaluated (--keep); going on with {}", name_of(first),
                        name_of(saved.back()));
    last_sequence_ = saved.back().manifest.sequence - 1;
  }
  return std::nullopt;
}

void Evaluator::give_up(const Look& look) const {
  const double seconds = context_.config().network.start_timeout;
  if (!job_has_begun_ || !look.state)
    fail(ErrorKind::Timeout,
         "nobody has begun to train in {} for {:g} s: start the training, check that all tasks have the same "
         "--logdir, or raise --start-timeout",
         run_, seconds);
  fail(ErrorKind::Timeout,
       "nobody has trained in {} for {:g} s, but the training is not complete: step {} was the last that was "
       "told by {}. Start the job again, which goes on from its newest checkpoint, or raise --start-timeout",
       run_, seconds, look.state->step, look.state->chief);
}

const std::shared_ptr<store::EventWriter>& Evaluator::events_at(int64_t step) {
  if (events_ && step > last_step()) return events_;
  store::EventWriterOptions options;
  if (last_step() >= 0) options.resumed_after = std::min(step - 1, last_step());
  events_ = context_.event_stream(run_)->open(folder_, options);
  return events_;
}

void Evaluator::record(const Found& found, const std::map<std::string, double>& values, double seconds,
                       Json state) {
  const store::Checkpoint& checkpoint = found.checkpoint;
  while (last_step() >= checkpoint.step) evaluations_.erase(evaluations_.size() - 1);
  Json finite = Json::object();
  for (const auto& [name, value] : values) finite[name] = std::isfinite(value) ? Json(value) : Json(nullptr);
  Json each = {{"step", checkpoint.step},
               {"checkpoint", found.where},
               {"weights_sha256", checkpoint.state.value("weights_sha256", "")},
               {"seconds", seconds},
               {"values", std::move(finite)}};
  evaluations_.push_back(std::move(each));
  state_ = std::move(state);
  const Json record = {
      {"task", context_.task().short_name()}, {"tutti_version", version()},  {"run", id_},
      {"last_sequence", found.sequence},      {"evaluations", evaluations_}, {"state", state_}};
  replace_file(folder_ + "/" + kRecordName,
               record.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

// --- The part of TrainingRun that runs in an evaluator.

void TrainingRun::follow(int64_t fit) {
  has_ended_ = true;
  if (!evaluator_) {
    evaluator_ = std::make_unique<Evaluator>(context_, session_.folder());
    training_.folder = evaluator_->folder();
  }
  note_evaluations();
  if (training_.evaluations == 0 && !has_own_hooks_)
    context_.log().warning(
        "the program evaluates nothing: give fit() a validation, or add hooks::evaluation()");
  const StopSignals signals(context_.config());
  bool begun = false;
  const auto begin = [&] {
    const bool is_new = evaluator_->run_id() != std::exchange(followed_, evaluator_->run_id());
    const bool is_first = !std::exchange(begun, true);
    if (is_new) restore_hooks_from(evaluator_->state());
    if (is_new || is_first) for_each_hook([&](Hook& hook) { hook.begin(training_); });
  };
  while (const auto found = evaluator_->next(fit, signals)) {
    take_checkpoint(*found);
    begin();
    evaluate_checkpoint(*found);
  }
  // The program may evaluate after the fit: then it has the last checkpoint, also if an earlier task
  // evaluated it.
  if (!begun) {
    if (const auto newest = evaluator_->newest(fit)) load(*newest);
  }
  begin();
  if (evaluator_->stopped()) context_.stopped_early() = true;
}

// Loads the weights, the rows of sharded tables and, if the training keeps one, the moving average.
void TrainingRun::load(const Evaluator::Found& found) {
  const store::Checkpoint& checkpoint = found.checkpoint;
  const Session::Start start = session_.load(found);
  strategy_.take_rows(start);
  progress_ = start.progress;
  training_.step = training_.last_step = checkpoint.step;
  training_.end_step = Training::kEndless;
  if (training_.average != nullptr) {
    const auto average = checkpoint.more.find(store::kAveragePart);
    if (average == checkpoint.more.end())
      training_.average->restart();
    else
      training_.average->part().restore({.tensors = average->second});
  }
}

// Loads a checkpoint to evaluate it.
void TrainingRun::take_checkpoint(const Evaluator::Found& found) {
  load(found);
  // Event files of hooks that an earlier task has written end here.
  training_.first_step = std::max<int64_t>(0, std::min(evaluator_->last_step(), training_.step - 1));
  session_.set_events(evaluator_->events_at(training_.step));
  training_.events = session_.events();
}

void TrainingRun::evaluate_checkpoint(const Evaluator::Found& found) {
  const auto begin = std::chrono::steady_clock::now();
  evaluated_.clear();
  for_each_hook([&](Hook& hook) { hook.evaluate(training_); });
  training_.events->flush();
  const std::chrono::duration<double> lasted = std::chrono::steady_clock::now() - begin;
  evaluator_->record(found, evaluated_, lasted.count(), values_of_hooks());
}

// Returns what the hooks remember, but for tensors, which only a training needs.
Json TrainingRun::values_of_hooks() const {
  Json values = Json::object();
  const std::vector<std::string> names = hook_names();
  for (size_t i = 0; i < hooks_.size(); ++i) {
    const Snapshot state = hooks_[i]->state();
    if (!state.values.empty() && state.tensors.empty()) values[names[i]] = state.values;
  }
  return values;
}

void TrainingRun::restore_hooks_from(const Json& values) {
  if (!values.is_object()) return;
  for (const auto& [name, value] : values.items()) found_[name].values = value;
  hooks_are_stale_ = true;
  restore_hooks();
}

}  // namespace tutti

#include <atomic>
#include <utility>

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <nlohmann/json.hpp>

#include "tutti/base/trace_events.h"
#include "tutti/train/hooks.h"

namespace tutti::hooks {
namespace {

// LibTorch's callbacks are plain functions. They find the timeline in the thread-local debug information that
// LibTorch passes on to its worker threads, under a key that LibTorch leaves to others.
c10::DebugInfoKind key() { return c10::DebugInfoKind::TEST_INFO_2; }

struct OperatorsTimeline final : c10::DebugInfoBase {
  explicit OperatorsTimeline(Timeline& to) : timeline(to) {}
  Timeline& timeline;
  std::atomic<int64_t> step{-1};
};

struct Begun final : at::ObserverContext {
  int64_t at = 0;
};

std::unique_ptr<at::ObserverContext> begin_operator(const at::RecordFunction&) {
  const auto* operators = static_cast<OperatorsTimeline*>(c10::ThreadLocalDebugInfo::get(key()));
  if (operators == nullptr) return nullptr;
  auto begun = std::make_unique<Begun>();
  begun->at = operators->timeline.now();
  return begun;
}

void end_operator(const at::RecordFunction& function, at::ObserverContext* context) {
  auto* operators = static_cast<OperatorsTimeline*>(c10::ThreadLocalDebugInfo::get(key()));
  if (operators == nullptr || context == nullptr) return;
  Timeline& timeline = operators->timeline;
  timeline.record(Activity::Operator, function.name(), "", operators->step, static_cast<Begun*>(context)->at,
                  timeline.now());
}

// While it exists, the operators of this thread, and of threads that work for it, are recorded.
class OperatorRecording {
 public:
  explicit OperatorRecording(Timeline& timeline)
      : operators_(std::make_shared<OperatorsTimeline>(timeline)),
        guard_(key(), operators_),
        handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(begin_operator, end_operator)
                .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION,
                         at::RecordScope::TORCHSCRIPT_FUNCTION, at::RecordScope::USER_SCOPE}))) {}
  ~OperatorRecording() { at::removeCallback(handle_); }
  OperatorRecording(const OperatorRecording&) = delete;
  OperatorRecording& operator=(const OperatorRecording&) = delete;

  void step(int64_t step) { operators_->step = step; }

 private:
  const std::shared_ptr<OperatorsTimeline> operators_;  // shared with LibTorch's threads
  const c10::DebugInfoGuard guard_;
  const at::CallbackHandle handle_;
};

class Profile final : public Hook {
 public:
  Profile(StepInterval steps, std::string file) : steps_(steps), file_(std::move(file)) {}

  void before_step(Training& training) override {
    if (training.step == steps_.begin) {
      began_ = true;
      record(training);
    }
    if (recording_) recording_->step(training.step);
  }

  void after_step(Training& training, const StepResult&) override {
    if (training.step >= steps_.end) finish(training);
  }

  void end(Training& training) override {
    finish(training);
    if (!began_ && training.group.is_chief())
      training.context.log().warning(
          "--profile-steps: no operators were recorded, since this training, which ended after step {}, did "
          "not make step {} (steps are counted from 0)",
          training.step, steps_.begin);
  }

  void on_error(Training&, const std::exception&) noexcept override { recording_.reset(); }

 private:
  void record(const Training& training) {
    Timeline* timeline = training.context.timeline();
    if (timeline == nullptr) {
      if (!training.group.is_chief()) return;
      clear_for_trace(file_);
      timeline = &own_.emplace();
      timeline->name_thread("main");
    }
    recording_.emplace(*timeline);
  }

  void finish(const Training& training) {
    if (!recording_) return;
    recording_.reset();
    if (!own_) return;
    const int64_t begin = first_begin(*own_).value_or(0);
    const TraceProcess process{.name = training.context.task().short_name(),
                               .time = [begin](int64_t own) { return own - begin; }};
    write_trace(file_, *own_, process, Json{{"first_step", steps_.begin}, {"end_step", training.step}});
    own_.reset();
    training.context.log().info(
        "the trace of steps {} to {} is in {}: open it in ui.perfetto.dev or chrome://tracing", steps_.begin,
        training.step - 1, file_);
  }

  const StepInterval steps_;
  const std::string file_;
  bool began_ = false;
  std::optional<Timeline> own_;
  std::optional<OperatorRecording> recording_;
};

}  // namespace

std::unique_ptr<Hook> profile(StepInterval steps, std::string file) {
  return std::make_unique<Profile>(steps, std::move(file));
}

}  // namespace tutti::hooks

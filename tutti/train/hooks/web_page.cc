#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "tutti/base/json.h"
#include "tutti/base/text.h"
#include "tutti/train/hooks.h"
#include "tutti/train/training_run.h"
#include "tutti/transport/member_epochs.h"
#include "tutti/web/page.h"

namespace tutti::hooks {
namespace {

// Reading the loss waits for a GPU.
constexpr std::chrono::seconds kBetweenLossesOfGpu{5};

// Returns how often these words are in a text.
int64_t count_of(std::string_view words, std::string_view text) {
  int64_t count = 0;
  for (size_t at = text.find(words); at != std::string_view::npos; at = text.find(words, at + 1)) ++count;
  return count;
}

// Tells the page what happens, on the chief of the group.
class WebPage final : public Hook {
 public:
  void after_start(Training& training) override { begin_showing(training); }

  void before_step(Training& training) override {
    if (page_ == nullptr && training.group.is_chief()) begin_showing(training);  // another chief was lost
    show_changes(training);
    update([](web::TrainingStatus& status, const web::Moment& now) { status.begin_step(now); });
  }

  void after_step(Training& training, const StepResult& result) override {
    if (page_ == nullptr) return;
    web::StepDone done{.step = result.step,
                       .examples = result.examples,
                       .learning_rate = training.optimizer.learning_rate()};
    if (result.has_loss() && reads_loss(result.loss_sum.is_cpu())) done.loss = result.loss();
    update([&](web::TrainingStatus& status, const web::Moment& now) {
      status.end_step_at(done, now);
      status.epoch = training.epoch;
      status.workers = training.group.world;
    });
  }

  void after_validation(Training& training, const std::map<std::string, double>& values) override {
    update([&](web::TrainingStatus& status, const web::Moment&) {
      for (const auto& [name, value] : values)
        status.values[training.evaluation.empty() ? "validation_" + name : name] = value;
    });
    std::string text = fmt::format(
        "{} after step {}:", training.evaluation.empty() ? "validation" : training.evaluation, training.step);
    for (const auto& [name, value] : values) text += fmt::format(" {} {:.4f}", name, value);
    note(LogLevel::Info, text);
  }

  void after_save(Training&, const std::string& path, int64_t step) override {
    update([&](web::TrainingStatus& status, const web::Moment& now) {
      status.checkpoint_step = step;
      status.checkpoint_time = now.unix;
    });
    note(LogLevel::Info, "checkpoint " + path);
  }

  void end(Training& training) override {
    const web::Phase phase = training.interrupted ? web::Phase::Stopped : web::Phase::Complete;
    update([&](web::TrainingStatus& status, const web::Moment&) {
      status.phase = phase;
      status.step = training.step;
    });
    note(LogLevel::Info,
         fmt::format("{} after step {}", training.interrupted ? "stopped" : "complete", training.step));
  }

  void on_error(Training&, const std::exception& error) noexcept override {
    try {
      const std::string why = first_line(error.what());
      update([&](web::TrainingStatus& status, const web::Moment&) {
        status.phase = web::Phase::Failed;
        status.why = why;
      });
      note(LogLevel::Error, why);
    } catch (const std::exception&) {
      // Without memory for the text, the log has to do.
    }
  }

 private:
  void begin_showing(Training& training) {
    page_ = training.group.is_chief() ? training.context.page() : nullptr;
    if (page_ == nullptr) return;
    training.context.serve_page();
    const std::string& logdir = training.context.config().checkpoints.logdir;
    if (training.folder != logdir) name_ = std::filesystem::path(training.folder).filename().string();
    update([&](web::TrainingStatus& status, const web::Moment& now) {
      status.begin(training.step, now);
      status.folder = training.folder;
      status.workers = training.group.world;
      status.lanes = training.run.session().lanes();
      status.restarts = training.run.progress().restarts;
      status.end_step.reset();
      if (training.end_step != Training::kEndless) status.end_step = training.end_step;
    });
    note(LogLevel::Info, fmt::format("the training begins at step {}, with {} worker{}", training.step,
                                     training.group.world, training.group.world == 1 ? "" : "s"));
  }

  // Shows the workers that were lost or have come, also under another chief before.
  void show_changes(const Training& training) {
    const Json& changes = training.run.report().changes;
    if (page_ == nullptr || changes.size() == changes_shown_) return;
    int64_t lost = 0;
    int64_t left = 0;
    int64_t joined = 0;
    for (size_t i = 0; i < changes.size(); ++i) {
      const Json& change = changes[i];
      const auto why = change.at("why").get<std::string>();
      const int64_t lost_now = count_of(comm::kIsGone, why);
      lost += lost_now;
      left += count_of(comm::kHasLeft, why);
      joined += count_of(comm::kHasCome, why);
      if (i < changes_shown_) continue;
      const auto world = change.at("world").get<int64_t>();
      note(lost_now > 0 ? LogLevel::Warning : LogLevel::Info,
           fmt::format("going on at step {} with {} worker{}: {}", change.at("step").get<int64_t>(), world,
                       world == 1 ? "" : "s", why),
           change.at("time").get<double>());
    }
    changes_shown_ = changes.size();
    update([&](web::TrainingStatus& status, const web::Moment&) {
      status.workers = training.group.world;
      status.workers_lost = lost;
      status.workers_left = left;
      status.workers_joined = joined;
    });
  }

  template <class Change>
  void update(const Change& change) const {
    if (page_ != nullptr) page_->update(name_, change);
  }
  void note(LogLevel level, const std::string& text, std::optional<double> time = {}) const {
    if (page_ != nullptr) page_->note(level, name_.empty() ? text : name_ + ": " + text, time);
  }

  bool reads_loss(bool is_on_cpu) {
    const auto now = std::chrono::steady_clock::now();
    if (!is_on_cpu && now < loss_read_ + kBetweenLossesOfGpu) return false;
    loss_read_ = now;
    return true;
  }

  web::Page* page_ = nullptr;  // null: this worker shows nothing
  std::string name_;
  size_t changes_shown_ = 0;  // of the report
  std::chrono::steady_clock::time_point loss_read_{};
};

}  // namespace

std::unique_ptr<Hook> web_page() { return std::make_unique<WebPage>(); }

}  // namespace tutti::hooks

#include "tutti/train/hooks/progress.h"

#include <cmath>
#include <string>
#include <unistd.h>

#include <fmt/format.h>

namespace tutti::hooks {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLiveEvery{250};
constexpr std::chrono::seconds kPlainEvery{10};

// Returns "1,234,567". The counts here are never negative.
std::string grouped(int64_t number) {
  if (number < 1000) return std::to_string(number);
  return fmt::format("{},{:03}", grouped(number / 1000), number % 1000);
}

std::string duration(double seconds) {
  const auto whole = static_cast<int64_t>(std::ceil(seconds));
  const int64_t hours = whole / 3600;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, whole / 60 % 60, whole % 60)
                   : fmt::format("{}:{:02}", whole / 60, whole % 60);
}

class Progress final : public Hook {
 public:
  Progress() : live_(::isatty(STDERR_FILENO) == 1) {}

  void after_start(Training&) override { window_start_ = Clock::now(); }

  void after_step(Training& training, const StepResult& result) override {
    window_examples_ += result.examples;
    ++window_steps_;
    const auto now = Clock::now();
    const bool due =
        now - window_start_ >= (live_ ? Clock::duration(kLiveEvery) : Clock::duration(kPlainEvery));
    if ((!due && training.step != training.end_step) || !training.group.is_chief()) return;
    show(training, result, std::chrono::duration<double>(now - window_start_).count());
    window_start_ = now;
    window_examples_ = 0;
    window_steps_ = 0;
  }

  void end(Training&) override { leave_line(); }
  void on_error(Training&, const std::exception&) noexcept override { leave_line(); }

 private:
  void show(const Training& training, const StepResult& result, double seconds) {
    const std::string loss = result.has_loss() ? fmt::format("{:.4f}", result.loss()) : "none";
    std::string of_how_many;
    std::string left;
    if (training.end_step != Training::kEndless) {
      const double steps_left = static_cast<double>(training.end_step - training.step);
      of_how_many = "/" + grouped(training.end_step);
      left = fmt::format("  {} left", duration(steps_left * seconds / static_cast<double>(window_steps_)));
    }
    const std::string line =
        fmt::format("step {}{}  loss {}  {} examples/s{}", grouped(training.step), of_how_many, loss,
                    grouped(static_cast<int64_t>(static_cast<double>(window_examples_) / seconds)), left);
    if (!live_) {
      training.context.log().info("{}", line);
    } else if (training.context.log().enabled(LogLevel::Info)) {
      put("\r\x1b[K" + line);
      line_stands_ = true;
    }
  }

  void leave_line() {
    if (line_stands_) put("\n");
    line_stands_ = false;
  }

  static void put(const std::string& text) {
    // Errors are ignored: a terminal that cannot be written to must not stop the training.
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
  }

  const bool live_;
  bool line_stands_ = false;
  Clock::time_point window_start_;
  int64_t window_examples_ = 0;
  int64_t window_steps_ = 0;
};

}  // namespace

std::unique_ptr<Hook> progress() { return std::make_unique<Progress>(); }

}  // namespace tutti::hooks

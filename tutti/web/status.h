#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/base/log.h"

// The state of the trainings of a process as values, and as the texts that the page serves. Nothing here is
// thread-safe; a Page guards it.
namespace tutti::web {

// A moment, for durations and for people.
struct Moment {
  std::chrono::steady_clock::time_point steady;
  double unix = 0;  // seconds since 1970

  static Moment now();
  double since(const Moment& earlier) const {
    return std::chrono::duration<double>(steady - earlier.steady).count();
  }
};

// How long steps take: counts by upper bounds, as Prometheus' histograms have them.
struct StepTimes {
  static constexpr std::array<double, 11> kBounds = {0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100};

  std::array<int64_t, kBounds.size()> counts{};  // of the steps that took at most so many seconds
  int64_t count = 0;
  double sum = 0;      // seconds
  double longest = 0;  // seconds

  void add(double seconds);
};

// The loss after some of the steps, at equal distances, for a curve.
struct LossCurve {
  static constexpr size_t kMost = 240;

  std::vector<std::pair<int64_t, double>> points;  // by step
  int64_t distance = 1;                            // in steps
  void add(int64_t step, double loss);
};

enum class Phase { Starting, Training, Complete, Stopped, Failed };

// A step that this process has made.
struct StepDone {
  int64_t step = 0;  // of the run
  int64_t examples = 0;
  std::optional<double> loss = {};  // empty: not read
  double learning_rate = 0;
};

// One training of this process.
struct TrainingStatus {
  Phase phase = Phase::Starting;
  std::string why;     // it has failed
  std::string folder;  // "": nothing is written
  int64_t workers = 1;
  // How many were lost, have left as planned, and have come since the run began.
  int64_t workers_lost = 0;
  int64_t workers_left = 0;
  int64_t workers_joined = 0;
  int64_t lanes = 1;
  int64_t restarts = 0;  // how often the run was resumed
  int64_t step = 0;
  std::optional<int64_t> end_step;
  int64_t epoch = 0;
  int64_t steps = 0;     // made by this process
  int64_t examples = 0;  // likewise
  std::optional<double> loss;
  int64_t loss_step = 0;
  double learning_rate = 0;
  double steps_per_second = 0;
  double examples_per_second = 0;
  StepTimes times;
  LossCurve curve;
  std::map<std::string, double> values;  // of the last evaluations, by name
  std::optional<int64_t> checkpoint_step;
  double checkpoint_time = 0;  // Unix
  std::optional<Moment> step_began;

  // The steps begin, or begin again after another task was lost.
  void begin(int64_t at_step, const Moment& now);
  void begin_step(const Moment& now) { step_began = now; }
  void end_step_at(const StepDone& done, const Moment& now);

 private:
  // Speeds are measured from here on, for a second or more.
  Moment window_began_;
  int64_t window_steps_ = 0;
  int64_t window_examples_ = 0;
};

struct Event {
  double time = 0;  // Unix
  LogLevel level = LogLevel::Info;
  std::string text;
};

struct Status {
  static constexpr size_t kMostEvents = 100;

  std::string task;  // which serves the page
  std::string host;
  std::vector<std::string> tasks = {};  // of the job, as it was started: "worker/0 (h:2222)"
  std::string device;
  double timeout = 60;  // seconds that a step may take
  Moment started;
  std::map<std::string, TrainingStatus> trainings = {};  // by name; "" for the only one
  std::deque<Event> events = {};                         // the newest is the last

  // Adds an event of this Unix time.
  void note(LogLevel level, std::string_view text, double time);
};

// Returns why a probe has to report a failure; "" if all is well. A training is unwell if it has failed, or
// if one step takes longer than `timeout` and five times as long as any before.
std::string trouble_of(const Status& status, const Moment& now);

Json to_json(const Status& status, const Moment& now);
// In Prometheus' text format, version 0.0.4.
std::string metrics_text(const Status& status, const Moment& now);
// The page, which shows what it reads from status.json.
extern const std::string_view kPageHtml;

}  // namespace tutti::web

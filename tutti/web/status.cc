#include "tutti/web/status.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tutti/base/version.h"

namespace tutti::web {
namespace {

const char* name_of(Phase phase) {
  switch (phase) {
    case Phase::Starting:
      return "starting";
    case Phase::Training:
      return "training";
    case Phase::Complete:
      return "complete";
    case Phase::Stopped:
      return "stopped";
    case Phase::Failed:
      return "failed";
  }
  return "";
}

// JSON has no NaN.
Json number(std::optional<double> value) { return value && std::isfinite(*value) ? Json(*value) : Json(); }

template <class Value>
Json value_or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json();
}

std::string trouble_of(const TrainingStatus& training, double timeout, const Moment& now) {
  constexpr double kMuchLonger = 5;
  if (training.phase == Phase::Failed)
    return fmt::format("failed at step {}: {}", training.step, training.why);
  if (training.phase != Phase::Training || !training.step_began) return "";
  const double seconds = now.since(*training.step_began);
  if (seconds <= std::max(timeout, kMuchLonger * training.times.longest)) return "";
  return fmt::format("no progress: step {} has been taking {:.0f} s", training.step, seconds);
}

Json to_json(const TrainingStatus& training, const std::string& name, const Moment& now) {
  Json values = Json::object();
  for (const auto& [of_value, value] : training.values) values[of_value] = number(value);
  Json curve = Json::array();
  for (const auto& [step, loss] : training.curve.points) curve.push_back({step, number(loss)});
  const bool in_step = training.phase == Phase::Training && training.step_began;
  return {{"name", name},
          {"phase", name_of(training.phase)},
          {"why", training.why},
          {"folder", training.folder},
          {"workers", training.workers},
          {"workers_lost", training.workers_lost},
          {"workers_left", training.workers_left},
          {"workers_joined", training.workers_joined},
          {"lanes", training.lanes},
          {"restarts", training.restarts},
          {"step", training.step},
          {"end_step", value_or_null(training.end_step)},
          {"epoch", training.epoch},
          {"steps", training.steps},
          {"examples", training.examples},
          {"loss", number(training.loss)},
          {"loss_step", training.loss_step},
          {"learning_rate", number(training.learning_rate)},
          {"steps_per_second", number(training.steps_per_second)},
          {"examples_per_second", number(training.examples_per_second)},
          {"seconds_in_step", in_step ? Json(now.since(*training.step_began)) : Json()},
          {"checkpoint_step", value_or_null(training.checkpoint_step)},
          {"checkpoint_time", training.checkpoint_step ? Json(training.checkpoint_time) : Json()},
          {"values", std::move(values)},
          {"curve", std::move(curve)}};
}

}  // namespace

Moment Moment::now() {
  return {std::chrono::steady_clock::now(),
          std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count()};
}

void StepTimes::add(double seconds) {
  for (size_t i = 0; i < kBounds.size(); ++i) {
    if (seconds <= kBounds[i]) ++counts[i];
  }
  ++count;
  sum += seconds;
  longest = std::max(longest, seconds);
}

// When there are too many points, every other one is removed, and the distance doubles. A run that was set
// back makes steps again.
void LossCurve::add(int64_t step, double loss) {
  while (!points.empty() && points.back().first >= step) points.pop_back();
  if (!points.empty() && step < points.back().first + distance) return;
  points.emplace_back(step, loss);
  if (points.size() < kMost) return;
  for (size_t i = 0; 2 * i < points.size(); ++i) points[i] = points[2 * i];
  points.resize((points.size() + 1) / 2);
  distance *= 2;
}

void TrainingStatus::begin(int64_t at_step, const Moment& now) {
  phase = Phase::Training;
  why.clear();
  step = at_step;
  step_began.reset();
  window_began_ = now;
  window_steps_ = window_examples_ = 0;
}

void TrainingStatus::end_step_at(const StepDone& done, const Moment& now) {
  constexpr double kWindow = 1;  // seconds
  if (step_began) times.add(now.since(*step_began));
  step_began.reset();
  step = done.step;
  learning_rate = done.learning_rate;
  ++steps;
  ++window_steps_;
  examples += done.examples;
  window_examples_ += done.examples;
  if (done.loss) {
    loss = done.loss;
    loss_step = done.step;
    curve.add(done.step, *done.loss);
  }
  const double seconds = now.since(window_began_);
  if (seconds < kWindow) return;
  steps_per_second = static_cast<double>(window_steps_) / seconds;
  examples_per_second = static_cast<double>(window_examples_) / seconds;
  window_began_ = now;
  window_steps_ = window_examples_ = 0;
}

void Status::note(LogLevel level, std::string_view text, double time) {
  const auto later = std::upper_bound(events.begin(), events.end(), time,
                                      [](double at, const Event& event) { return at < event.time; });
  events.insert(later, {time, level, std::string(text)});
  if (events.size() > kMostEvents) events.pop_front();
}

std::string trouble_of(const Status& status, const Moment& now) {
  for (const auto& [name, training] : status.trainings) {
    const std::string trouble = trouble_of(training, status.timeout, now);
    if (!trouble.empty()) return name.empty() ? trouble : fmt::format("{}: {}", name, trouble);
  }
  return "";
}

Json to_json(const Status& status, const Moment& now) {
  Json trainings = Json::array();
  for (const auto& [name, training] : status.trainings) trainings.push_back(to_json(training, name, now));
  Json events = Json::array();
  for (const Event& event : status.events)
    events.push_back({{"time", event.time},
                      {"level", log_level_names().at(static_cast<size_t>(event.level))},
                      {"text", event.text}});
  return {{"version", version()},
          {"task", status.task},
          {"host", status.host},
          {"device", status.device},
          {"started", status.started.unix},
          {"now", now.unix},
          {"trouble", trouble_of(status, now)},
          {"tasks", status.tasks},
          {"trainings", std::move(trainings)},
          {"events", std::move(events)}};
}

}  // namespace tutti::web

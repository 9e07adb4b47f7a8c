#include "tutti/comm/timeline_file.h"

#include <chrono>
#include <exception>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/this_host.h"
#include "tutti/base/trace_events.h"
#include "tutti/base/version.h"
#include "tutti/comm/gather_all.h"

namespace tutti::comm {
namespace {

double microseconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1000; }

// In nanoseconds.
int64_t wall_time() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

TimelineFileOptions options_of(const Context& context) {
  if (context.timeline() == nullptr) return {};
  return {context.config().output.timeline,
          context.rank(),
          context.world(),
          context.task().short_name(),
          host_name(),
          host_identity(),
          context.log()};
}

}  // namespace

TimelineFile::TimelineFile(const Context& context, Communicator* comm)
    : TimelineFile(context.identity().is_evaluator ? nullptr : context.timeline(), comm,
                   options_of(context)) {}

TimelineFile::TimelineFile(Timeline* timeline, Communicator* comm, TimelineFileOptions options)
    : timeline_(timeline),
      comm_(comm),
      options_(std::move(options)),
      exceptions_(std::uncaught_exceptions()),
      wall_begin_(wall_time()) {
  if (timeline_ == nullptr) return;
  try {
    const std::string path = trace_path(options_.path, options_.rank);
    make_folder_for(path);
    clear_for_trace(path);
  } catch (const Error& error) {
    if (comm_ != nullptr)
      comm_->abandon(fmt::format("{} gave up: --timeline: {}", options_.task, error.what()));
    fail(error.kind(), "--timeline: {}", error.what());
  }
  const torch::NoGradGuard no_grad;
  machines_ = comm_ != nullptr ? gather_all(*comm_, options_.machine, "the timeline")
                               : std::vector<std::string>{options_.machine};
  begin_ = read_clock();
}

ClockReading TimelineFile::read_clock() const {
  if (comm_ == nullptr) return {.at = timeline_->now()};
  return compare_clocks(*comm_, machines_,
                        [this] { return timeline_->now(); })[static_cast<size_t>(comm_->rank())];
}

TimelineFile::~TimelineFile() {
  if (timeline_ == nullptr) return;
  if (std::uncaught_exceptions() == exceptions_) {
    write();
  } else if (!written_) {
    write_file({}, "the program ended with an error");
  }
}

void TimelineFile::write() noexcept {
  if (timeline_ == nullptr) return;
  std::optional<ClockReading> end;
  std::string error;
  try {
    const torch::NoGradGuard no_grad;
    end = read_clock();
  } catch (const std::exception& failure) {
    error = failure.what();
  }
  write_file(end, error);
  written_ = true;
}

// `error` is empty if the training has ended well.
void TimelineFile::write_file(const std::optional<ClockReading>& end, const std::string& error) noexcept {
  try {
    const CommonClock clock(begin_, end);
    TraceProcess process{.number = options_.rank,
                         .name = fmt::format("{} on {}", options_.task, options_.host),
                         .time = clock};
    if (clock.uncertainty() > 0)
      process.label = fmt::format("clock +- {:.0f} us", microseconds(clock.uncertainty()));
    const int64_t now = timeline_->now();
    const int64_t wall = wall_time();
    Json about = {{"tutti_version", version()},
                  {"rank", options_.rank},
                  {"world", options_.world},
                  {"task", options_.task},
                  {"host", options_.host},
                  {"complete", error.empty()},
                  {"clock", machines_.front()},
                  {"clock_ahead_us", microseconds(clock(now) - now)},
                  {"clock_uncertainty_us", microseconds(clock.uncertainty())},
                  {"wall_ahead_us", microseconds(wall - clock(now))},
                  {"wall_begin_us", microseconds(wall_begin_)},
                  {"wall_end_us", microseconds(wall)}};
    if (!error.empty()) about["why"] = error;
    write_trace(trace_path(options_.path, options_.rank), *timeline_, process, std::move(about));
    if (options_.rank == 0) say_where();
  } catch (const std::exception& failure) {
    try {
      options_.log.warning("the timeline was not written: {}", failure.what());
    } catch (const std::exception&) {
      // The log cannot be written either.
    }
  }
}

void TimelineFile::say_where() const {
  if (options_.world == 1)
    options_.log.info("timeline in {}: open it in ui.perfetto.dev or chrome://tracing", options_.path);
  else
    options_.log.info(
        "timelines of {} workers in {}, {} and so on; to join them: tutti timeline {} --out ALL.json",
        options_.world, options_.path, trace_path(options_.path, 1), options_.path);
}

}  // namespace tutti::comm

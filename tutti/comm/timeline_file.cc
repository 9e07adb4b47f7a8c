#include "tutti/comm/timeline_file.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <limits>
#include <optional>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/base/this_host.h"
#include "tutti/base/version.h"
#include "tutti/comm/gather_all.h"

namespace tutti::comm {
namespace {

// The size of the pieces that a rank sends.
constexpr size_t kPiece = size_t{256} << 10;
constexpr int64_t kStopped = -1;

constexpr const char* kWhat = "the timeline";

double microseconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1000; }

// "trace.rank2.json"
std::string path_for(const std::string& path, int rank) {
  if (rank == 0) return path;
  const std::filesystem::path whole(path);
  return (whole.parent_path() /
          fmt::format("{}.rank{}{}", whole.stem().string(), rank, whole.extension().string()))
      .string();
}

// The ranks may be a group of the workers, and the other groups write files of their own.
TimelineFileOptions options_of(const Context& context, const Communicator& comm) {
  if (context.timeline() == nullptr) return {};
  const std::string& path = context.config().output.timeline;
  return {comm.rank() == 0 ? path_for(path, context.rank()) : path, context.task().short_name(), host_name(),
          host_identity(), context.log()};
}

// Returns the wall-clock time at which the timeline's clock showed `then`; it shows `now` at present.
std::string wall_time(int64_t then, int64_t now) {
  const auto wall = std::chrono::system_clock::now() - std::chrono::nanoseconds(now - then);
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::chrono::system_clock::to_time_t(wall)));
}

}  // namespace

TimelineFile::TimelineFile(const Context& context, Communicator& comm)
    : TimelineFile(context.timeline(), comm, options_of(context, comm)) {}

TimelineFile::TimelineFile(Timeline* timeline, Communicator& comm, TimelineFileOptions options)
    : timeline_(timeline),
      comm_(comm),
      options_(std::move(options)),
      exceptions_(std::uncaught_exceptions()) {
  if (timeline_ == nullptr) return;
  try {
    if (comm_.rank() == 0) require_writable_trace(options_.path);
  } catch (const Error& error) {
    comm_.abandon(fmt::format("{} gave up: --timeline: {}", options_.task, error.what()));
    fail(error.kind(), "--timeline: {}", error.what());
  }
  const torch::NoGradGuard no_grad;
  machines_ = gather_all(comm_, options_.machine, kWhat);
  clocks_ = compare_clocks(comm_, machines_, [this] { return timeline_->now(); });
}

TimelineFile::~TimelineFile() {
  if (timeline_ == nullptr) return;
  if (std::uncaught_exceptions() == exceptions_) {
    write();
  } else if (!written_) {
    write_own("the program ended with an error");
  }
}

void TimelineFile::write() noexcept {
  if (timeline_ == nullptr) return;
  try {
    gather_and_write();
  } catch (const std::exception& error) {
    write_own(error.what());
  }
  written_ = true;
}

TraceProcess TimelineFile::process(const CommonClock& clock, int64_t begin) const {
  TraceProcess process{.number = comm_.rank(), .name = fmt::format("{} on {}", options_.task, options_.host)};
  if (clock.uncertainty() > 0)
    process.label = fmt::format("clock +- {:.0f} us", microseconds(clock.uncertainty()));
  process.time = [clock, begin](int64_t own) { return clock(own) - begin; };
  return process;
}

Json TimelineFile::about_this(const CommonClock& clock) const {
  const TraceEvents events(*timeline_, {});
  const int64_t now = timeline_->now();
  return {{"rank", comm_.rank()},
          {"task", options_.task},
          {"host", options_.host},
          {"spans", events.spans()},
          {"dropped_spans", events.dropped()},
          {"clock_ahead_us", microseconds(clock(now) - now)},
          {"clock_uncertainty_us", microseconds(clock.uncertainty())}};
}

void TimelineFile::gather_and_write() {
  const torch::NoGradGuard no_grad;
  const int64_t now = timeline_->now();
  const auto clocks = compare_clocks(comm_, machines_, [this] { return timeline_->now(); });
  const auto rank = static_cast<size_t>(comm_.rank());
  const CommonClock clock(clocks_[rank], clocks[rank]);
  const auto begins = gather_all(comm_, clock(first_begin(*timeline_).value_or(now)), kWhat);
  const int64_t begin = *std::min_element(begins.begin(), begins.end());
  Json ranks = Json::array();
  for (const std::string& text :
       gather_all(comm_, about_this(clock).dump(-1, ' ', false, Json::error_handler_t::replace), kWhat))
    ranks.push_back(parse_json(text, "a rank's part of the timeline", ErrorKind::DataLoss));
  TraceEvents events(*timeline_, process(clock, begin));
  write_all(events, {{"tutti_version", version()},
                     {"began", wall_time(begin, now)},
                     {"complete", true},
                     {"world", comm_.world()},
                     {"ranks", ranks}});
}

// Works in rounds: in each, every rank sends a piece, and rank 0 writes all of them.
void TimelineFile::write_all(TraceEvents& events, const Json& about) {
  std::optional<TraceFile> file;
  std::exception_ptr failure;
  const auto attempt = [&](const auto& body) {
    try {
      if (!failure) body();
    } catch (const Error&) {
      failure = std::current_exception();
    }
  };
  if (comm_.rank() == 0) attempt([&] { file.emplace(options_.path, about); });
  for (bool more = true; more;) {
    const auto pieces = gather_pieces(events.next(kPiece), failure != nullptr);
    if (failure) std::rethrow_exception(failure);
    more = !pieces.empty();
    if (file)
      attempt([&] {
        for (const std::string& piece : pieces) file->write(piece);
      });
  }
  if (!file) return;
  if (failure) std::rethrow_exception(failure);
  file->finish();
  options_.log.info("timeline of {} workers in {}: open it in ui.perfetto.dev or chrome://tracing",
                    comm_.world(), options_.path);
}

// Returns the pieces by rank at rank 0, as many empty ones elsewhere, and none when no rank has any left.
std::vector<std::string> TimelineFile::gather_pieces(const std::string& mine, bool stopped) {
  const auto sizes = gather_all(comm_, stopped ? kStopped : static_cast<int64_t>(mine.size()), kWhat);
  if (sizes[0] == kStopped && !stopped)
    fail(ErrorKind::PeerLost, "rank 0 could not write {}; its own output says why", options_.path);
  const int64_t largest = *std::max_element(sizes.begin(), sizes.end());
  if (stopped || largest == 0) return {};
  const bool root = comm_.rank() == 0;
  const torch::Tensor all = root ? torch::empty({comm_.world() * largest}, torch::kUInt8) : torch::Tensor();
  std::string padded = mine;
  padded.resize(static_cast<size_t>(largest), ' ');
  comm_.gather(all, bytes_of(padded), 0, {.what = kWhat}).wait();
  std::vector<std::string> pieces(sizes.size());
  for (size_t r = 0; root && r < sizes.size(); ++r)
    pieces[r] = text_of(all.narrow(0, static_cast<int64_t>(r) * largest, sizes[r]));
  return pieces;
}

// Writes absolute times, so that the files of several ranks can be combined.
void TimelineFile::write_own(const std::string& why) noexcept {
  try {
    const CommonClock clock(clocks_[static_cast<size_t>(comm_.rank())]);
    const std::string path = path_for(options_.path, comm_.rank());
    write_trace(path, *timeline_, process(clock, 0),
                {{"tutti_version", version()},
                 {"complete", false},
                 {"why", why},
                 {"world", comm_.world()},
                 {"ranks", Json::array({about_this(clock)})}});
    options_.log.warning("the timeline in {} has only the spans of {}: {}", path, options_.task, why);
  } catch (const std::exception& error) {
    try {
      options_.log.warning("the timeline was not written: {}", error.what());
    } catch (const std::exception&) {
      // The log cannot be written either.
    }
  }
}

}  // namespace tutti::comm

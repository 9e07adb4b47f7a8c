#include "tutti/store/event_file.h"

#include <algorithm>
#include <ctime>
#include <fcntl.h>
#include <filesystem>
#include <unistd.h>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/text.h"
#include "tutti/base/this_host.h"

namespace tutti::store {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEventFilePrefix = "events.out.tfevents.";

// TensorBoard reads the files of a directory in the order of their names. If another file has this second or
// a later one, as after the clock was set back, returns the second after it.
int64_t second_for_name(const std::string& logdir) {
  constexpr int64_t kDay = 86400;
  const auto now = static_cast<int64_t>(std::time(nullptr));
  int64_t second = now;
  std::error_code error;
  for (fs::directory_iterator entry(logdir, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(kEventFilePrefix)) continue;
    const auto theirs = parse_int(split(name.substr(kEventFilePrefix.size()), '.').front());
    if (theirs && *theirs < now + kDay) second = std::max(second, *theirs + 1);
  }
  return second;
}

}  // namespace

EventWriter::EventWriter(const std::string& logdir, const EventWriterOptions& options)
    : options_(options), last_flush_(std::chrono::steady_clock::now()) {
  make_directories(logdir);
  path_ = fmt::format("{}/{}{}.{}.{}", logdir, kEventFilePrefix, second_for_name(logdir), host_name(),
                      ::getpid());
  fd_ = FileDescriptor(path_, O_WRONLY | O_CREAT | O_EXCL);
  add(version_event());
  if (options_.begins_run) add(start_event(options_.resumed_after ? *options_.resumed_after + 1 : 0));
  flush();
}

EventWriter::~EventWriter() {
  try {
    flush();
  } catch (const Error&) {
    // A destructor cannot report the error; callers of flush() get it.
    return;
  }
}

void EventWriter::scalar(const std::string& tag, int64_t step, double value) {
  add(scalar_event(tag, step, value));
}

void EventWriter::histogram(const std::string& tag, int64_t step, const torch::Tensor& values) {
  if (const auto event = histogram_event(tag, step, values)) add(*event);
}

void EventWriter::image(const std::string& tag, int64_t step, const torch::Tensor& image) {
  add(image_event(tag, step, image));
}

void EventWriter::text(const std::string& tag, int64_t step, const std::string& markdown) {
  add(text_event(tag, step, markdown));
}

void EventWriter::pr_curve(const std::string& tag, int64_t step, const CurveCounts& counts) {
  add(pr_curve_event(tag, step, counts));
}

void EventWriter::add(const std::string& event) {
  const std::lock_guard lock(mutex_);
  held_ += frame_record(event);
  const bool late = std::chrono::steady_clock::now() - last_flush_ >= options_.flush_every;
  if (late || held_.size() >= options_.flush_bytes) write_held();
}

void EventWriter::flush() {
  const std::lock_guard lock(mutex_);
  write_held();
}

void EventWriter::write_held() {
  last_flush_ = std::chrono::steady_clock::now();
  // Writes at a fixed offset, so that the next attempt overwrites a partial record of a failed one.
  write_at(fd_, path_, written_, as_bytes(held_));
  written_ += held_.size();
  held_.clear();
}

EventStream::~EventStream() {
  if (writer_ || waiting_.empty() || folder_.empty()) return;
  try {
    open(folder_, {.resumed_after = {}, .begins_run = false});
  } catch (const std::exception&) {
    return;  // as in the destructor of a writer
  }
}

std::shared_ptr<EventWriter> EventStream::open(const std::string& folder, const EventWriterOptions& options) {
  const std::lock_guard lock(mutex_);
  if (writer_) writer_->flush();  // its file is complete before the next one begins
  writer_ = std::make_shared<EventWriter>(folder, options);
  dropped_ = false;
  for (const std::string& event : std::exchange(waiting_, {})) writer_->add(event);
  return writer_;
}

void EventStream::drop() {
  const std::lock_guard lock(mutex_);
  dropped_ = true;
  writer_.reset();
  waiting_.clear();
}

bool EventStream::is_dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

void EventStream::add(const std::string& event) {
  constexpr size_t kMostWaiting = size_t{16} << 20;
  const std::lock_guard lock(mutex_);
  if (writer_) return writer_->add(event);
  if (dropped_ || waiting_bytes_ + event.size() > kMostWaiting) return;
  waiting_bytes_ += event.size();
  waiting_.push_back(event);
}

void Events::scalar(const std::string& tag, int64_t step, double value) const {
  if (*this) stream_->add(scalar_event(tag, step, value));
}

void Events::histogram(const std::string& tag, int64_t step, const torch::Tensor& values) const {
  if (!*this) return;
  if (const auto event = histogram_event(tag, step, values)) stream_->add(*event);
}

void Events::image(const std::string& tag, int64_t step, const torch::Tensor& image) const {
  if (*this) stream_->add(image_event(tag, step, image));
}

void Events::text(const std::string& tag, int64_t step, const std::string& markdown) const {
  if (*this) stream_->add(text_event(tag, step, markdown));
}

void Events::pr_curve(const std::string& tag, int64_t step, const CurveCounts& counts) const {
  if (*this) stream_->add(pr_curve_event(tag, step, counts));
}

}  // namespace tutti::store

#include "tutti/data/batch_queue.h"

#include <algorithm>
#include <limits>
#include <new>
#include <span>
#include <string>
#include <system_error>

#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

namespace tutti::data {
namespace {

int64_t saturating_product(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<int64_t>::max() : product;
}

// A deadline that far is none; one further could overflow the clock.
constexpr std::chrono::milliseconds kLongestWait = std::chrono::hours(24 * 365);

const BatchQueueOptions& checked(const BatchQueueOptions& o, const Feed& feed, const Sampler& sampler) {
  if (o.first_step < 0 || o.end_step < o.first_step) {
    fail(ErrorKind::InvalidArgument, "batch queue: the steps {} to {} are no range", o.first_step,
         o.end_step);
  }
  if (o.first_lane < 0 || o.end_lane < o.first_lane || o.end_lane > sampler.options().lanes) {
    fail(ErrorKind::InvalidArgument, "batch queue: the lanes {} to {} are no range of the sampler's {}",
         o.first_lane, o.end_lane, sampler.options().lanes);
  }
  if (sampler.size() > feed.size()) {
    fail(ErrorKind::InvalidArgument, "batch queue: the sampler deals out {} examples, but the feed has {}",
         sampler.size(), feed.size());
  }
  if (sampler.size() == 0 && o.end_step > o.first_step) {
    fail(ErrorKind::InvalidArgument, "batch queue: {} steps were asked for, but the feed has no examples",
         o.end_step - o.first_step);
  }
  return o;
}

}  // namespace

BatchQueue::BatchQueue(Feed feed, const Sampler& sampler, const BatchQueueOptions& options)
    : feed_(std::move(feed)),
      sampler_(sampler),
      options_(checked(options, feed_, sampler)),
      lanes_(options.end_lane - options.first_lane),
      tickets_(saturating_product(options.end_step - options.first_step, lanes_)),
      ahead_(std::max<int64_t>(1, std::min(feed_.options().ahead, tickets_))),
      slots_(static_cast<size_t>(ahead_)) {
  start_readers();
}

BatchQueue::~BatchQueue() { stop_readers(); }

void BatchQueue::start_readers() {
  const int64_t useful = std::min({static_cast<int64_t>(feed_.options().threads), ahead_, tickets_});
  try {
    for (int64_t i = 0; i < useful; ++i) readers_.emplace_back([this, i] { read_batches(i); });
  } catch (const std::system_error& error) {
    stop_readers();
    fail(ErrorKind::Overloaded, "batch queue: starting {} reading threads: {}", useful, error.what());
  }
}

void BatchQueue::stop_readers() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  slot_free_.notify_all();
  for (std::thread& reader : readers_) reader.join();
}

void BatchQueue::read_batches(int64_t reader) {
  if (options_.timeline != nullptr) options_.timeline->name_thread(fmt::format("reader {}", reader));
  const at::NoGradGuard no_grad;
  std::unique_lock lock(mutex_);
  for (;;) {
    slot_free_.wait(lock, [this] {
      return stopping_ || next_to_make_ == tickets_ || next_to_make_ - next_to_hand_out_ < ahead_;
    });
    if (stopping_ || next_to_make_ == tickets_) return;
    const int64_t ticket = next_to_make_++;
    lock.unlock();
    Slot made = make(ticket);
    lock.lock();
    const bool failed = made.error.has_value();
    slot_of(ticket) = std::move(made);
    if (ticket == next_to_hand_out_) batch_ready_.notify_one();
    if (failed) return;  // nothing after this ticket will be handed out
  }
}

BatchQueue::Slot BatchQueue::make(int64_t ticket) const {
  const SpanScope span(options_.timeline, Activity::Read, "read a batch",
                       options_.step_in_timeline + step_of(ticket));
  Slot slot;
  try {
    std::vector<int64_t> examples;
    sampler_.examples(step_of(ticket), lane_of(ticket), examples);
    Batch batch = feed_.read(examples);
    slot.batch = options_.device.is_cuda() ? batch.pinned() : std::move(batch);
  } catch (const Error& error) {
    slot.error = error;
  } catch (const std::bad_alloc&) {
    slot.error = Error(ErrorKind::Overloaded, "batch queue: out of memory while reading a batch");
  } catch (const std::exception& error) {
    slot.error = Error(ErrorKind::Bug, std::string("batch queue: ") + error.what());
  } catch (...) {
    slot.error = Error(ErrorKind::Bug, "batch queue: a reader threw something that is no std::exception");
  }
  return slot;
}

std::optional<Batch> BatchQueue::next() {
  std::unique_lock lock(mutex_);
  const int64_t ticket = next_to_hand_out_;
  if (ticket == tickets_) return std::nullopt;
  if (!slot_of(ticket).ready()) wait_for(ticket, lock);
  Slot& slot = slot_of(ticket);
  if (slot.error) throw Error(*slot.error);
  std::optional<Batch> batch = std::move(slot.batch);
  slot = {};
  ++next_to_hand_out_;
  lock.unlock();
  slot_free_.notify_one();
  return batch;
}

void BatchQueue::wait_for(int64_t ticket, std::unique_lock<std::mutex>& lock) {
  ++waits_;
  const SpanScope span(options_.timeline, Activity::Queue, "wait for a batch",
                       options_.step_in_timeline + step_of(ticket));
  const auto deadline = std::chrono::steady_clock::now() + std::min(timeout(), kLongestWait);
  if (!batch_ready_.wait_until(lock, deadline, [&] { return slot_of(ticket).ready(); })) fail_late(ticket);
}

void BatchQueue::fail_late(int64_t ticket) const {
  std::vector<int64_t> examples;
  sampler_.examples(step_of(ticket), lane_of(ticket), examples);
  const std::span<const int64_t> shown(examples.data(), std::min<size_t>(examples.size(), 4));
  const std::string place = examples.empty() ? "" : feed_.source().place_of(examples.front());
  fail(
      ErrorKind::Timeout,
      "no batch for step {}, lane {} in {} s: a reader is at its {} examples ({}{}){}. Look at what they are "
      "read from, or raise --feed-timeout",
      step_of(ticket), lane_of(ticket), std::chrono::duration<double>(timeout()).count(), examples.size(),
      fmt::join(shown, ", "), shown.size() < examples.size() ? ", ..." : "",
      place.empty() ? "" : fmt::format(", the first of them in {}", place));
}

int64_t BatchQueue::waits() const {
  const std::lock_guard lock(mutex_);
  return waits_;
}

}  // namespace tutti::data

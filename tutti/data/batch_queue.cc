#include "tutti/data/batch_queue.h"

#include <algorithm>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <system_error>

#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"

namespace tutti::data {
namespace {

int64_t saturating_product(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<int64_t>::max() : product;
}

const BatchQueueOptions& checked(const BatchQueueOptions& o, const Feed& feed, const Sampler& sampler) {
  if (o.first_step < 0 || o.end_step < o.first_step) {
    fail(ErrorKind::InvalidArgument, "batch queue: steps {} to {} are not a valid range", o.first_step,
         o.end_step);
  }
  if (o.first_lane < 0 || o.end_lane < o.first_lane || o.end_lane > sampler.options().lanes) {
    fail(ErrorKind::InvalidArgument,
         "batch queue: lanes {} to {} are not a range within the sampler's {} lanes", o.first_lane,
         o.end_lane, sampler.options().lanes);
  }
  if (sampler.size() > feed.size()) {
    fail(ErrorKind::InvalidArgument, "batch queue: the sampler expects {} examples, but the feed has only {}",
         sampler.size(), feed.size());
  }
  if (sampler.size() == 0 && o.end_step > o.first_step) {
    fail(ErrorKind::InvalidArgument, "batch queue: {} steps were requested, but the feed has no examples",
         o.end_step - o.first_step);
  }
  return o;
}

}  // namespace

// The state that the queue shares with its readers. Batches have tickets, numbered from 0 in the order in
// which next() returns them. The batch of ticket t is stored in slot t mod `ahead`: a reader may take a
// ticket once the previous batch in its slot has been returned.
struct BatchQueue::Shared {
  // The result of a ticket: nothing yet, a batch, or an error.
  struct Slot {
    std::optional<Batch> batch;
    std::optional<Error> error;
    bool ready() const { return batch.has_value() || error.has_value(); }
  };
  using Lock = std::unique_lock<std::mutex>;

  template <class Body>
  static Slot outcome_of(Body&& body);

  Shared(Feed f, const Sampler& s, const BatchQueueOptions& o)
      : feed(std::move(f)),
        names(std::make_shared<const Feed>(feed)),
        sampler(s),
        options(checked(o, feed, sampler)),
        timeout(std::min(feed.options().timeout.value_or(o.timeout), kLongestWait)),
        lanes(o.end_lane - o.first_lane),
        tickets(saturating_product(o.end_step - o.first_step, lanes)),
        ahead(std::max<int64_t>(1, std::min(feed.options().ahead, tickets))),
        slots(static_cast<size_t>(ahead)) {}

  int64_t step_of(int64_t ticket) const { return options.first_step + ticket / lanes; }
  int64_t lane_of(int64_t ticket) const { return options.first_lane + ticket % lanes; }
  int64_t step_in_timeline(int64_t ticket) const { return options.step_in_timeline + step_of(ticket); }
  Slot& slot_of(int64_t ticket) { return slots[static_cast<size_t>(ticket % ahead)]; }

  void read_batches(int64_t reader, Lock lock);
  Slot make(int64_t ticket, Lock& lock);
  Batch transformed(std::vector<int64_t> examples, Fetched fetched) const;
  void wait_for(int64_t ticket, Lock& lock);
  [[noreturn]] void fail_late(int64_t ticket) const;

  const Feed feed;
  const std::shared_ptr<const Feed> names;  // the same feed, which batches keep to name their examples
  const Sampler sampler;
  const BatchQueueOptions options;  // readers do not use its timeline once they see `stopping`
  const std::chrono::milliseconds timeout;
  const int64_t lanes;
  const int64_t tickets;
  const int64_t ahead;  // number of slots

  std::mutex mutex;
  std::condition_variable slot_free;    // readers wait for it
  std::condition_variable batch_ready;  // next() waits for it
  std::condition_variable reader_left;  // a reader has left the source or ended: stop_readers() waits for it
  std::vector<Slot> slots;              // this and all below: guarded by mutex
  int64_t next_to_make = 0;
  int64_t next_to_hand_out = 0;
  int64_t readers = 0;
  int64_t fetching = 0;  // number of readers that are reading from the source
  bool late = false;     // next() has timed out and has not returned a batch since
  bool stopping = false;
};

template <class Body>
BatchQueue::Shared::Slot BatchQueue::Shared::outcome_of(Body&& body) {
  Slot slot;
  try {
    slot.batch = body();
  } catch (const Error& error) {
    slot.error = error;
  } catch (const std::bad_alloc&) {
    slot.error = Error(ErrorKind::Overloaded, "batch queue: out of memory while reading a batch");
  } catch (const std::exception& error) {
    slot.error = Error(ErrorKind::Bug, std::string("batch queue: ") + error.what());
  } catch (...) {
    slot.error =
        Error(ErrorKind::Bug, "batch queue: a reader threw an exception that is not a std::exception");
  }
  return slot;
}

BatchQueue::BatchQueue(Feed feed, const Sampler& sampler, const BatchQueueOptions& options)
    : shared_(std::make_shared<Shared>(std::move(feed), sampler, options)) {
  const int64_t threads = shared_->feed.options().threads;
  const int64_t useful = std::min({threads, shared_->ahead, shared_->tickets});
  readers_.reserve(static_cast<size_t>(useful));
  // The readers begin once all of them have been started.
  Shared::Lock lock(shared_->mutex);
  try {
    for (int64_t i = 0; i < useful; ++i) {
      readers_.emplace_back([shared = shared_, i] { shared->read_batches(i, Shared::Lock(shared->mutex)); });
      ++shared_->readers;
    }
  } catch (const std::system_error& error) {
    lock.unlock();
    stop_readers();
    fail(ErrorKind::Overloaded, "batch queue: cannot start {} reader threads: {}", useful, error.what());
  }
}

BatchQueue::~BatchQueue() { stop_readers(); }

void BatchQueue::stop_readers() {
  Shared& s = *shared_;
  Shared::Lock lock(s.mutex);
  s.stopping = true;
  s.slot_free.notify_all();
  const auto patience = s.late ? std::chrono::milliseconds(0) : s.timeout;
  const bool all_left = s.reader_left.wait_for(lock, patience, [&] { return s.readers == 0; });
  // Objects that the transforms use may be destroyed once the queue is.
  s.reader_left.wait(lock, [&] { return s.readers == s.fetching; });
  lock.unlock();
  for (std::thread& reader : readers_) {
    if (all_left) {
      reader.join();
    } else {
      reader.detach();
    }
  }
}

void BatchQueue::Shared::read_batches(int64_t reader, Lock lock) {
  const at::NoGradGuard no_grad;
  bool failed = false;
  if (!stopping) name_thread(options.timeline, fmt::format("reader {}", reader));
  // After a batch that failed, next() returns no other.
  while (!failed) {
    slot_free.wait(lock, [this] {
      return stopping || next_to_make == tickets || next_to_make - next_to_hand_out < ahead;
    });
    if (stopping || next_to_make == tickets) break;
    const int64_t ticket = next_to_make++;
    Slot made = make(ticket, lock);
    failed = made.error.has_value();
    slot_of(ticket) = std::move(made);
    if (ticket == next_to_hand_out) batch_ready.notify_one();
  }
  --readers;
  reader_left.notify_one();
}

// Unlocks while it works. Returns an empty slot if the queue has been stopped by the time the source returns:
// objects that only the queue's owner keeps alive must not be used after that.
BatchQueue::Shared::Slot BatchQueue::Shared::make(int64_t ticket, Lock& lock) {
  Timeline* const timeline = options.timeline;
  const int64_t begin = timeline != nullptr ? timeline->now() : 0;
  std::vector<int64_t> examples;
  ++fetching;
  lock.unlock();
  Fetched fetched;
  Slot slot = outcome_of([&] {
    sampler.examples(step_of(ticket), lane_of(ticket), examples);
    fetched = feed.fetch(examples);
    return Batch();
  });
  lock.lock();
  --fetching;
  reader_left.notify_one();
  if (stopping) return {};
  lock.unlock();
  if (slot.batch) {
    slot = outcome_of([&] { return transformed(std::move(examples), std::move(fetched)); });
  }
  if (timeline != nullptr) {
    timeline->record(Activity::Read, "read a batch", "", step_in_timeline(ticket), begin, timeline->now());
  }
  lock.lock();
  return slot;
}

Batch BatchQueue::Shared::transformed(std::vector<int64_t> examples, Fetched fetched) const {
  Batch batch = feed.transform(examples, std::move(fetched));
  batch.name_examples([names = names, examples = std::move(examples)](int64_t example) {
    const int64_t number = examples.at(static_cast<size_t>(example));
    const std::string place = names->place_of(number);
    return fmt::format("'{}'{}", names->id(number), place.empty() ? "" : " (" + place + ")");
  });
  return options.device.is_cuda() ? batch.pinned() : std::move(batch);
}

Batch BatchQueue::read(int64_t step, int64_t lane) const {
  const at::NoGradGuard no_grad;
  std::vector<int64_t> examples;
  shared_->sampler.examples(step, lane, examples);
  Fetched fetched = shared_->feed.fetch(examples);
  return shared_->transformed(std::move(examples), std::move(fetched));
}

std::optional<Batch> BatchQueue::next() {
  Shared& s = *shared_;
  Shared::Lock lock(s.mutex);
  const int64_t ticket = s.next_to_hand_out;
  if (ticket == s.tickets) return std::nullopt;
  Shared::Slot& slot = s.slot_of(ticket);
  if (!slot.ready()) s.wait_for(ticket, lock);
  s.late = false;
  if (slot.error) throw Error(*slot.error);
  std::optional<Batch> batch = std::move(slot.batch);
  slot = {};
  ++s.next_to_hand_out;
  lock.unlock();
  s.slot_free.notify_one();
  return batch;
}

void BatchQueue::Shared::wait_for(int64_t ticket, Lock& lock) {
  const SpanScope span(options.timeline, Activity::Queue, "wait for a batch", step_in_timeline(ticket));
  late = !batch_ready.wait_until(lock, deadline_after(timeout), [&] { return slot_of(ticket).ready(); });
  if (late) fail_late(ticket);
}

void BatchQueue::Shared::fail_late(int64_t ticket) const {
  std::vector<int64_t> examples;
  sampler.examples(step_of(ticket), lane_of(ticket), examples);
  const std::span<const int64_t> shown(examples.data(), std::min<size_t>(examples.size(), 4));
  const std::string place = examples.empty() ? "" : feed.place_of(examples.front());
  fail(ErrorKind::Timeout,
       "no batch for step {}, lane {} within {} s: a reader is still reading its {} examples ({}{}){}. Check "
       "the source of the data, or raise --feed-timeout",
       step_of(ticket), lane_of(ticket), seconds(timeout), examples.size(), fmt::join(shown, ", "),
       shown.size() < examples.size() ? ", ..." : "",
       place.empty() ? "" : fmt::format(", the first of them from {}", place));
}

}  // namespace tutti::data

#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <torch/types.h>

#include "tutti/base/error.h"
#include "tutti/base/timeline.h"
#include "tutti/data/feed.h"
#include "tutti/data/sampler.h"

namespace tutti::data {

struct BatchQueueOptions {
  int64_t first_step = 0;
  int64_t end_step = 0;  // one past the last
  int64_t first_lane = 0;
  int64_t end_lane = 1;                // one past the last; with none, the queue is at its end at once
  torch::Device device = torch::kCPU;  // where the batches will go: pinned on the way to a GPU
  std::chrono::milliseconds timeout = std::chrono::seconds(60);  // where the feed says none
  Timeline* timeline = nullptr;  // where waiting and reading are noted down; outlives the queue
  int64_t step_in_timeline = 0;  // of step 0
};

// A feed in motion: threads that read batches ahead of the training loop. Batches are made out of order, by
// any thread, and handed out in order; at most `FeedOptions::ahead` of them exist here at a time. One thread
// calls next(); the destructor stops the others, waiting only for a read that is under way.
//
// Batches have tickets, counted from 0 in the order in which they are handed out. The ticket t lives in the
// slot t mod ahead: a thread may take a ticket once the one that had its slot before was handed out.
class BatchQueue {
 public:
  // Steps and lanes have to lie in the sampler's, and its examples in the feed's; else InvalidArgument.
  BatchQueue(Feed feed, const Sampler& sampler, const BatchQueueOptions& options);
  ~BatchQueue();
  BatchQueue(const BatchQueue&) = delete;
  BatchQueue& operator=(const BatchQueue&) = delete;

  // The batches of (first_step, first_lane), (first_step, first_lane + 1), ... in order; nothing after the
  // last. A lane without examples gets an empty batch. Waits for as long as the feed's timeout, then throws a
  // Timeout that says what for, and may be called again. A reader's Error comes out in place of its batch,
  // and again at every call after that.
  std::optional<Batch> next();

  // Calls of next() that found their batch not ready.
  int64_t waits() const;

 private:
  // What became of a ticket: nothing yet, a batch, or an error.
  struct Slot {
    std::optional<Batch> batch;
    std::optional<Error> error;
    bool ready() const { return batch.has_value() || error.has_value(); }
  };

  std::chrono::milliseconds timeout() const { return feed_.options().timeout.value_or(options_.timeout); }
  int64_t step_of(int64_t ticket) const { return options_.first_step + ticket / lanes_; }
  int64_t lane_of(int64_t ticket) const { return options_.first_lane + ticket % lanes_; }
  Slot& slot_of(int64_t ticket) { return slots_[static_cast<size_t>(ticket % ahead_)]; }

  void start_readers();
  void stop_readers();
  void read_batches(int64_t reader);
  Slot make(int64_t ticket) const;
  void wait_for(int64_t ticket, std::unique_lock<std::mutex>& lock);
  [[noreturn]] void fail_late(int64_t ticket) const;

  const Feed feed_;
  const Sampler sampler_;
  const BatchQueueOptions options_;
  const int64_t lanes_;
  const int64_t tickets_;
  const int64_t ahead_;               // slots
  std::vector<std::thread> readers_;  // touched by constructor and destructor alone

  mutable std::mutex mutex_;
  std::condition_variable slot_free_;    // readers wait for it
  std::condition_variable batch_ready_;  // next() waits for it
  std::vector<Slot> slots_;              // all below: guarded by mutex_
  int64_t next_to_make_ = 0;
  int64_t next_to_hand_out_ = 0;
  int64_t waits_ = 0;
  bool stopping_ = false;
};

}  // namespace tutti::data

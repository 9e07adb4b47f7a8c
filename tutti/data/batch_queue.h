#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include <torch/types.h>

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
// calls next(). The destructor stops the others. It waits for what is under way, but for a source's read no
// longer than next() would: one that hangs (its file server is gone) is left behind, with its source.
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
  struct Shared;

  void stop_readers();

  const std::shared_ptr<Shared> shared_;  // with the readers
  std::vector<std::thread> readers_;      // touched by constructor and destructor alone
};

}  // namespace tutti::data

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
#include "tutti/lanes/sampler.h"

namespace tutti::data {

// The steps and lanes of a BatchQueue, and where its batches go.
struct BatchQueueOptions {
  int64_t first_step = 0;              // the first one that is read
  int64_t end_step = 0;                // one past the last
  int64_t first_lane = 0;              // the first one that is read
  int64_t end_lane = 1;                // one past the last; without lanes, the queue ends at once
  torch::Device device = torch::kCPU;  // destination of the batches; for a GPU they are pinned
  std::chrono::milliseconds timeout = std::chrono::seconds(60);  // used if the feed sets none
  Timeline* timeline = nullptr;  // records waiting and reading; must outlive the queue
  int64_t step_in_timeline = 0;  // the timeline's number of step 0
};

// Threads that read the batches of a feed ahead of the training loop. Batches are made in any order, by any
// thread, but returned in order; at most `FeedOptions::ahead` of them exist here. Only one thread may call
// next(). The destructor stops the readers and waits for their pending work, but for a source's read no
// longer than next() would: a reader that hangs (its file server is gone) is detached with its source.
class BatchQueue {
 public:
  // The sampler must have these steps and lanes, and the feed the sampler's examples; else InvalidArgument.
  BatchQueue(Feed feed, const Sampler& sampler, const BatchQueueOptions& options);
  ~BatchQueue();
  BatchQueue(const BatchQueue&) = delete;
  BatchQueue& operator=(const BatchQueue&) = delete;

  // Returns the batches of (first_step, first_lane), (first_step, first_lane + 1), ... in order, and nullopt
  // after the last. A lane without examples gets an empty batch. If a batch is not ready within the feed's
  // timeout, throws a Timeout that names its examples; next() may then be called again. If reading a batch
  // failed, throws the reader's Error, and again at every later call.
  std::optional<Batch> next();
  // Reads the batch of any step and lane on the calling thread, such as that of another worker's lane.
  Batch read(int64_t step, int64_t lane) const;

 private:
  struct Shared;

  void stop_readers();

  const std::shared_ptr<Shared> shared_;  // shared with the readers
  std::vector<std::thread> readers_;      // used only by constructor and destructor
};

}  // namespace tutti::data

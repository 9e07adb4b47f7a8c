#include "tutti/train/strategy.h"

#include <utility>

#include "tutti/base/check.h"

namespace tutti {

Batch take(data::BatchQueue& queue, int64_t step) {
  auto batch = queue.next();
  TUTTI_CHECK(batch.has_value(), "the feed ended before step {}", step);
  return *std::move(batch);
}

}  // namespace tutti

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/params/optimizer.h"

namespace tutti::ps {

// One server's part of the parameters and the optimiser that updates it. Not thread-safe.
class Shard {
 public:
  // A contiguous range of one block of the parameters.
  struct Part {
    size_t block;
    int64_t begin;
    int64_t end;
    torch::ScalarType type;
  };

  // Values are zero. Gradients are uninitialised, so that unused memory is never committed.
  // `ranges` are those of the optimiser's groups in all parameters.
  Shard(const std::vector<Part>& parts, const OptimizerOptions& optimizer,
        std::vector<GroupRange> ranges = {});

  // Returns the stretches, in the order of the parts.
  std::span<const Stretch> stretches() const { return stretches_; }
  Optimizer& optimizer() { return optimizer_; }
  const Optimizer& optimizer() const { return optimizer_; }
  int64_t bytes() const;

 private:
  const std::vector<Stretch> stretches_;
  Optimizer optimizer_;
};

}  // namespace tutti::ps

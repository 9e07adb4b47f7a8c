#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/params/optimizer.h"

namespace tutti::ps {

// What one server has of the parameters, and the optimiser that updates it. Not thread-safe.
class Shard {
 public:
  // A stretch of a block of the parameters.
  struct Part {
    size_t block;
    int64_t begin;
    int64_t end;
    torch::ScalarType type;
  };

  // Values are zeros. Gradients are of any content: memory that nobody touches is not taken.
  Shard(const std::vector<Part>& parts, const OptimizerOptions& optimizer);

  // In the order of the parts.
  std::span<const Stretch> stretches() const { return stretches_; }
  Optimizer& optimizer() { return optimizer_; }
  const Optimizer& optimizer() const { return optimizer_; }
  int64_t bytes() const;

 private:
  const std::vector<Stretch> stretches_;
  Optimizer optimizer_;
};

}  // namespace tutti::ps

#include "tutti/ps/shard.h"

#include <utility>

#include <torch/types.h>
#include <torch/utils.h>

namespace tutti::ps {
namespace {

std::vector<Stretch> stretches_of(const std::vector<Shard::Part>& parts) {
  std::vector<Stretch> stretches;
  for (const Shard::Part& part : parts) {
    const auto options = torch::TensorOptions().dtype(part.type);
    const int64_t size = part.end - part.begin;
    stretches.push_back(
        {torch::zeros({size}, options), torch::empty({size}, options), part.block, part.begin});
  }
  return stretches;
}

}  // namespace

Shard::Shard(const std::vector<Part>& parts, const OptimizerOptions& optimizer,
             std::vector<GroupRange> ranges)
    : stretches_(stretches_of(parts)), optimizer_(stretches_, optimizer, std::move(ranges)) {}

int64_t Shard::bytes() const {
  int64_t bytes = 0;
  for (const Stretch& stretch : stretches_) bytes += static_cast<int64_t>(stretch.values.nbytes());
  return bytes;
}

}  // namespace tutti::ps

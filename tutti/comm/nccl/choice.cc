#include "tutti/comm/nccl/choice.h"

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <torch/utils.h>

#include "tutti/comm/flat.h"
#include "tutti/comm/nccl/nccl.h"

namespace tutti::comm {
namespace {

constexpr const char* kCpu = "cpu";
constexpr const char* kUnbuilt = "gpu-without-nccl";

// Returns the sum over all ranks of numbers that have to be rounded, so that its bits depend on the order.
torch::Tensor small_sum(Carrier& carrier, torch::Device device, std::chrono::milliseconds timeout) {
  constexpr int64_t kCount = 1000;
  const auto rank = static_cast<size_t>(carrier.rank());
  const torch::Tensor values =
      (torch::arange(1, kCount + 1, torch::kFloat) / static_cast<double>(rank + 3)).to(device);
  const Sources sources = one_by_rank(carrier.world());
  const Array array = array_of(values);
  ArraySum sum{{ElementType::Float32, ReduceOp::Sum, kCount},
               &sources,
               Arrays(static_cast<size_t>(carrier.world())),
               {array}};
  sum.inputs[rank] = array;
  carrier.combine({&sum, 1}, operation_of("all_reduce", {.what = "check"}, timeout));
  return values.cpu();
}

}  // namespace

std::string device_word(torch::Device device) {
  if (!device.is_cuda()) return kCpu;
  return nccl_built() ? gpu_identity(device) : kUnbuilt;
}

std::string why_not_nccl(const std::vector<RankDevice>& ranks) {
  std::map<std::pair<std::string, std::string>, std::string> owners;
  for (const RankDevice& rank : ranks) {
    if (rank.device == kCpu) return fmt::format("{} has no GPU", rank.who);
    if (rank.device == kUnbuilt) return fmt::format("the program of {} was built without NCCL", rank.who);
    const auto [owner, first] = owners.try_emplace({rank.host, rank.device}, rank.who);
    if (!first) return fmt::format("{} and {} share a GPU", owner->second, rank.who);
  }
  return "";
}

CheckedDevice check_on_device(const std::function<std::unique_ptr<OnDevice>()>& make, torch::Device device,
                              Transport& transport, Rendezvous& board, const std::vector<std::string>& who,
                              std::chrono::milliseconds timeout, std::chrono::milliseconds check_timeout) {
  const torch::Tensor expected = small_sum(transport, torch::kCPU, timeout);
  CheckedDevice checked;
  std::string failure;
  try {
    checked.on_device = make();
    const torch::Tensor sum = small_sum(*checked.on_device, device, std::min(timeout, check_timeout));
    if (!torch::equal(sum, expected)) failure = "its sum differs from the sum through host memory";
  } catch (const std::exception& error) {
    failure = error.what();
  }
  board.set(std::to_string(transport.rank()), "." + failure);
  for (size_t rank = 0; rank < who.size(); ++rank) {
    const std::string found = board.get(std::to_string(rank), 2 * timeout).substr(1);
    if (!found.empty() && checked.failure.empty()) checked.failure = fmt::format("{}: {}", who[rank], found);
  }
  if (!checked.failure.empty()) checked.on_device.reset();
  return checked;
}

}  // namespace tutti::comm

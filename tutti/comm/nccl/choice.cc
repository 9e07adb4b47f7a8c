#include "tutti/comm/nccl/choice.h"

#include <map>
#include <utility>

#include <fmt/format.h>

#include "tutti/comm/nccl/nccl.h"

namespace tutti::comm {
namespace {

constexpr const char* kCpu = "cpu";
constexpr const char* kUnbuilt = "gpu-without-nccl";

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

}  // namespace tutti::comm

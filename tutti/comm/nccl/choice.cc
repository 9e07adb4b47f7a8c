#include "tutti/comm/nccl/choice.h"

#include <cstddef>
#include <exception>
#include <map>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/mix_bits.h"
#include "tutti/comm/nccl/nccl.h"
#include "tutti/comm/reduce.h"
#include "tutti/comm/sliced_sum.h"

namespace tutti::comm {
namespace {

constexpr const char* kCpu = "cpu";
constexpr const char* kUnbuilt = "gpu-without-nccl";
constexpr int64_t kTried = 1031;  // odd, so that the slices of the ranks differ

// Returns numbers whose sum over the ranks depends on the order. Every rank computes the same ones.
torch::Tensor numbers_of(int rank) {
  torch::Tensor numbers = torch::empty({kTried}, torch::kFloat);
  for (int64_t i = 0; i < kTried; ++i) {
    const uint64_t bits = mix_bits(static_cast<uint64_t>(rank * kTried + i + 1) * kGoldenBits);
    numbers.data_ptr<float>()[i] = static_cast<float>(static_cast<int64_t>(bits >> 40U) - (1 << 23)) / 3;
  }
  return numbers;
}

std::byte* memory_of(const torch::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

// Returns true if the carrier adds the numbers of all ranks to the bits that this rank computes by itself.
bool adds_correctly(OnDevice& carrier, torch::Device device, std::chrono::milliseconds timeout) {
  const int world = carrier.world();
  const Sources sources = one_by_rank(world);
  const Reduction reduction{torch::kFloat, ReduceOp::Sum, kTried};
  const torch::Tensor values = numbers_of(carrier.rank()).to(device);
  SlicedSum sum{reduction, &sources, std::vector<torch::Tensor>(static_cast<size_t>(world)), {values}};
  sum.inputs[static_cast<size_t>(carrier.rank())] = values;
  carrier.combine({&sum, 1}, operation_of("all_reduce", {.what = "numbers of a test"}, timeout));

  std::vector<torch::Tensor> all;
  std::vector<const std::byte*> inputs;
  for (int rank = 0; rank < world; ++rank) inputs.push_back(memory_of(all.emplace_back(numbers_of(rank))));
  const torch::Tensor expected = torch::empty({kTried}, torch::kFloat);
  std::byte* const outputs[] = {memory_of(expected)};
  reduce(inputs, outputs, reduction, sources.program);
  return torch::equal(values.to(torch::kCPU), expected);
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

TriedDevice try_device(const std::function<std::unique_ptr<OnDevice>()>& make, torch::Device device,
                       Rendezvous& table, const BoardOptions& options, std::chrono::milliseconds timeout) {
  TriedDevice tried;
  std::string found;
  try {
    tried.carrier = make();
    if (!adds_correctly(*tried.carrier, device, timeout)) found = "it added wrongly";
  } catch (const std::exception& error) {
    found = error.what();
  }
  // Another rank may have waited for its whole timeout, once to connect and once to add.
  const std::vector<std::string> all = roll_call(table, options, found, 3 * timeout);
  for (size_t rank = 0; rank < all.size() && tried.why_not.empty(); ++rank) {
    if (!all[rank].empty())
      tried.why_not = fmt::format("{}: {}", name_of(options.who, static_cast<int>(rank)), all[rank]);
  }
  if (!tried.why_not.empty()) tried.carrier = nullptr;
  return tried;
}

}  // namespace tutti::comm

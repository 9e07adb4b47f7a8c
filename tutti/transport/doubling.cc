#include "tutti/transport/doubling.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "tutti/transport/reduce.h"

namespace tutti::comm {
namespace {

// Up to this size, sending whole vectors to a few ranks takes less time than slices to all ranks.
constexpr size_t kMostBytes = size_t{16} << 10;

// The ranks below one node of the tree.
struct Branch {
  int begin;
  int end;

  int size() const { return end - begin; }
};

Branch branch_of(int index, int level, int world) {
  return {std::min(world, index << level), std::min(world, (index + 1) << level)};
}

// The exchange of one rank in one round. A right branch may have fewer ranks than the left one; then each of
// them serves several.
struct Round {
  bool is_left;
  int from;
  std::vector<int> to;
};

// Returns nullopt if the rank's branch has no sibling: its value rises unchanged.
std::optional<Round> round_of(int rank, int level, int world) {
  const int index = rank >> level;
  const Branch own = branch_of(index, level, world);
  const Branch other = branch_of(index ^ 1, level, world);
  if (other.size() == 0) return std::nullopt;
  const int place = rank - own.begin;
  Round round{index % 2 == 0, other.begin + place % other.size(), {}};
  for (int i = 0; i < other.size(); ++i) {
    if (i % own.size() == place) round.to.push_back(other.begin + i);
  }
  return round;
}

}  // namespace

bool is_for_doubling(const ArraySum& sum, int world) {
  const bool rounded_once = !sum.reduction.round_each && sum.reduction.divisor == 0;
  return rounded_once && sum.is_all_reduce(world) && sum.outputs[0].size() <= kMostBytes;
}

void reduce_by_doubling(Transport& transport, const ArraySum& wanted, const Operation& operation) {
  const int world = transport.world();
  const Reduction& reduction = wanted.reduction;
  const auto input = wanted.inputs[static_cast<size_t>(transport.rank())].bytes();
  const bool average = reduction.op == ReduceOp::Average;
  // Half precision is rounded only at the end.
  Reduction step{sum_type(reduction.type), average ? ReduceOp::Sum : reduction.op, reduction.count};
  const size_t size = static_cast<size_t>(reduction.count) * size_of(step.type);
  const auto sum = std::make_unique_for_overwrite<std::byte[]>(size);
  const auto theirs = std::make_unique_for_overwrite<std::byte[]>(size);
  const Program both = {0, 1, kCombine};
  convert(input.data(), reduction.type, sum.get(), step.type, reduction.count);
  for (int level = 0; 1 << level < world; ++level) {
    std::vector<ConstBytes> sends(static_cast<size_t>(world));
    std::vector<Bytes> recvs(sends.size());
    const auto round = round_of(transport.rank(), level, world);
    if (round) {
      recvs[static_cast<size_t>(round->from)] = {theirs.get(), size};
      for (const int to : round->to) sends[static_cast<size_t>(to)] = {sum.get(), size};
    }
    transport.exchange(sends, recvs, operation);
    if (!round) continue;
    if (average && 2 << level >= world) step = {step.type, ReduceOp::Average, step.count, 0, world};
    std::byte* const output = sum.get();
    const std::vector<const std::byte*> inputs = round->is_left
                                                     ? std::vector<const std::byte*>{output, theirs.get()}
                                                     : std::vector<const std::byte*>{theirs.get(), output};
    reduce(inputs, {&output, 1}, step, both);
  }
  convert(sum.get(), step.type, wanted.outputs[0].data, reduction.type, reduction.count);
}

}  // namespace tutti::comm

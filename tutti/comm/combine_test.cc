// Compares random sums over every transport with a definition of the sum that shares no code with them.
#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/comm/test_ranks.h"
#include "tutti/transport/reduce.h"

namespace tutti::comm::combine_test {
namespace {

using testing::with_ranks;
using Tensors = std::vector<torch::Tensor>;

const std::vector<torch::ScalarType> kTypes = {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf,
                                               torch::kInt,   torch::kLong,   torch::kByte,     torch::kBool};

// --- The definition

// Returns the combination of two values in the type in which they are added.
torch::Tensor combined(const torch::Tensor& a, const torch::Tensor& b, const Reduction& reduction) {
  if (reduction.type == ElementType::Bool) {
    const bool any = reduction.op == ReduceOp::Sum || reduction.op == ReduceOp::Max;
    return any ? a.logical_or(b) : a.logical_and(b);
  }
  torch::Tensor both;
  if (reduction.op == ReduceOp::Min) both = torch::minimum(a, b);
  if (reduction.op == ReduceOp::Max) both = torch::maximum(a, b);
  if (reduction.op == ReduceOp::Product) both = a * b;
  if (!both.defined()) both = a + b;
  return reduction.round_each ? both.to(scalar_type(reduction.type)).to(a.scalar_type()) : both;
}

// Returns the value of a node of the tree, from the top; nullopt if no source below it is present.
std::optional<torch::Tensor> value_of(const TreeNode& node, const Sources& sources, const Tensors& values,
                                      const Reduction& reduction) {
  for (size_t s = 0; s < values.size(); ++s) {
    const TreeNode& place = sources.all[s].place;
    if (place.level != node.level || place.index != node.index) continue;
    return sources.all[s].present ? std::optional(values[s].to(scalar_type(sum_type(reduction.type))))
                                  : std::nullopt;
  }
  if (node.level == 0) return std::nullopt;
  const auto left = value_of({node.level - 1, 2 * node.index}, sources, values, reduction);
  const auto right = value_of({node.level - 1, 2 * node.index + 1}, sources, values, reduction);
  if (left && right) return combined(*left, *right, reduction);
  return left ? left : right;
}

// By a tensor: LibTorch may multiply by the reciprocal of a number.
torch::Tensor divided(const torch::Tensor& values, double divisor) {
  return values / torch::full_like(values, divisor);
}

torch::Tensor expected_of(const Sources& sources, const Tensors& values, const Reduction& reduction) {
  int top = 0;
  while (int64_t{1} << top < sources.leaves) ++top;
  torch::Tensor result = *value_of({top, 0}, sources, values, reduction);
  if (reduction.op == ReduceOp::Average) result = divided(result, static_cast<double>(values.size()));
  result = result.to(scalar_type(reduction.type));
  if (reduction.divisor == 0) return result;
  return divided(result.to(scalar_type(sum_type(reduction.type))), reduction.divisor)
      .to(scalar_type(reduction.type));
}

// --- Sums drawn at random

struct Drawn {
  Reduction reduction;
  Sources sources;
  Tensors values;                    // by source
  std::vector<ElementRange> slices;  // empty: no scatter
  bool in_place;                     // the output is the last input of its rank, if it has one

  std::string describe() const {
    return fmt::format("{} {}, op {}, divisor {}, {} sources of {} leaves{}{}{}", reduction.count,
                       name_of(reduction.type), static_cast<int>(reduction.op), reduction.divisor,
                       values.size(), sources.leaves, reduction.round_each ? ", each rounded" : "",
                       slices.empty() ? "" : ", scattered", in_place ? ", in place" : "");
  }
};

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  int64_t between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random_() % static_cast<uint64_t>(most - least + 1));
  }
  bool one_in(int64_t count) { return between(1, count) == 1; }
  template <class T>
  T one_of(const std::vector<T>& values) {
    return values[static_cast<size_t>(between(0, static_cast<int64_t>(values.size()) - 1))];
  }

 private:
  std::mt19937_64 random_;
};

// Gives each rank some neighbouring leaves, and draws whether it has added them as far as it can.
Sources draw_sources(Dice& dice, int world) {
  const int64_t leaves = dice.one_in(3) ? world : dice.between(1, 2 * world + 3);
  const bool added = dice.one_in(2);
  std::vector<Source> all;
  for (int rank = 0; rank < world; ++rank) {
    std::vector<Source> own;
    for (int64_t leaf = leaves * rank / world; leaf < leaves * (rank + 1) / world; ++leaf)
      own.push_back({{0, leaf}, rank, !dice.one_in(6)});
    if (!added) all.insert(all.end(), own.begin(), own.end());
    if (added) {
      for (const Root& root : roots_of(own, leaves)) all.push_back({root.place, rank, !root.program.empty()});
    }
  }
  all[static_cast<size_t>(dice.between(0, static_cast<int64_t>(all.size()) - 1))].present = true;
  return sources_of(all, leaves);
}

torch::Tensor draw_values(Dice& dice, int64_t count, const Reduction& reduction) {
  const torch::ScalarType type = scalar_type(reduction.type);
  if (c10::isFloatingType(type))
    return (torch::randn({count}) * static_cast<double>(dice.between(1, 100)) / 10).to(type);
  return torch::randint(type == torch::kBool ? 2 : 5, {count}).to(type);
}

Drawn draw(Dice& dice, int world) {
  const auto type = dice.one_of(kTypes);
  const bool floating = c10::isFloatingType(type);
  const std::vector<ReduceOp> ops = {ReduceOp::Sum, ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max,
                                     ReduceOp::Product};
  Reduction reduction{.type = element_type(type), .op = dice.one_of(ops), .count = 0};
  reduction.count = dice.one_of<int64_t>({0, 1, 3, 63, 64, 65, 1000, 2049, 4096, 4097, 8191, 70001, 200003});
  if (dice.one_in(60)) reduction.count = 2'300'001;
  if (floating && dice.one_in(5)) reduction.op = ReduceOp::Average;
  if (floating && dice.one_in(3)) reduction.divisor = static_cast<double>(dice.between(2, 9));
  const bool is_half = type == torch::kHalf || type == torch::kBFloat16;
  reduction.round_each = (is_half && reduction.divisor != 0) || dice.one_in(2);
  Drawn drawn{.reduction = reduction,
              .sources = draw_sources(dice, world),
              .values = {},
              .slices = {},
              .in_place = dice.one_in(2)};
  for (size_t s = 0; s < drawn.sources.all.size(); ++s)
    drawn.values.push_back(draw_values(dice, reduction.count, reduction));
  if (!dice.one_in(3)) return drawn;
  std::vector<int64_t> ends = {0, reduction.count};
  for (int rank = 1; rank < world; ++rank) ends.push_back(dice.between(0, reduction.count));
  std::sort(ends.begin(), ends.end());
  for (size_t i = 0; i + 1 < ends.size(); ++i) drawn.slices.push_back({ends[i], ends[i + 1]});
  return drawn;
}

// --- One rank

// The memory of one sum. The vectors begin at an odd element.
class Places {
 public:
  Places(const Drawn& drawn, Communicator& comm, SharedVectors* shared, int here)
      : drawn_(drawn), comm_(comm), shared_(shared), here_(here) {
    std::vector<size_t> counts(static_cast<size_t>(comm.world()));
    for (const Source& source : drawn.sources.all) ++counts[static_cast<size_t>(source.rank)];
    const size_t vectors = *std::max_element(counts.begin(), counts.end()) + 1;
    for (size_t i = 0; i < vectors; ++i) everyones_.push_back(make_vector());
  }

  SlicedSum sum() const {
    SlicedSum sum{.reduction = drawn_.reduction,
                  .sources = &drawn_.sources,
                  .inputs = Tensors(drawn_.values.size()),
                  .outputs = {},
                  .slices = drawn_.slices,
                  .shared = shared_ != nullptr};
    std::map<int, size_t> seen;
    for (size_t s = 0; s < sum.inputs.size(); ++s) {
      const Source& source = drawn_.sources.all[s];
      const int local = source.rank - (comm_.rank() - here_);
      const Tensors& vectors = everyones_[++seen[source.rank]];
      if (local < 0 || local >= static_cast<int>(vectors.size())) continue;
      sum.inputs[s] = vectors[static_cast<size_t>(local)];
      if (source.rank == comm_.rank()) sum.inputs[s].copy_(drawn_.values[s]);
    }
    const Tensors& outputs = everyones_[drawn_.in_place ? 1 : 0];
    const torch::Tensor own = outputs[static_cast<size_t>(here_)];
    sum.outputs = {own};
    if (sum.scatters()) {
      const ElementRange& slice = sum.slices[static_cast<size_t>(comm_.rank())];
      sum.outputs = {own.narrow(0, slice.begin, slice.size())};
    }
    for (int local = 0; local < static_cast<int>(outputs.size()) && !sum.scatters(); ++local) {
      if (local != here_) sum.outputs.push_back(outputs[static_cast<size_t>(local)]);
    }
    return sum;
  }

 private:
  // Returns the vectors of all ranks that share memory with this one.
  Tensors make_vector() const {
    const int64_t count = drawn_.reduction.count;
    if (shared_ == nullptr) {
      Tensors all(static_cast<size_t>(here_) + 1);
      all.back() = torch::zeros({count + 1}, scalar_type(drawn_.reduction.type)).narrow(0, 1, count);
      return all;
    }
    return shared_->everyones(
        shared_->allocate(count + 1, scalar_type(drawn_.reduction.type)).narrow(0, 1, count));
  }

  const Drawn& drawn_;
  Communicator& comm_;
  SharedVectors* const shared_;
  const int here_;
  std::vector<Tensors> everyones_;  // the one for outputs, then one for each source of a rank
};

void check(Communicator& comm, const std::vector<Drawn>& drawn, const Tensors& expected, bool shared) {
  SharedVectors* memory = nullptr;
  int here = 0;
  if (shared && comm.shared() != nullptr) {
    memory = comm.shared();
    here = comm.rank();
  } else if (shared && comm.hosts() != nullptr) {
    memory = comm.hosts()->inside.shared();
    here = comm.hosts()->inside.rank();
  }
  std::vector<Places> places;
  std::vector<SlicedSum> sums;
  for (const Drawn& one : drawn) places.emplace_back(one, comm, memory, here);
  for (const Places& place : places) sums.push_back(place.sum());
  if (memory != nullptr) memory->sync();
  comm.combine(sums).wait();
  for (size_t i = 0; i < sums.size(); ++i) {
    torch::Tensor wanted = expected[i];
    if (sums[i].scatters()) {
      const ElementRange& own = sums[i].slices[static_cast<size_t>(comm.rank())];
      wanted = wanted.narrow(0, own.begin, own.size());
    }
    EXPECT_TRUE(torch::equal(sums[i].outputs[0], wanted))
        << comm.name() << " rank " << comm.rank() << " of " << comm.world() << (shared ? ", shared: " : ": ")
        << drawn[i].describe();
  }
  if (memory != nullptr) memory->sync();
}

void check_on(const std::string& backend, int world, int draws) {
  for (int number = 0; number < draws; ++number) {
    Dice dice(static_cast<uint64_t>(number * 100 + world));
    torch::manual_seed(static_cast<uint64_t>(number));
    const bool shared = dice.one_in(2);
    std::vector<Drawn> drawn;
    Tensors expected;
    for (int64_t i = dice.between(1, 3); i > 0; --i) {
      drawn.push_back(draw(dice, world));
      expected.push_back(expected_of(drawn.back().sources, drawn.back().values, drawn.back().reduction));
    }
    with_ranks(backend, world, [&](Communicator& comm) { check(comm, drawn, expected, shared); });
    if (::testing::Test::HasFailure()) {
      ADD_FAILURE() << backend << ", draw " << number;
      return;
    }
  }
}

TEST(SlicedSums, drawn_at_random_are_those_of_the_definition) {
  for (const char* backend : {"inproc", "plain", "shm"}) {
    for (const int world : {1, 2, 3, 4}) check_on(backend, world, 12);
  }
  for (const std::string hosts : {"ab", "abc", "abcd", "aab", "aabb", "abbb", "aabccc"})
    check_on(hosts, static_cast<int>(hosts.size()), 12);
}

TEST(SlicedSumsSoak, drawn_at_random_are_those_of_the_definition) {
  for (const char* backend : {"inproc", "plain", "shm"}) {
    for (const int world : {1, 2, 3, 4, 5, 8}) check_on(backend, world, 60);
  }
  for (const std::string hosts :
       {"ab", "abc", "abcdefgh", "aab", "abb", "aabb", "abbb", "aabccc", "aaaabbbb"})
    check_on(hosts, static_cast<int>(hosts.size()), 60);
}

}  // namespace
}  // namespace tutti::comm::combine_test

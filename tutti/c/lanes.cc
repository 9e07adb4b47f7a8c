#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "tutti/base/hashes.h"
#include "tutti/c/handles.h"
#include "tutti/lanes/lane_tree.h"
#include "tutti/lanes/sampler.h"
#include "tutti/transport/reduce.h"

namespace tutti::c {
namespace {

using comm::Array;
using comm::Operation;
using comm::Source;
using comm::Sources;

// A worker has at most two subtrees of each height, and a bit for each in its word.
constexpr int64_t kMostLanes = int64_t{1} << 30;

void require_lanes(int64_t lanes, const char* call) {
  if (lanes < 1 || lanes > kMostLanes)
    fail(ErrorKind::InvalidArgument, "{}: {} lanes; expected 1 to 2^30", call, lanes);
}

bool is_divisible(ElementType type) {
  return type == ElementType::Float64 || type == ElementType::Float32 || type == ElementType::Float16 ||
         type == ElementType::BFloat16;
}

// The memory of LaneSum: the caller's values, which every lane is written into, and rooms for sums that wait.
class LaneMemory {
 public:
  using Values = std::byte*;

  explicit LaneMemory(const Array& own) : own_(own) {}

  std::byte* own() const { return own_.data; }
  std::byte* room(size_t index) {
    while (rooms_.size() <= index) rooms_.push_back(std::make_unique<std::byte[]>(own_.size()));
    return rooms_[index].get();
  }
  bool is_own(const std::byte* values) const { return values == own_.data; }
  void copy(std::byte* to, const std::byte* from) const {
    if (to != from && own_.count > 0) std::memcpy(to, from, own_.size());
  }
  void add(std::byte* to, const std::byte* more) const {
    if (own_.count == 0) return;
    const std::byte* const inputs[] = {to, more};
    std::byte* const outputs[] = {to};
    comm::reduce(inputs, outputs,
                 {.type = own_.type, .op = comm::ReduceOp::Sum, .count = own_.count, .round_each = true},
                 {0, 1, comm::kCombine});
  }

 private:
  Array own_;
  std::vector<std::unique_ptr<std::byte[]>> rooms_;
};

// Every rank sends its word to all others before the values are added.
struct Word {
  int64_t lanes;  // of all ranks
  double divisor;
  uint64_t present;  // bit i: its subtree i has data
};

}  // namespace

// Adds the lanes of a rank along the tree, and then the lanes of all ranks; the sum is in `values`.
class LaneSum : public std::enable_shared_from_this<LaneSum> {
 public:
  LaneSum(Ranks& ranks, int64_t lanes, const Array& values) : ranks_(ranks), lanes_(lanes), values_(values) {}

  void reset() {
    require_ended("tutti_lane_sum_reset");
    if (tree_) tree_->reset();
  }

  void add(bool has_data) {
    require_ended("tutti_lane_sum_add");
    Tree& tree = tree_of_these_ranks();
    if (tree.lanes_added() == tree.range().size())
      fail(ErrorKind::InvalidArgument, "tutti_lane_sum_add: rank {} has added its lanes {} to {} already",
           ranks_.rank(), tree.range().begin, tree.range().end - 1);
    if (has_data)
      tree.add();
    else
      tree.skip();
  }

  comm::Work finish(double divisor, const comm::Options& options) {
    require_ended("tutti_lane_sum_finish");
    if (!std::isfinite(divisor) || (divisor != 0 && !is_divisible(values_.type)))
      fail(ErrorKind::InvalidArgument, "tutti_lane_sum_finish: {} cannot be divided by {}",
           name_of(values_.type), divisor);
    Tree& tree = tree_of_these_ranks();
    if (tree.lanes_added() != tree.range().size())
      fail(ErrorKind::InvalidArgument,
           "tutti_lane_sum_finish: rank {} has added {} of its {} lanes. All have to be added; one without "
           "data with has_data = 0",
           ranks_.rank(), tree.lanes_added(), tree.range().size());
    subtrees_ = tree.finish();
    // The operation may outlive the caller's handle.
    last_ = ranks_.run("lane_sum", options, [sum = shared_from_this(), divisor](const Operation& operation) {
      sum->run(divisor, operation);
    });
    return last_;
  }

 private:
  using Tree = LaneTree<LaneMemory>;

  void run(double divisor, const Operation& operation) {
    const Sources sources = sources_of(words_of_all(divisor, operation));
    if (values_.count == 0) return;
    if (sources.program.empty()) {
      std::memset(values_.data, 0, values_.size());
      return;
    }
    const comm::Reduction reduction{.type = values_.type,
                                    .op = comm::ReduceOp::Sum,
                                    .count = values_.count,
                                    .divisor = divisor,
                                    .round_each = true};
    const comm::ArraySum sum{
        .reduction = reduction, .sources = &sources, .inputs = inputs_of(sources), .outputs = {values_}};
    ranks_.transport().combine(std::span(&sum, 1), with_whole(operation, reduction));
  }

  void require_ended(const char* call) const {
    if (!last_.done())
      fail(ErrorKind::InvalidArgument, "{}: the sum of the step before has not ended: wait for it", call);
  }

  Tree& tree_of_these_ranks() {
    const LaneRange range = lanes_of(ranks_.rank(), ranks_.world(), lanes_);
    if (!tree_ || tree_->range() != range) tree_.emplace(LaneMemory(values_), range, lanes_);
    return *tree_;
  }

  std::vector<Word> words_of_all(double divisor, const Operation& operation) {
    Word own{lanes_, divisor, 0};
    for (size_t i = 0; i < subtrees_.size(); ++i) own.present |= uint64_t{subtrees_[i].values ? 1U : 0U} << i;
    constexpr auto kNumbers = static_cast<int64_t>(sizeof(Word) / sizeof(int64_t));
    std::vector<Word> words(static_cast<size_t>(ranks_.world()));
    std::vector<Array> outputs;
    for (Word& word : words)
      outputs.push_back({reinterpret_cast<std::byte*>(&word), ElementType::Int64, kNumbers});
    ranks_.all_gather(ranks_.transport(), outputs,
                      {reinterpret_cast<std::byte*>(&own), ElementType::Int64, kNumbers}, operation);
    for (size_t rank = 1; rank < words.size(); ++rank) {
      if (words[rank].lanes != words[0].lanes)
        fail(ErrorKind::InvalidArgument, "rank 0 has {} lanes in all, and rank {} has {}", words[0].lanes,
             rank, words[rank].lanes);
      if (words[rank].divisor != words[0].divisor)
        fail(ErrorKind::InvalidArgument, "rank 0 divides the sum by {}, and rank {} by {}", words[0].divisor,
             rank, words[rank].divisor);
    }
    return words;
  }

  Sources sources_of(const std::vector<Word>& words) const {
    std::vector<Source> all;
    for (int rank = 0; rank < ranks_.world(); ++rank) {
      uint64_t present = words[static_cast<size_t>(rank)].present;
      for (const comm::TreeNode& place : subtrees_of(lanes_of(rank, ranks_.world(), lanes_), lanes_)) {
        all.push_back({place, rank, (present & 1) != 0});
        present >>= 1;
      }
    }
    return comm::sources_of(std::move(all), lanes_);
  }

  // This rank's subtrees among the sources, in their order.
  std::vector<Array> inputs_of(const Sources& sources) const {
    std::vector<Array> inputs;
    size_t own = 0;
    for (const Source& source : sources.all) {
      const bool here = source.rank == ranks_.rank();
      const std::optional<std::byte*> values = here ? subtrees_[own++].values : std::nullopt;
      inputs.push_back({values.value_or(nullptr), values_.type, values ? values_.count : 0});
    }
    return inputs;
  }

  Ranks& ranks_;
  const int64_t lanes_;
  const Array values_;
  std::optional<Tree> tree_;
  std::vector<Tree::Subtree> subtrees_;  // of the step that finish() ends
  comm::Work last_;                      // of finish()
};

namespace {

data::Sampler sampler_of(const tutti_sampling* given, const char* call) {
  if (given == nullptr) fail(ErrorKind::InvalidArgument, "{}: how examples are drawn is NULL", call);
  const tutti_sampling how = known(given, call);
  return {how.examples,
          {.order = how.in_order != 0 ? data::Order::Sequential : data::Order::Shuffled,
           .seed = how.seed,
           .lanes = how.lanes,
           .batch = how.batch,
           .drop_remainder = how.drop_remainder != 0}};
}

}  // namespace
}  // namespace tutti::c

// NOLINTNEXTLINE(readability-identifier-naming): the name of the interface
struct tutti_lane_sum {
  std::shared_ptr<tutti::c::LaneSum> sum;
};

using namespace tutti::c;  // NOLINT(google-build-using-namespace): the interface is in no namespace
using tutti::ErrorKind;
using tutti::fail;
using tutti::comm::Array;
using tutti::comm::Options;
using tutti::comm::ReduceOp;

tutti_status tutti_lanes_of(int rank, int world, int64_t lanes, int64_t* begin, int64_t* end) {
  return guarded([&] {
    if (begin == nullptr || end == nullptr)
      fail(ErrorKind::InvalidArgument, "tutti_lanes_of: a result is NULL");
    const tutti::LaneRange range = tutti::lanes_of(rank, world, lanes);
    *begin = range.begin;
    *end = range.end;
  });
}

uint64_t tutti_lane_seed(int64_t seed, int64_t step, int64_t lane) {
  return tutti::lane_seed(seed, step, lane);
}

tutti_status tutti_steps_per_epoch(const tutti_sampling* how, int64_t* steps) {
  constexpr const char* kCall = "tutti_steps_per_epoch";
  return guarded([&] {
    if (steps == nullptr) fail(ErrorKind::InvalidArgument, "{}: the result is NULL", kCall);
    *steps = sampler_of(how, kCall).steps_per_epoch();
  });
}

tutti_status tutti_lane_examples(const tutti_sampling* how, int64_t step, int64_t lane, int64_t* examples,
                                 size_t* count) {
  constexpr const char* kCall = "tutti_lane_examples";
  return guarded([&] {
    if (examples == nullptr || count == nullptr)
      fail(ErrorKind::InvalidArgument, "{}: a result is NULL", kCall);
    const auto sampler = sampler_of(how, kCall);
    if (step < 0 || lane < 0 || lane >= sampler.options().lanes)
      fail(ErrorKind::InvalidArgument, "{}: step {}, lane {} of {}", kCall, step, lane,
           sampler.options().lanes);
    std::vector<int64_t> of_lane;
    sampler.examples(step, lane, of_lane);
    std::copy(of_lane.begin(), of_lane.end(), examples);
    *count = of_lane.size();
  });
}

tutti_status tutti_lane_sum_new(tutti_comm* comm, int64_t lanes, void* values, size_t count, tutti_type type,
                                tutti_lane_sum** sum) {
  constexpr const char* kCall = "tutti_lane_sum_new";
  return guarded([&] {
    Ranks& ranks = ranks_of(comm, kCall);
    if (sum == nullptr) fail(ErrorKind::InvalidArgument, "{}: the result is NULL", kCall);
    require_lanes(lanes, kCall);
    const Array array = array_of(values, count, type, kCall);
    require_reducible(array.type, ReduceOp::Sum);
    *sum = new tutti_lane_sum{std::make_shared<LaneSum>(ranks, lanes, array)};
  });
}

tutti_status tutti_lane_sum_add(tutti_lane_sum* sum, int has_data) {
  return guarded([&] {
    if (sum == nullptr) fail(ErrorKind::InvalidArgument, "tutti_lane_sum_add: the sum is NULL");
    sum->sum->add(has_data != 0);
  });
}

tutti_status tutti_lane_sum_reset(tutti_lane_sum* sum) {
  return guarded([&] {
    if (sum == nullptr) fail(ErrorKind::InvalidArgument, "tutti_lane_sum_reset: the sum is NULL");
    sum->sum->reset();
  });
}

tutti_status tutti_lane_sum_finish(tutti_lane_sum* sum, double divisor, const tutti_options* options) {
  return carry_out("tutti_lane_sum_finish", options, [&](const Options& asked) {
    if (sum == nullptr) fail(ErrorKind::InvalidArgument, "tutti_lane_sum_finish: the sum is NULL");
    return sum->sum->finish(divisor, asked);
  });
}

void tutti_lane_sum_free(tutti_lane_sum* sum) { delete sum; }

uint32_t tutti_crc32c(const void* bytes, size_t size, uint32_t before) {
  return tutti::crc32c({static_cast<const std::byte*>(bytes), size}, before);
}

#include "tutti/step/bucket_sums.h"

#include <algorithm>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/type_name.h"
#include "tutti/comm/hosts.h"
#include "tutti/comm/reduce_on_device.h"
#include "tutti/step/tree_sum.h"

namespace tutti {
namespace {

comm::SharedVectors* memory_for(comm::Communicator& comm, const Buckets& buckets) {
  // If there are no vectors, only the numbers are added.
  if (buckets.vectors.empty() || comm.on_device(buckets.vectors.front())) return nullptr;
  return shared_by(comm, buckets.vectors.front().device());
}

}  // namespace

ReducerOptions reducer_options(const RunConfig& config) {
  ReducerOptions options;
  options.fast = config.reduction.order == "fast";
  if (config.reduction.wire_precision == "bf16") options.wire.type = torch::kBFloat16;
  if (config.reduction.wire_precision == "fp16") options.wire.type = torch::kHalf;
  options.wire.error_feedback = config.reduction.error_feedback;
  options.scatter = config.reduction.optimizer_state == "sharded";
  options.nan_guard = config.training.nan_guard;
  return options;
}

std::string to_string(const ReducerOptions& options) {
  std::string text = options.fast ? "reduce fast" : "reduce tree";
  if (options.wire.type != torch::ScalarType::Undefined)
    text += fmt::format(", {} on the wire{}", type_name(options.wire.type),
                        options.wire.error_feedback ? " with error feedback" : "");
  return options.scatter ? text + ", scattered" : text;
}

comm::SharedVectors* shared_by(comm::Communicator& comm, torch::Device device) {
  if (comm.world() == 1 || !device.is_cpu()) return nullptr;
  if (comm::SharedVectors* shared = comm.shared()) return shared;
  return comm.hosts() != nullptr ? comm.hosts()->inside.shared() : nullptr;
}

BucketSums::BucketSums(comm::Communicator& comm, const Buckets& buckets, const ControlWord& control,
                       Divisor divisor, const ReducerOptions& options)
    : comm_(comm),
      buckets_(buckets),
      divisor_(std::move(divisor)),
      options_(options),
      memory_(memory_for(comm, buckets)),
      here_(memory_ == nullptr ? 0
            : overlap()        ? comm.hosts()->inside.rank()
                               : comm.rank()) {
  std::vector<Places> places;  // by vector
  for (const torch::Tensor& vector : buckets_.vectors)
    places.push_back(places_of(vector, control.most_subtrees()));
  for (const Bucket& bucket : buckets_.all) {
    Places subtrees = places[bucket.vector];
    for (Vectors& of_ranks : subtrees) {
      for (torch::Tensor& tensor : of_ranks) tensor = elements_of(tensor, bucket.range());
    }
    sums_.push_back(sum_over(bucket, subtrees, control));
    std::vector<Vectors>& waiting_room = waiting_rooms_.emplace_back();
    for (size_t i = 0; i + 1 < subtrees.size(); ++i)
      waiting_room.push_back({subtrees[i][static_cast<size_t>(here_)]});
  }
  if (overlap() && !options_.fast && options_.wire.type != torch::ScalarType::Undefined)
    rounded_.emplace(comm, buckets_, control.most_subtrees(), options_.wire);
}

BucketSums::Places BucketSums::places_of(const torch::Tensor& vector, size_t subtrees) const {
  const auto everyones = [&](const torch::Tensor& mine) {
    return memory_ != nullptr ? memory_->everyones(mine) : Vectors{mine};
  };
  Places places;
  for (size_t i = 0; i + 1 < subtrees; ++i) {
    places.push_back(everyones(memory_ != nullptr ? memory_->allocate(vector.numel(), vector.scalar_type())
                                                  : torch::empty_like(vector)));
  }
  places.push_back(everyones(vector));
  return places;
}

comm::SlicedSum BucketSums::sum_over(const Bucket& bucket, const Places& places,
                                     const ControlWord& control) const {
  const Vectors& vectors = places.back();
  const torch::Tensor& own = vectors[static_cast<size_t>(here_)];
  const auto sources = control.sources();
  comm::SlicedSum sum{.reduction = sum_of(own.scalar_type(), own.numel()),
                      .sources = &control.order(),
                      .inputs = Vectors(sources.size()),
                      .outputs = {own},
                      .slices = {},
                      .shared = memory_ != nullptr};
  for (size_t s = 0; s < sources.size(); ++s) {
    const int rank = sources[s].rank - (comm_.rank() - here_);
    if (rank < 0 || rank >= static_cast<int>(vectors.size())) continue;
    const bool is_last = s + 1 == sources.size() || sources[s + 1].rank != sources[s].rank;
    sum.inputs[s] = (is_last ? vectors : places[sources[s].subtree])[static_cast<size_t>(rank)];
  }
  if (options_.scatter && bucket.gradients) {
    for (int rank = 0; rank < comm_.world(); ++rank) {
      const comm::ElementRange slice = slice_of(bucket, rank, comm_.world());
      sum.slices.push_back({slice.begin - bucket.begin, slice.end - bucket.begin});
    }
    sum.outputs = {elements_of(own, sum.slices[static_cast<size_t>(comm_.rank())])};
    return sum;
  }
  for (size_t r = 0; r < vectors.size(); ++r) {
    if (static_cast<int>(r) != here_) sum.outputs.push_back(vectors[r]);
  }
  return sum;
}

std::string BucketSums::name() const {
  if (options_.fast) return comm_.world() > 1 ? "fast" : "tree";
  return rounded_ ? fmt::format("tree, {} on the wire", type_name(options_.wire.type)) : "tree";
}

void BucketSums::add(size_t begin, size_t end, const torch::Tensor& numbers, int64_t step) {
  const SpanScope span(comm_.timeline(), Activity::Reduce, "sum of buckets", step);
  for (size_t i = begin; i < end; ++i)
    sums_[i].reduction.divisor = divisor_ ? divisor_(buckets_.all[i], numbers) : 0;
  if (rounded_ && rounded_->has(begin)) return rounded_->add(begin, sums_[begin], step);
  // Other workers of this host are about to read the buckets. If all workers share memory, they have met when
  // they exchanged their control words.
  if (memory_ != nullptr && overlap()) memory_->sync({.what = "gradients", .step = step});
  comm_.combine(std::span(sums_).subspan(begin, end - begin),
                {.any_order = options_.fast, .what = "gradients", .step = step});
}

void BucketSums::divide(const torch::Tensor& numbers) const {
  if (!divisor_) return;
  const torch::Tensor on_cpu = numbers.to(torch::kCPU);
  for (const Bucket& bucket : buckets_.all) comm::divide(buckets_.elements(bucket), divisor_(bucket, on_cpu));
}

std::optional<Residuals> BucketSums::residuals() const {
  if (!rounded_ || !options_.wire.error_feedback) return std::nullopt;
  return rounded_->residuals();
}

void BucketSums::set_residuals(const Residuals& residuals) {
  if (rounded_) rounded_->set_residuals(residuals);
}

void BucketSums::spread(const Vectors& vectors, int64_t step, StepCommit* commit) {
  if (comm_.world() == 1) return;
  const comm::Options options{.what = "the parameters", .step = step};
  if (!overlap()) return spread_in_memory(vectors, options, commit);
  for (const Bucket& bucket : buckets_.all) {
    if (!bucket.gradients) continue;
    const torch::Tensor& vector = vectors[bucket.vector];
    Vectors slices;
    for (int rank = 0; rank < comm_.world(); ++rank)
      slices.push_back(elements_of(vector, slice_of(bucket, rank, comm_.world())));
    comm_.all_gather_uneven(slices, slices[static_cast<size_t>(comm_.rank())], options);
  }
}

// Each worker takes the slices of the others, and writes nothing that they read. It waits until all have
// taken its own, since the program may change the parameters then.
void BucketSums::spread_in_memory(const Vectors& vectors, const comm::Options& options, StepCommit* commit) {
  std::vector<Vectors> everyones;
  for (const torch::Tensor& vector : vectors) everyones.push_back(memory_->everyones(vector));
  const auto take_slices = [&](int of_rank, int from_rank) {
    for (const Bucket& bucket : buckets_.all) {
      if (!bucket.gradients) continue;
      const comm::ElementRange slice = slice_of(bucket, of_rank, comm_.world());
      elements_of(vectors[bucket.vector], slice)
          .copy_(elements_of(everyones[bucket.vector][static_cast<size_t>(from_rank)], slice));
    }
  };
  const auto meet = [&] { memory_->sync(options); };
  const auto take = [&] {
    for (int rank = 0; rank < comm_.world(); ++rank) {
      if (rank != comm_.rank()) take_slices(rank, rank);
    }
  };
  if (commit != nullptr)
    return commit->run(meet, take, [&] { take_slices(comm_.rank(), (comm_.rank() + 1) % comm_.world()); });
  meet();
  take();
  meet();
}

}  // namespace tutti

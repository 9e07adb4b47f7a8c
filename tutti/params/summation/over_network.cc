#include <optional>

#include <fmt/format.h>
#include <torch/utils.h>

#include "tutti/base/type_name.h"
#include "tutti/comm/combination.h"
#include "tutti/comm/reduce_on_device.h"
#include "tutti/params/summation/summation.h"

namespace tutti {
namespace {

using Tensors = std::vector<torch::Tensor>;

// Returns the part of one bucket that each rank owns, as views of `vector`.
Tensors parts_of(const Bucket& bucket, const torch::Tensor& vector, int world) {
  Tensors parts;
  for (int rank = 0; rank < world; ++rank) parts.push_back(stretch_of(vector, part_of(bucket, rank, world)));
  return parts;
}

torch::TensorOptions wire_options(const SummationOptions& options, torch::Device place) {
  if (options.wire == torch::ScalarType::Undefined) return {};  // nothing is rounded
  return torch::TensorOptions().dtype(options.wire).device(place);
}

// Implements Summation::spread() with an all-gather.
void spread_over_network(comm::Communicator& comm, const Buckets& buckets, const Tensors& vectors,
                         int64_t step) {
  for (const Bucket& bucket : buckets.all) {
    if (!bucket.gradients) continue;
    const Tensors parts = parts_of(bucket, vectors[bucket.vector], comm.world());
    comm.all_gather_uneven(parts, parts[static_cast<size_t>(comm.rank())],
                           {.what = "the parameters", .step = step});
  }
}

class ByAllReduce final : public Summation {
 public:
  ByAllReduce(comm::Communicator& comm, const Buckets& buckets) : comm_(comm), buckets_(buckets) {}

  std::string name() const override { return "fast"; }
  bool overlaps() const override {
    return comm_.shared() == nullptr || comm_.on_device(buckets_.vectors.front());
  }
  Tensors words(const torch::Tensor& own, int64_t step) override { return gather_words(comm_, own, step); }
  void add(size_t bucket, const Subtrees& subtrees, double divisor, int64_t step) override {
    const torch::Tensor stretch = buckets_.stretch(buckets_.all[bucket]);
    if (subtrees.empty() || !subtrees.back().values) stretch.zero_();
    comm_.all_reduce(stretch, comm::ReduceOp::Sum, {.any_order = true, .what = "gradients", .step = step});
    if (divisor != 0) comm::divide(stretch, divisor);
  }
  void spread(const Tensors& vectors, int64_t step) override {
    spread_over_network(comm_, buckets_, vectors, step);
  }

 private:
  comm::Communicator& comm_;
  const Buckets& buckets_;
};

class ByExchange final : public Summation {
 public:
  ByExchange(comm::Communicator& comm, const Buckets& buckets, const ControlWord& word,
             const SummationOptions& options);

  std::string name() const override {
    if (options_.wire == torch::ScalarType::Undefined) return "tree";
    return fmt::format("tree, {} on the wire", type_name(options_.wire));
  }
  bool overlaps() const override { return true; }
  Tensors words(const torch::Tensor& own, int64_t step) override { return gather_words(comm_, own, step); }
  void add(size_t bucket, const Subtrees& subtrees, double divisor, int64_t step) override;
  std::optional<Residuals> residuals() override;
  void set_residuals(const Residuals& residuals) override;
  void spread(const Tensors& vectors, int64_t step) override {
    spread_over_network(comm_, buckets_, vectors, step);
  }

 private:
  // The roundings of one bucket, if it is rounded.
  struct Roundings {
    std::vector<Rounding> subtrees;
    Rounding sum;
  };

  void add_exact(const Bucket& bucket, const Subtrees& subtrees, double divisor, int64_t step);
  Tensors to_send(size_t bucket, const Subtrees& subtrees);
  Tensors get_parts(size_t bucket, const Subtrees& subtrees, int64_t step);
  torch::Tensor add_parts(const Bucket& bucket, const Tensors& received, double divisor) const;
  void hand_out(size_t bucket, const torch::Tensor& sum, int64_t step);
  template <class Visit>
  void for_each_rounding(const Residuals& residuals, const Visit& visit);

  comm::Communicator& comm_;
  const Buckets& buckets_;
  const ControlWord& word_;
  const SummationOptions options_;
  const bool on_device_;                             // data is sent from the device of the vectors
  const torch::TensorOptions on_wire_;               // of what is rounded, on the device where it is added
  std::vector<std::optional<Roundings>> roundings_;  // [bucket]
};

ByExchange::ByExchange(comm::Communicator& comm, const Buckets& buckets, const ControlWord& word,
                       const SummationOptions& options)
    : comm_(comm),
      buckets_(buckets),
      word_(word),
      options_(options),
      on_device_(comm.on_device(buckets.vectors.front())),
      on_wire_(wire_options(options, on_device_ ? buckets.vectors.front().device() : torch::kCPU)) {
  const Rounding rounding(options.wire, options.error_feedback);
  const std::vector<Rounding> one_each(word.most_subtrees(), rounding);
  for (const Bucket& bucket : buckets.all) {
    const auto exact = buckets.vectors[bucket.vector].scalar_type();
    const bool is_rounded = bucket.gradients && options.wire != torch::ScalarType::Undefined &&
                            c10::elementSize(options.wire) < c10::elementSize(exact);
    roundings_.push_back(is_rounded ? std::optional(Roundings{one_each, rounding}) : std::nullopt);
  }
}

// Adds what the workers hold, on the way.
void ByExchange::add_exact(const Bucket& bucket, const Subtrees& subtrees, double divisor, int64_t step) {
  const torch::Tensor stretch = buckets_.stretch(bucket);
  const bool scatter = options_.scatter && bucket.gradients;
  comm::Combination sum{.reduction = sum_of(stretch.scalar_type(), stretch.numel(), divisor),
                        .program = word_.program(),
                        .holders = {},
                        .slices = {},
                        .inputs = {},
                        .scatter = scatter};
  for (size_t s = 0; s < word_.sources().size(); ++s)
    sum.holders.push_back(word_.present(s) ? word_.sources()[s].rank : -1);
  for (int rank = 0; rank < comm_.world(); ++rank) {
    const comm::Slice part = part_of(bucket, rank, comm_.world());
    sum.slices.push_back({part.begin - bucket.begin, part.end - bucket.begin});
  }
  for (const TreeSum::Subtree& subtree : subtrees) {
    if (subtree.values) sum.inputs.push_back((*subtree.values)[0]);
  }
  const comm::Slice own = sum.slices[static_cast<size_t>(comm_.rank())];
  comm_.combine(scatter ? stretch_of(stretch, own) : stretch, sum, {.what = "gradients", .step = step});
}

// Returns, for each worker, its part of all subtrees, rounded and concatenated.
Tensors ByExchange::to_send(size_t bucket, const Subtrees& subtrees) {
  const Bucket& which = buckets_.all[bucket];
  Tensors stretches;
  for (size_t i = 0; i < subtrees.size(); ++i) {
    if (subtrees[i].values)
      stretches.push_back(roundings_[bucket]->subtrees[i].round((*subtrees[i].values)[0]));
  }
  Tensors sends;
  for (int rank = 0; rank < comm_.world(); ++rank) {
    const comm::Slice part = part_of(which, rank, comm_.world());
    Tensors pieces = {torch::empty({0}, on_wire_)};
    for (const torch::Tensor& stretch : stretches)
      pieces.push_back(stretch.narrow(0, part.begin - which.begin, part.size()));
    sends.push_back(pieces.size() == 2 ? pieces[1] : torch::cat(pieces));
  }
  return sends;
}

// Returns this worker's part of the rounded subtrees of all workers, by rank.
Tensors ByExchange::get_parts(size_t bucket, const Subtrees& subtrees, int64_t step) {
  const Bucket& which = buckets_.all[bucket];
  const comm::Slice part = part_of(which, comm_.rank(), comm_.world());
  std::vector<int64_t> sizes(static_cast<size_t>(comm_.world()), 0);
  for (size_t s = 0; s < word_.sources().size(); ++s) {
    if (word_.present(s)) sizes[static_cast<size_t>(word_.sources()[s].rank)] += part.size();
  }
  Tensors received;
  for (const int64_t size : sizes) received.push_back(torch::empty({size}, on_wire_));
  comm_.all_to_all_uneven(received, to_send(bucket, subtrees), {.what = "gradients", .step = step});
  return received;
}

torch::Tensor ByExchange::add_parts(const Bucket& bucket, const Tensors& received, double divisor) const {
  const torch::ScalarType type = buckets_.vectors[bucket.vector].scalar_type();
  const int64_t size = part_of(bucket, comm_.rank(), comm_.world()).size();
  const comm::Reduction reduction = sum_of(type, size, divisor);
  Tensors exact;
  for (const torch::Tensor& tensor : received) exact.push_back(tensor.to(type));
  Tensors inputs;
  std::vector<int64_t> taken(received.size(), 0);
  for (size_t s = 0; s < word_.sources().size(); ++s) {
    const auto rank = static_cast<size_t>(word_.sources()[s].rank);
    const bool present = word_.present(s);
    inputs.push_back(present ? exact[rank].narrow(0, size * taken[rank]++, size) : torch::Tensor());
  }
  if (on_device_) return comm::reduce_on_device(inputs, reduction, word_.program());
  std::vector<const std::byte*> from;
  for (const torch::Tensor& input : inputs) from.push_back(input.defined() ? bytes_at(input, 0) : nullptr);
  const torch::Tensor sum = torch::empty({size}, torch::TensorOptions().dtype(type));
  std::byte* output = bytes_at(sum, 0);
  comm::reduce(from, {&output, 1}, reduction, word_.program());
  return sum;
}

void ByExchange::hand_out(size_t bucket, const torch::Tensor& sum, int64_t step) {
  const Bucket& which = buckets_.all[bucket];
  const Tensors parts = parts_of(which, buckets_.vectors[which.vector], comm_.world());
  if (options_.scatter) {
    parts[static_cast<size_t>(comm_.rank())].copy_(sum);
    return;
  }
  Tensors rounded;
  for (const torch::Tensor& part : parts) rounded.push_back(torch::empty({part.numel()}, on_wire_));
  comm_.all_gather_uneven(rounded, roundings_[bucket]->sum.round(sum),
                          {.what = "the sum of gradients", .step = step});
  for (size_t r = 0; r < parts.size(); ++r) parts[r].copy_(rounded[r]);
}

void ByExchange::add(size_t bucket, const Subtrees& subtrees, double divisor, int64_t step) {
  if (!roundings_[bucket]) return add_exact(buckets_.all[bucket], subtrees, divisor, step);
  const Tensors received = get_parts(bucket, subtrees, step);
  hand_out(bucket, add_parts(buckets_.all[bucket], received, divisor), step);
}

// Calls visit(rounding, stretch) for each rounding, with its stretch of the residuals.
template <class Visit>
void ByExchange::for_each_rounding(const Residuals& residuals, const Visit& visit) {
  for (size_t b = 0; b < buckets_.all.size(); ++b) {
    if (!roundings_[b]) continue;
    const Bucket& bucket = buckets_.all[b];
    for (size_t i = 0; i < residuals.subtrees.size() && i < roundings_[b]->subtrees.size(); ++i)
      visit(roundings_[b]->subtrees[i], stretch_of(residuals.subtrees[i][bucket.vector], bucket.slice()));
    const comm::Slice own = part_of(bucket, comm_.rank(), comm_.world());
    visit(roundings_[b]->sum, stretch_of(residuals.sums[bucket.vector], own));
  }
}

std::optional<Residuals> ByExchange::residuals() {
  if (options_.wire == torch::ScalarType::Undefined || !options_.error_feedback) return std::nullopt;
  const auto zeros = [&] {
    Tensors vectors;
    for (const torch::Tensor& vector : buckets_.vectors) vectors.push_back(torch::zeros_like(vector));
    return vectors;
  };
  Residuals all{.subtrees = {}, .sums = zeros()};
  for (size_t i = 0; i < word_.most_subtrees(); ++i) all.subtrees.push_back(zeros());
  for_each_rounding(all, [](const Rounding& rounding, const torch::Tensor& stretch) {
    if (rounding.lost().defined()) stretch.copy_(rounding.lost());
  });
  return all;
}

void ByExchange::set_residuals(const Residuals& residuals) {
  for_each_rounding(residuals, [](Rounding& rounding, const torch::Tensor& stretch) {
    rounding.set_lost(stretch.clone());
  });
}

}  // namespace

torch::Tensor Rounding::round(const torch::Tensor& exact) {
  const torch::NoGradGuard no_grad;
  // A restored residual is on the device of the parameters; sums may be computed on the CPU.
  const torch::Tensor wanted = lost_.defined() ? exact + lost_.to(exact.device()) : exact;
  // Clamps only for half: bfloat16 has the range of float32.
  constexpr double kLargestHalf = 65504;
  const torch::Tensor in_range = to_ == torch::kHalf ? wanted.clamp(-kLargestHalf, kLargestHalf) : wanted;
  torch::Tensor rounded = in_range.to(to_);
  if (keep_) {
    lost_ = wanted - rounded.to(exact.scalar_type());
    // An infinity or NaN must not stay in the residual for ever.
    lost_.nan_to_num_(0, 0, 0);
  }
  return rounded;
}

Tensors gather_words(comm::Communicator& comm, const torch::Tensor& word, int64_t step) {
  const torch::Tensor all = torch::empty({comm.world() * word.numel()}, torch::kDouble);
  comm.all_gather(all, word, {.what = "the control word", .step = step});
  return all.view({comm.world(), word.numel()}).unbind(0);
}

std::unique_ptr<Summation> sum_by_all_reduce(comm::Communicator& comm, const Buckets& buckets) {
  return std::make_unique<ByAllReduce>(comm, buckets);
}

std::unique_ptr<Summation> sum_by_exchange(comm::Communicator& comm, const Buckets& buckets,
                                           const ControlWord& word, const SummationOptions& options) {
  return std::make_unique<ByExchange>(comm, buckets, word, options);
}

}  // namespace tutti

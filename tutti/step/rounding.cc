#include "tutti/step/rounding.h"

#include <torch/utils.h>

#include "tutti/comm/reduce_on_device.h"

namespace tutti {

torch::Tensor Rounding::round(const torch::Tensor& exact) {
  const torch::NoGradGuard no_grad;
  // A restored residual is on the device of the parameters; sums may be computed on the CPU.
  const torch::Tensor wanted = lost_.defined() ? exact + lost_.to(exact.device()) : exact;
  // Clamps only for half: bfloat16 has the range of float32.
  constexpr double kLargestHalf = 65504;
  const torch::Tensor in_range =
      options_.type == torch::kHalf ? wanted.clamp(-kLargestHalf, kLargestHalf) : wanted;
  torch::Tensor rounded = in_range.to(options_.type);
  if (options_.error_feedback) {
    lost_ = wanted - rounded.to(exact.scalar_type());
    // An infinity or NaN must not stay in the residual for ever.
    lost_.nan_to_num_(0, 0, 0);
  }
  return rounded;
}

RoundedSums::RoundedSums(comm::Communicator& comm, const Buckets& buckets, size_t most_subtrees,
                         const RoundingOptions& options)
    : comm_(comm),
      buckets_(buckets),
      most_subtrees_(most_subtrees),
      on_wire_(torch::TensorOptions()
                   .dtype(options.type)
                   .device(comm.on_device(buckets.vectors.front()) ? buckets.vectors.front().device()
                                                                   : torch::kCPU)) {
  const Rounding rounding(options);
  const std::vector<Rounding> one_each(most_subtrees, rounding);
  for (const Bucket& bucket : buckets.all) {
    const auto exact = buckets.vectors[bucket.vector].scalar_type();
    const bool is_rounded = bucket.gradients && c10::elementSize(options.type) < c10::elementSize(exact);
    roundings_.push_back(is_rounded ? std::optional(Roundings{one_each, rounding}) : std::nullopt);
  }
}

// Returns, for each worker, its slice of all subtrees of this worker, rounded and concatenated.
RoundedSums::Tensors RoundedSums::to_send(size_t bucket, const comm::SlicedSum& sum) {
  const Bucket& which = buckets_.all[bucket];
  Tensors sections;
  size_t subtree = 0;
  for (size_t s = 0; s < sum.inputs.size(); ++s) {
    const comm::Source& source = sum.sources->all[s];
    if (source.rank != comm_.rank()) continue;
    Rounding& rounding = roundings_[bucket]->subtrees[subtree++];
    if (source.present) sections.push_back(rounding.round(sum.inputs[s]));
  }
  Tensors sends;
  for (int rank = 0; rank < comm_.world(); ++rank) {
    const comm::ElementRange slice = slice_of(which, rank, comm_.world());
    Tensors slices = {torch::empty({0}, on_wire_)};
    for (const torch::Tensor& section : sections)
      slices.push_back(section.narrow(0, slice.begin - which.begin, slice.size()));
    sends.push_back(slices.size() == 2 ? slices[1] : torch::cat(slices));
  }
  return sends;
}

// Returns this worker's slice of the rounded subtrees of all workers, by rank.
RoundedSums::Tensors RoundedSums::get_slices(size_t bucket, const comm::SlicedSum& sum, int64_t step) {
  const comm::ElementRange slice = slice_of(buckets_.all[bucket], comm_.rank(), comm_.world());
  std::vector<int64_t> sizes(static_cast<size_t>(comm_.world()), 0);
  for (const comm::Source& source : sum.sources->all) {
    if (source.present) sizes[static_cast<size_t>(source.rank)] += slice.size();
  }
  Tensors received;
  for (const int64_t size : sizes) received.push_back(torch::empty({size}, on_wire_));
  comm_.all_to_all_uneven(received, to_send(bucket, sum), {.what = "gradients", .step = step});
  return received;
}

torch::Tensor RoundedSums::add_slices(const Bucket& bucket, const comm::SlicedSum& sum,
                                      const Tensors& received) const {
  comm::Reduction reduction = sum.reduction;
  reduction.count = slice_of(bucket, comm_.rank(), comm_.world()).size();
  Tensors exact;
  for (const torch::Tensor& tensor : received) exact.push_back(tensor.to(comm::scalar_type(reduction.type)));
  Tensors inputs;
  std::vector<int64_t> taken(received.size(), 0);
  for (const comm::Source& source : sum.sources->all) {
    const auto rank = static_cast<size_t>(source.rank);
    inputs.push_back(source.present ? exact[rank].narrow(0, reduction.count * taken[rank]++, reduction.count)
                                    : torch::Tensor());
  }
  const torch::Tensor result =
      torch::empty({reduction.count}, on_wire_.dtype(comm::scalar_type(reduction.type)));
  comm::reduce_tensors(inputs, result, reduction, sum.sources->program);
  return result;
}

void RoundedSums::hand_out(size_t bucket, const comm::SlicedSum& sum, const torch::Tensor& slice,
                           int64_t step) {
  const Bucket& which = buckets_.all[bucket];
  if (sum.scatters()) {
    sum.outputs[0].copy_(slice);
    return;
  }
  Tensors rounded;
  for (int rank = 0; rank < comm_.world(); ++rank)
    rounded.push_back(torch::empty({slice_of(which, rank, comm_.world()).size()}, on_wire_));
  comm_.all_gather_uneven(rounded, roundings_[bucket]->sum.round(slice),
                          {.what = "the sum of gradients", .step = step});
  sum.outputs[0].copy_(torch::cat(rounded));
}

void RoundedSums::add(size_t bucket, const comm::SlicedSum& sum, int64_t step) {
  const Tensors received = get_slices(bucket, sum, step);
  hand_out(bucket, sum, add_slices(buckets_.all[bucket], sum, received), step);
}

// Calls visit(rounding, section) for each Rounding, with the part of the residuals that belongs to it.
template <class Self, class Visit>
void RoundedSums::for_each_rounding(Self& self, const Residuals& residuals, const Visit& visit) {
  for (size_t b = 0; b < self.buckets_.all.size(); ++b) {
    auto& roundings = self.roundings_[b];
    if (!roundings) continue;
    const Bucket& bucket = self.buckets_.all[b];
    for (size_t i = 0; i < residuals.subtrees.size() && i < roundings->subtrees.size(); ++i)
      visit(roundings->subtrees[i], elements_of(residuals.subtrees[i][bucket.vector], bucket.range()));
    const comm::ElementRange own = slice_of(bucket, self.comm_.rank(), self.comm_.world());
    visit(roundings->sum, elements_of(residuals.sums[bucket.vector], own));
  }
}

Residuals RoundedSums::residuals() const {
  const auto zeros = [&] {
    Tensors vectors;
    for (const torch::Tensor& vector : buckets_.vectors) vectors.push_back(torch::zeros_like(vector));
    return vectors;
  };
  Residuals all{.subtrees = {}, .sums = zeros()};
  for (size_t i = 0; i < most_subtrees_; ++i) all.subtrees.push_back(zeros());
  for_each_rounding(*this, all, [](const Rounding& rounding, const torch::Tensor& section) {
    if (rounding.lost().defined()) section.copy_(rounding.lost());
  });
  return all;
}

void RoundedSums::set_residuals(const Residuals& residuals) {
  for_each_rounding(*this, residuals, [](Rounding& rounding, const torch::Tensor& section) {
    rounding.set_lost(section.clone());
  });
}

}  // namespace tutti

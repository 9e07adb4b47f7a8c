#include <optional>
#include <utility>

#include <fmt/format.h>
#include <torch/utils.h>

#include "tutti/base/type_name.h"
#include "tutti/comm/reduce_on_device.h"
#include "tutti/params/summation/over_network.h"
#include "tutti/params/summation/rounding.h"
#include "tutti/params/summation/summation.h"

namespace tutti {
namespace {

using Tensors = std::vector<torch::Tensor>;

std::byte* bytes_of(const torch::Tensor& vector) { return static_cast<std::byte*>(vector.data_ptr()); }

class ByExchange final : public Summation {
 public:
  ByExchange(comm::Communicator& comm, const Buckets& buckets, const ControlWord& word,
             const SummationOptions& options);

  std::string name() const override {
    if (options_.wire == torch::ScalarType::Undefined) return "tree";
    return fmt::format("tree, {} on the wire", type_name(options_.wire));
  }
  bool overlaps() const override { return true; }
  torch::Tensor word() override { return own_word_; }
  Tensors words(int64_t step) override { return gather_words(comm_, own_word_, step); }
  void add(size_t bucket, const Subtrees& subtrees, double divisor, int64_t step) override;
  std::optional<Residuals> residuals() const override;
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

  bool is_rounded(const Bucket& bucket) const;
  torch::TensorOptions on_wire(const Bucket& bucket) const;
  Tensors to_send(size_t bucket, const Subtrees& subtrees);
  Tensors get_parts(size_t bucket, const Subtrees& subtrees, int64_t step);
  torch::Tensor add_parts(const Bucket& bucket, const Tensors& received, double divisor) const;
  void hand_out(size_t bucket, const torch::Tensor& sum, int64_t step);
  torch::Tensor own_part(const Bucket& bucket, const Tensors& vectors) const;

  comm::Communicator& comm_;
  const Buckets& buckets_;
  const ControlWord& word_;
  const SummationOptions options_;
  const bool on_device_;       // data is sent from the device of the vectors
  const torch::Device place_;  // the device on which sums are computed
  const torch::Tensor own_word_;
  std::vector<std::optional<Roundings>> roundings_;  // [bucket]
};

ByExchange::ByExchange(comm::Communicator& comm, const Buckets& buckets, const ControlWord& word,
                       const SummationOptions& options)
    : comm_(comm),
      buckets_(buckets),
      word_(word),
      options_(options),
      on_device_(comm.on_device(buckets.vectors.front())),
      place_(on_device_ ? buckets.vectors.front().device() : torch::Device(torch::kCPU)),
      own_word_(torch::zeros({word.size()}, torch::kDouble)) {
  const Rounding rounding(options.wire, options.error_feedback);
  for (const Bucket& bucket : buckets.all) {
    const std::vector<Rounding> one_each(word.most_subtrees(), rounding);
    roundings_.push_back(is_rounded(bucket) ? std::optional(Roundings{one_each, rounding}) : std::nullopt);
  }
}

bool ByExchange::is_rounded(const Bucket& bucket) const {
  return bucket.gradients && options_.wire != torch::ScalarType::Undefined &&
         c10::elementSize(options_.wire) < c10::elementSize(buckets_.vectors[bucket.vector].scalar_type());
}

torch::TensorOptions ByExchange::on_wire(const Bucket& bucket) const {
  const auto type = is_rounded(bucket) ? options_.wire : buckets_.vectors[bucket.vector].scalar_type();
  return torch::TensorOptions().dtype(type).device(place_);
}

// Returns, for each worker, its part of all subtrees, concatenated.
Tensors ByExchange::to_send(size_t bucket, const Subtrees& subtrees) {
  const Bucket& which = buckets_.all[bucket];
  Tensors stretches;
  for (size_t i = 0; i < subtrees.size(); ++i) {
    if (!subtrees[i].values) continue;
    const torch::Tensor& exact = (*subtrees[i].values)[0];
    stretches.push_back(roundings_[bucket] ? roundings_[bucket]->subtrees[i].round(exact) : exact);
  }
  Tensors sends;
  for (int rank = 0; rank < comm_.world(); ++rank) {
    const comm::Slice part = part_of(which, rank, comm_.world());
    Tensors pieces;
    for (const torch::Tensor& stretch : stretches)
      pieces.push_back(stretch.narrow(0, part.begin - which.begin, part.end - part.begin));
    sends.push_back(pieces.empty()       ? torch::empty({0}, on_wire(which))
                    : pieces.size() == 1 ? pieces[0]
                                         : torch::cat(pieces));
  }
  return sends;
}

// Returns this worker's part of the subtrees of all workers, by rank.
Tensors ByExchange::get_parts(size_t bucket, const Subtrees& subtrees, int64_t step) {
  const Bucket& which = buckets_.all[bucket];
  const comm::Slice part = part_of(which, comm_.rank(), comm_.world());
  std::vector<int64_t> sizes(static_cast<size_t>(comm_.world()), 0);
  for (size_t s = 0; s < word_.sources().size(); ++s) {
    if (word_.present(s)) sizes[static_cast<size_t>(word_.sources()[s].rank)] += part.end - part.begin;
  }
  Tensors received;
  for (const int64_t size : sizes) received.push_back(torch::empty({size}, on_wire(which)));
  comm_.all_to_all_uneven(received, to_send(bucket, subtrees), {.what = "gradients", .step = step});
  return received;
}

torch::Tensor ByExchange::add_parts(const Bucket& bucket, const Tensors& received, double divisor) const {
  const torch::ScalarType type = buckets_.vectors[bucket.vector].scalar_type();
  const comm::Slice part = part_of(bucket, comm_.rank(), comm_.world());
  const int64_t size = part.end - part.begin;
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
  for (const torch::Tensor& input : inputs) from.push_back(input.defined() ? bytes_of(input) : nullptr);
  const torch::Tensor sum = torch::empty({size}, torch::TensorOptions().dtype(type));
  std::byte* output = bytes_of(sum);
  comm::reduce(from, {&output, 1}, reduction, word_.program());
  return sum;
}

void ByExchange::hand_out(size_t bucket, const torch::Tensor& sum, int64_t step) {
  const Bucket& which = buckets_.all[bucket];
  const comm::Options options{.what = "the sum of gradients", .step = step};
  const Tensors parts = parts_of(which, buckets_.vectors[which.vector], comm_.world());
  if (options_.scatter && which.gradients) {
    parts[static_cast<size_t>(comm_.rank())].copy_(sum);
    return;
  }
  if (!roundings_[bucket]) {
    comm_.all_gather_uneven(parts, sum, options);
    return;
  }
  Tensors rounded;
  for (const torch::Tensor& part : parts) rounded.push_back(torch::empty({part.numel()}, on_wire(which)));
  comm_.all_gather_uneven(rounded, roundings_[bucket]->sum.round(sum), options);
  for (size_t r = 0; r < parts.size(); ++r) parts[r].copy_(rounded[r]);
}

void ByExchange::add(size_t bucket, const Subtrees& subtrees, double divisor, int64_t step) {
  const Tensors received = get_parts(bucket, subtrees, step);
  hand_out(bucket, add_parts(buckets_.all[bucket], received, divisor), step);
}

std::optional<Residuals> ByExchange::residuals() const {
  if (options_.wire == torch::ScalarType::Undefined || !options_.error_feedback) return std::nullopt;
  const auto zeros = [&] {
    Tensors vectors;
    for (const torch::Tensor& vector : buckets_.vectors) vectors.push_back(torch::zeros_like(vector));
    return vectors;
  };
  Residuals all{.subtrees = {}, .sums = zeros()};
  for (size_t i = 0; i < word_.most_subtrees(); ++i) all.subtrees.push_back(zeros());
  for (size_t b = 0; b < buckets_.all.size(); ++b) {
    if (!roundings_[b]) continue;
    const Bucket& bucket = buckets_.all[b];
    for (size_t i = 0; i < roundings_[b]->subtrees.size(); ++i) {
      if (const torch::Tensor& lost = roundings_[b]->subtrees[i].lost(); lost.defined())
        all.subtrees[i][bucket.vector].narrow(0, bucket.begin, bucket.end - bucket.begin).copy_(lost);
    }
    if (const torch::Tensor& lost = roundings_[b]->sum.lost(); lost.defined())
      own_part(bucket, all.sums).copy_(lost);
  }
  return all;
}

void ByExchange::set_residuals(const Residuals& residuals) {
  for (size_t b = 0; b < buckets_.all.size(); ++b) {
    if (!roundings_[b]) continue;
    const Bucket& bucket = buckets_.all[b];
    for (size_t i = 0; i < residuals.subtrees.size() && i < roundings_[b]->subtrees.size(); ++i) {
      const torch::Tensor& vector = residuals.subtrees[i][bucket.vector];
      roundings_[b]->subtrees[i].set_lost(
          vector.narrow(0, bucket.begin, bucket.end - bucket.begin).to(place_).clone());
    }
    roundings_[b]->sum.set_lost(own_part(bucket, residuals.sums).to(place_).clone());
  }
}

// Returns this worker's part of a bucket, in vectors as long as those of the buckets.
torch::Tensor ByExchange::own_part(const Bucket& bucket, const Tensors& vectors) const {
  const comm::Slice part = part_of(bucket, comm_.rank(), comm_.world());
  return vectors[bucket.vector].narrow(0, part.begin, part.end - part.begin);
}

}  // namespace

std::unique_ptr<Summation> sum_by_exchange(comm::Communicator& comm, const Buckets& buckets,
                                           const ControlWord& word, const SummationOptions& options) {
  return std::make_unique<ByExchange>(comm, buckets, word, options);
}

}  // namespace tutti

#include <utility>

#include "tutti/params/summation/summation.h"

namespace tutti {
namespace {

using Tensors = std::vector<torch::Tensor>;

class InMemory final : public Summation {
 public:
  InMemory(comm::Communicator& comm, const Buckets& buckets, const ControlWord& word,
           const SummationOptions& options)
      : comm_(comm),
        shared_(*comm.shared()),
        buckets_(buckets),
        word_(word),
        options_(options),
        words_(shared_.everyones(shared_.allocate(word.size(), torch::kDouble))),
        inputs_(shared_, buckets, word) {}

  std::string name() const override { return "tree"; }
  bool overlaps() const override { return false; }
  void show(size_t bucket, const Subtrees& subtrees) override {
    inputs_.show(buckets_.all[bucket], subtrees);
  }
  Tensors words(const torch::Tensor& own, int64_t step) override {
    words_[static_cast<size_t>(comm_.rank())].copy_(own);
    shared_.sync({.what = "gradients", .step = step});
    return words_;
  }
  void add(size_t bucket, const Subtrees& subtrees, double divisor, int64_t step) override;
  void end(int64_t step) override { shared_.sync({.what = "the sum of gradients", .step = step}); }
  void spread(const Tensors& vectors, int64_t step) override;

 private:
  comm::Communicator& comm_;
  comm::SharedVectors& shared_;
  const Buckets& buckets_;
  const ControlWord& word_;
  const SummationOptions options_;
  Tensors words_;  // [rank]
  const SharedInputs inputs_;
};

void InMemory::add(size_t bucket, const Subtrees& /*subtrees*/, double divisor, int64_t /*step*/) {
  const Bucket& which = buckets_.all[bucket];
  const comm::Slice part = part_of(which, comm_.rank(), comm_.world());
  const bool scatter = options_.scatter && which.gradients;
  comm::reduce(
      inputs_.inputs(which.vector, part.begin),
      inputs_.outputs(which.vector, part.begin, scatter ? std::optional(comm_.rank()) : std::nullopt),
      sum_of(buckets_.vectors[which.vector].scalar_type(), part.size(), divisor), word_.program());
}

void InMemory::spread(const Tensors& vectors, int64_t step) {
  for (const Bucket& bucket : buckets_.all) {
    if (bucket.gradients)
      copy_to_all(shared_.everyones(vectors[bucket.vector]), comm_.rank(),
                  part_of(bucket, comm_.rank(), comm_.world()));
  }
  shared_.sync({.what = "the parameters", .step = step});
}

}  // namespace

SharedInputs::SharedInputs(comm::SharedVectors& shared, const Buckets& buckets, const ControlWord& word,
                           int first_rank) {
  const auto sources = word.sources();
  for (const torch::Tensor& tensor : buckets.vectors) {
    Vector vector;
    vector.everyones = shared.everyones(tensor);
    std::vector<Tensors> everyones_extras;
    for (size_t i = 0; i + 1 < word.most_subtrees(); ++i) {
      vector.extras.push_back(shared.allocate(tensor.numel(), tensor.scalar_type()));
      everyones_extras.push_back(shared.everyones(vector.extras.back()));
    }
    for (size_t s = 0; s < sources.size(); ++s) {
      if (sources[s].rank < first_rank) continue;
      const auto rank = static_cast<size_t>(sources[s].rank - first_rank);
      if (rank >= vector.everyones.size()) break;
      const bool last = s + 1 == sources.size() || sources[s + 1].rank != sources[s].rank;
      vector.inputs.push_back(last ? vector.everyones[rank] : everyones_extras[sources[s].subtree][rank]);
    }
    vectors_.push_back(std::move(vector));
  }
}

void SharedInputs::show(const Bucket& bucket, const Subtrees& subtrees) const {
  for (size_t i = 0; i + 1 < subtrees.size(); ++i) {
    if (subtrees[i].values)
      stretch_of(vectors_[bucket.vector].extras[i], bucket.slice()).copy_((*subtrees[i].values)[0]);
  }
}

std::vector<const std::byte*> SharedInputs::inputs(size_t vector, int64_t element) const {
  std::vector<const std::byte*> inputs;
  for (const torch::Tensor& input : vectors_[vector].inputs) inputs.push_back(bytes_at(input, element));
  return inputs;
}

std::vector<std::byte*> SharedInputs::outputs(size_t vector, int64_t element, std::optional<int> only) const {
  std::vector<std::byte*> outputs;
  const Tensors& all = everyones(vector);
  for (size_t r = 0; r < all.size(); ++r) {
    if (!only || *only == static_cast<int>(r)) outputs.push_back(bytes_at(all[r], element));
  }
  return outputs;
}

void copy_to_all(const Tensors& everyones, int from, const comm::Slice& slice) {
  const torch::Tensor values = stretch_of(everyones[static_cast<size_t>(from)], slice);
  for (size_t r = 0; r < everyones.size(); ++r) {
    if (r != static_cast<size_t>(from)) stretch_of(everyones[r], slice).copy_(values);
  }
}

std::unique_ptr<Summation> sum_in_memory(comm::Communicator& comm, const Buckets& buckets,
                                         const ControlWord& word, const SummationOptions& options) {
  return std::make_unique<InMemory>(comm, buckets, word, options);
}

}  // namespace tutti

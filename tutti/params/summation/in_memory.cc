#include <utility>

#include "tutti/params/summation/summation.h"

namespace tutti {
namespace {

using Tensors = std::vector<torch::Tensor>;

std::byte* bytes_at(const torch::Tensor& vector, int64_t element) {
  return static_cast<std::byte*>(vector.data_ptr()) + element * static_cast<int64_t>(vector.element_size());
}

class InMemory final : public Summation {
 public:
  InMemory(comm::Communicator& comm, const Buckets& buckets, const ControlWord& word,
           const SummationOptions& options);

  std::string name() const override { return "tree"; }
  bool overlaps() const override { return false; }
  void show(size_t bucket, const Subtrees& subtrees) override;
  torch::Tensor word() override { return words_[static_cast<size_t>(comm_.rank())]; }
  Tensors words(int64_t step) override;
  void add(size_t bucket, const Subtrees& subtrees, double divisor, int64_t step) override;
  void end(int64_t step) override { shared_.sync({.what = "the sum of gradients", .step = step}); }
  void spread(const Tensors& vectors, int64_t step) override;

 private:
  // A vector and everything that is added to it.
  struct Vector {
    Tensors extras;   // [subtree] of this worker, all but the last
    Tensors inputs;   // [source]
    Tensors outputs;  // [rank]
  };
  Vector show_vector(const torch::Tensor& vector);

  comm::Communicator& comm_;
  comm::SharedVectors& shared_;
  const Buckets& buckets_;
  const ControlWord& word_;
  const SummationOptions options_;
  Tensors words_;  // [rank]
  std::vector<Vector> vectors_;
};

InMemory::InMemory(comm::Communicator& comm, const Buckets& buckets, const ControlWord& word,
                   const SummationOptions& options)
    : comm_(comm),
      shared_(*comm.shared()),
      buckets_(buckets),
      word_(word),
      options_(options),
      words_(shared_.everyones(shared_.allocate(word.size(), torch::kDouble))) {
  for (const torch::Tensor& vector : buckets.vectors) vectors_.push_back(show_vector(vector));
}

InMemory::Vector InMemory::show_vector(const torch::Tensor& vector) {
  Vector result;
  result.outputs = shared_.everyones(vector);
  std::vector<Tensors> everyones_extras;
  for (size_t i = 0; i + 1 < word_.most_subtrees(); ++i) {
    result.extras.push_back(shared_.allocate(vector.numel(), vector.scalar_type()));
    everyones_extras.push_back(shared_.everyones(result.extras.back()));
  }
  const auto sources = word_.sources();
  for (size_t s = 0; s < sources.size(); ++s) {
    const auto rank = static_cast<size_t>(sources[s].rank);
    const bool last = s + 1 == sources.size() || sources[s + 1].rank != sources[s].rank;
    result.inputs.push_back(last ? result.outputs[rank] : everyones_extras[sources[s].subtree][rank]);
  }
  return result;
}

void InMemory::show(size_t bucket, const Subtrees& subtrees) {
  const Bucket& which = buckets_.all[bucket];
  for (size_t i = 0; i + 1 < subtrees.size(); ++i) {
    if (!subtrees[i].values) continue;
    vectors_[which.vector]
        .extras[i]
        .narrow(0, which.begin, which.end - which.begin)
        .copy_((*subtrees[i].values)[0]);
  }
}

Tensors InMemory::words(int64_t step) {
  shared_.sync({.what = "gradients", .step = step});
  return words_;
}

void InMemory::add(size_t bucket, const Subtrees& /*subtrees*/, double divisor, int64_t /*step*/) {
  const Bucket& which = buckets_.all[bucket];
  const Vector& vector = vectors_[which.vector];
  const comm::Slice part = part_of(which, comm_.rank(), comm_.world());
  const bool scatter = options_.scatter && which.gradients;
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
  for (const torch::Tensor& input : vector.inputs) inputs.push_back(bytes_at(input, part.begin));
  for (size_t r = 0; r < vector.outputs.size(); ++r) {
    if (!scatter || static_cast<int>(r) == comm_.rank())
      outputs.push_back(bytes_at(vector.outputs[r], part.begin));
  }
  const torch::ScalarType type = vector.outputs.front().scalar_type();
  comm::reduce(inputs, outputs, {type, comm::ReduceOp::Sum, part.end - part.begin, divisor}, word_.program());
}

void InMemory::spread(const Tensors& vectors, int64_t step) {
  const auto me = static_cast<size_t>(comm_.rank());
  for (const Bucket& bucket : buckets_.all) {
    if (!bucket.gradients) continue;
    const comm::Slice part = part_of(bucket, comm_.rank(), comm_.world());
    const Tensors everyones = shared_.everyones(vectors[bucket.vector]);
    const torch::Tensor mine = everyones[me].narrow(0, part.begin, part.end - part.begin);
    for (size_t r = 0; r < everyones.size(); ++r) {
      if (r != me) everyones[r].narrow(0, part.begin, part.end - part.begin).copy_(mine);
    }
  }
  shared_.sync({.what = "the parameters", .step = step});
}

}  // namespace

std::unique_ptr<Summation> sum_in_memory(comm::Communicator& comm, const Buckets& buckets,
                                         const ControlWord& word, const SummationOptions& options) {
  return std::make_unique<InMemory>(comm, buckets, word, options);
}

}  // namespace tutti

#include "tutti/params/summation/shared_inputs.h"
#include "tutti/params/summation/summation.h"

namespace tutti {
namespace {

using Tensors = std::vector<torch::Tensor>;

class InMemory final : public Summation {
 public:
  InMemory(comm::Communicator& comm, const Buckets& buckets, const ControlWord& word,
           const SummationOptions& options);

  std::string name() const override { return "tree"; }
  bool overlaps() const override { return false; }
  void show(size_t bucket, const Subtrees& subtrees) override {
    inputs_.show(buckets_.all[bucket], subtrees);
  }
  torch::Tensor word() override { return words_[static_cast<size_t>(comm_.rank())]; }
  Tensors words(int64_t step) override;
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

InMemory::InMemory(comm::Communicator& comm, const Buckets& buckets, const ControlWord& word,
                   const SummationOptions& options)
    : comm_(comm),
      shared_(*comm.shared()),
      buckets_(buckets),
      word_(word),
      options_(options),
      words_(shared_.everyones(shared_.allocate(word.size(), torch::kDouble))),
      inputs_(shared_, buckets, word, 0, word.sources().size(), 0) {}

Tensors InMemory::words(int64_t step) {
  shared_.sync({.what = "gradients", .step = step});
  return words_;
}

void InMemory::add(size_t bucket, const Subtrees& /*subtrees*/, double divisor, int64_t /*step*/) {
  const Bucket& which = buckets_.all[bucket];
  const Tensors& everyones = inputs_.everyones(which.vector);
  const comm::Slice part = part_of(which, comm_.rank(), comm_.world());
  const bool scatter = options_.scatter && which.gradients;
  std::vector<std::byte*> outputs;
  for (size_t r = 0; r < everyones.size(); ++r) {
    if (!scatter || static_cast<int>(r) == comm_.rank())
      outputs.push_back(bytes_at(everyones[r], part.begin));
  }
  comm::reduce(inputs_.inputs(which.vector, part.begin), outputs,
               sum_of(everyones.front().scalar_type(), part.end - part.begin, divisor), word_.program());
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

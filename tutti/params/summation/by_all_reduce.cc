#include "tutti/comm/reduce_on_device.h"
#include "tutti/params/summation/over_network.h"
#include "tutti/params/summation/summation.h"

namespace tutti {
namespace {

class ByAllReduce final : public Summation {
 public:
  ByAllReduce(comm::Communicator& comm, const Buckets& buckets, const ControlWord& word)
      : comm_(comm), buckets_(buckets), own_word_(torch::zeros({word.size()}, torch::kDouble)) {}

  std::string name() const override { return "fast"; }
  bool overlaps() const override {
    return comm_.shared() == nullptr || comm_.on_device(buckets_.vectors.front());
  }
  torch::Tensor word() override { return own_word_; }

  std::vector<torch::Tensor> words(int64_t step) override { return gather_words(comm_, own_word_, step); }

  void add(size_t bucket, const Subtrees& subtrees, double divisor, int64_t step) override {
    const torch::Tensor stretch = buckets_.stretch(buckets_.all[bucket]);
    if (subtrees.empty() || !subtrees.back().values) stretch.zero_();
    comm_.all_reduce(stretch, comm::ReduceOp::Sum, {.any_order = true, .what = "gradients", .step = step});
    if (divisor != 0) comm::divide(stretch, divisor);
  }

  void spread(const std::vector<torch::Tensor>& vectors, int64_t step) override {
    spread_over_network(comm_, buckets_, vectors, step);
  }

 private:
  comm::Communicator& comm_;
  const Buckets& buckets_;
  const torch::Tensor own_word_;
};

}  // namespace

std::unique_ptr<Summation> sum_by_all_reduce(comm::Communicator& comm, const Buckets& buckets,
                                             const ControlWord& word) {
  return std::make_unique<ByAllReduce>(comm, buckets, word);
}

}  // namespace tutti

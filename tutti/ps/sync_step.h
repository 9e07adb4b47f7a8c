#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <torch/types.h>

#include "tutti/embedding/owned_rows.h"
#include "tutti/params/control_word.h"
#include "tutti/params/lane_sum.h"
#include "tutti/params/optimizer.h"
#include "tutti/rpc/message.h"

namespace tutti::ps {

struct SyncOptions {
  int workers = 1;
  int64_t lanes = 1;
  embedding::OwnedRows* rows = nullptr;  // of sharded tables, trained in the same steps; may be null
};

// One synchronous step of a server that holds the parameters or a part of them: collects the gradients of all
// workers' lanes, adds them along the tree over the lanes, divides by the number of all examples and updates
// the part. The result has the same bits as with every other strategy.
//
// A worker's message consists of its control word; for each of its subtrees that has data, the stretches of
// the part and then the buffers, if this server has any; the counters if it has any data; and the gradients
// of rows (append_rows). Not thread-safe.
class SyncStep {
 public:
  // The optimiser belongs to the stretches and must outlive this object. `buffers` are averaged over the
  // lanes; `counters` are copied from a worker that had data.
  SyncStep(std::vector<Stretch> stretches, Optimizer& optimizer, std::vector<torch::Tensor> buffers,
           std::vector<torch::Tensor> counters, const SyncOptions& options);

  // Stores a worker's message, which has to stay where it is, until add_up() or withdraw(). A message of the
  // wrong form throws InvalidArgument and changes nothing.
  void offer(int rank, int64_t step, const rpc::Message& message);
  void withdraw(int rank) { offers_[static_cast<size_t>(rank)].reset(); }
  // Returns the size of an offer of this worker if all of its subtrees have data.
  size_t bytes_of_offer(int rank) const;
  bool has(int rank) const { return offers_[static_cast<size_t>(rank)].has_value(); }
  int64_t offers() const;

  // Computes the mean gradient from the offers and discards them. A worker without an offer had no data.
  struct Result {
    ReduceOutcome outcome;
    int64_t examples = 0;
    torch::Tensor loss_sum = {};  // over all examples, float64; undefined without examples
    torch::Tensor words = {};     // of all workers, concatenated
  };
  Result add_up(int64_t step);
  // Updates the part with that gradient times the factor. Does nothing if no worker had data.
  void apply(double factor);

 private:
  struct Offer {
    torch::Tensor word;
    std::vector<std::vector<torch::Tensor>> subtrees;  // [subtree]: gradients, buffers; empty without data
    std::vector<torch::Tensor> counters;
    std::vector<embedding::RowSumsView> rows;  // [table]; refer to the message
  };

  torch::Tensor word_of(int rank, int64_t step) const;
  void add(const torch::Tensor& numbers);
  void add_one(size_t index, const torch::Tensor& output, double divisor);
  void add_rows(int64_t step, int64_t examples);

  const std::vector<Stretch> stretches_;
  Optimizer& optimizer_;
  const std::vector<torch::Tensor> buffers_;
  const std::vector<torch::Tensor> counters_;
  const bool one_lane_;
  const std::vector<LaneRange> blocks_;  // [rank]
  const int64_t lanes_;
  embedding::OwnedRows* const rows_;
  std::vector<torch::Tensor> summed_;  // gradients, then buffers
  ControlWord word_;
  std::vector<std::optional<Offer>> offers_;  // [rank]
  bool any_data_ = false;                     // in the last add_up()
};

}  // namespace tutti::ps

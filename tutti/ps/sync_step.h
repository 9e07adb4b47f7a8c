#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/embedding/owned_rows.h"
#include "tutti/params/optimizer.h"
#include "tutti/ps/wire.h"
#include "tutti/rpc/message.h"
#include "tutti/step/control_word.h"
#include "tutti/step/lane_sum.h"

namespace tutti::ps {

struct SyncOptions {
  int workers = 1;
  int64_t lanes = 1;
  embedding::OwnedRows* rows = nullptr;  // of sharded tables, trained in the same steps; may be null
  std::function<std::string(int rank)> name_of = {};  // for errors; empty: "rank 1"
  bool had_data = false;                              // in a step that was added up before
};

// One synchronous step of a server that holds the parameters or a part of them: collects the gradients of all
// workers' lanes, adds them along the tree over the lanes, divides by the number of all examples and updates
// the part. The result has the same bits as with every other strategy.
//
// A worker's message consists of its control word; the gradients, segment by segment, each from those
// subtrees of the worker that have data; the buffers of these subtrees, if this server has any; the counters
// if the worker has any data; and the gradients of rows (append_rows). It is offered in the same parts, so
// that a segment can be added up and released as soon as all workers have offered it.
//
// Not thread-safe, but the read methods may be called while another thread calls any method.
class SyncStep {
 public:
  // How many segments of a worker may wait for segments of the others.
  static constexpr size_t kAhead = 4;
  // The end of a worker's message.
  struct Rest {
    std::vector<std::vector<torch::Tensor>> buffers;  // [subtree]; empty without data
    std::vector<torch::Tensor> counters;
    embedding::RowGradients rows;
  };

  // The optimiser updates the sections, and must outlive this object. `buffers` are averaged over the
  // lanes; `counters` are copied from a worker that had data.
  SyncStep(std::vector<Section> sections, Optimizer& optimizer, std::vector<torch::Tensor> buffers,
           std::vector<torch::Tensor> counters, const SyncOptions& options);

  // Returns the same step for another number of workers, to which nobody has offered anything. A sum that was
  // made and not applied stays.
  SyncStep with_workers(int workers) const;

  size_t segments() const { return segments_.size(); }

  // Read the parts of a worker's message, in this order. A message of the wrong form throws InvalidArgument.
  torch::Tensor read_control_word(Reader& reader) const;
  std::vector<rpc::Piece> read_segment(int rank, const torch::Tensor& control_word, size_t segment,
                                       Reader& reader) const;
  Rest read_rest(int rank, const torch::Tensor& control_word, const Json& head, Reader& reader) const;

  // Offer these parts. A worker that was replaced during a step may offer them again: segments that have been
  // added are then ignored. The new control word must have as many examples as the old one. `row_bytes` is
  // the memory of this process that the gradients of rows will take.
  void offer_control_word(int rank, int64_t step, const torch::Tensor& control_word, size_t row_bytes = 0);
  void offer(int rank, size_t segment, std::vector<rpc::Piece> of_subtrees);
  void offer_rest(int rank, Rest rest);
  // Reads and offers a whole message, which has to stay where it is until add_up() or withdraw().
  void offer(int rank, int64_t step, const rpc::Message& message);
  // Discards the parts that a worker has offered and that have not been added.
  void withdraw(int rank);
  void withdraw_all();

  // Returns false while this segment has to wait for the workers that are behind.
  bool has_room_for(size_t segment) const { return segment < added_ + kAhead; }
  // Returns true if the next segment to be added lacks this worker's part.
  bool awaits(int rank) const;
  // Returns true if the worker has offered everything.
  bool has(int rank) const;
  int64_t offers() const;
  // Returns the size of a whole offer, or of the parts of it that wait for others, if all of this worker's
  // subtrees have data.
  size_t bytes_of_offer(int rank) const;
  size_t bytes_ahead(int rank) const;
  // Returns the memory that the gradients of rows take in this process until the step is added up.
  size_t row_bytes() const;

  // Adds the segments that all workers have offered. Returns true if there were any.
  bool add_offered(int64_t step);
  // Computes the mean gradient from the offers and discards them. Like add_offered(), throws InvalidArgument
  // that names the worker whose gradients are not finite, if its control word says so. A worker that has not
  // offered everything counts as one without data, which is possible only if no segment has been added.
  struct Result {
    ReduceOutcome outcome;
    int64_t examples = 0;
    torch::Tensor loss_sum = {};       // over all examples, float64; undefined without examples
    torch::Tensor control_words = {};  // of all workers, concatenated
  };
  Result add_up(int64_t step);
  // Returns true if a worker had data in the last add_up().
  bool had_data() const { return had_data_; }
  // Updates the part with that gradient times the factor. Does nothing if no worker had data.
  void apply(double factor);

 private:
  struct Offer {
    std::vector<std::vector<rpc::Piece>> segments;  // [segment][subtree], until they are added
    std::optional<Rest> rest;
    size_t row_bytes = 0;
    std::vector<embedding::RowSumsView> rows;  // [table]; refer to the memory of `rest`
  };

  bool has_any_data(int rank, const torch::Tensor& control_word) const;
  void require_same_examples(int rank, const torch::Tensor& control_word) const;
  ReduceOutcome read_control_words(int64_t step);
  void add_segment();
  void add_buffers();
  void add_rows(int64_t step);
  void add(std::vector<const std::byte*> inputs, std::byte* output, const comm::Reduction& reduction) const;

  const std::vector<Section> sections_;
  Optimizer& optimizer_;
  const std::vector<torch::Tensor> gradients_;  // of the sections
  const std::vector<torch::Tensor> buffers_;
  const std::vector<torch::Tensor> counters_;
  const std::vector<Segment> segments_;
  const bool one_lane_;
  const std::vector<LaneRange> ranges_;  // [rank]
  const int64_t lanes_;
  embedding::OwnedRows* const rows_;
  const std::function<std::string(int rank)> name_of_;
  ControlWord control_;
  const std::vector<size_t> subtrees_;        // [rank]: their number
  std::vector<torch::Tensor> control_words_;  // [rank]; undefined: the worker has offered none
  std::vector<std::optional<Offer>> offers_;  // [rank]
  torch::Tensor numbers_;  // of all control words together, once the first segment is added
  size_t added_ = 0;       // the number of segments that have been added
  bool had_data_;
};

}  // namespace tutti::ps

#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <torch/types.h>

#include "tutti/comm/communicator.h"
#include "tutti/comm/reduce.h"
#include "tutti/params/tree_sum.h"

namespace tutti {

// Adds what the lanes of a step give, over all workers: TreeSum for the lanes of this one, and the upper part
// of the same tree across them. So the sums have the same bits whoever has which lanes, and whatever carries
// them.
//
// Each worker adds one slice of every vector and hands it to all. Where the workers share memory (the
// vectors, then, come from SharedVectors), it reads the others' slices where they lie and writes the sum back
// there.
//
// Beside the vectors there are a few float64 numbers, such as the loss and the count of examples, which every
// worker adds for itself. Not thread-safe.
class Reducer {
 public:
  // What every worker knows after a step.
  struct Outcome {
    bool any_data = false;        // else the vectors hold nothing
    bool data_everywhere = true;  // every worker with lanes had data in one of them
    int first_with_data = 0;      // the lowest rank that had
    int64_t stop = 0;             // the largest that any worker gave
  };

  // The communicator outlives the reducer. Every worker makes one, with vectors of the same sizes.
  Reducer(comm::Communicator& comm, TreeSum::Vectors vectors, torch::Tensor numbers, int64_t lanes);

  LaneRange block() const { return block_; }
  // As in TreeSum: the vectors and the numbers hold what the next lane gives, or it has no data.
  void add() { sum_.add(); }
  void skip() { sum_.skip(); }

  // After the last lane of this worker. The sums of all lanes are then in the vectors and numbers of every
  // worker. All have to be at the same step, else InvalidArgument.
  // Each vector is divided by what `divisor` says, once the numbers are known; by nothing where it is empty.
  using Divisor = std::function<double(size_t vector, const torch::Tensor& numbers)>;
  Outcome finish(int64_t step, int64_t stop, const Divisor& divisor = {});

 private:
  using Tensors = std::vector<torch::Tensor>;
  // What a worker sends of itself before the sums are made: step, stop, and of each of its subtrees whether
  // there is anything in it, and its numbers.
  static constexpr int64_t kHead = 2;

  // The inputs that one vector has, all workers' subtrees in lane order; or the slice of them that is added
  // here.
  struct Source {
    int rank;
    size_t subtree;  // of that rank
  };

  void keep_extras(const std::vector<TreeSum::Subtree>& subtrees);
  void write_word(int64_t step, int64_t stop, const std::vector<TreeSum::Subtree>& subtrees);
  Tensors exchange_words(int64_t step);
  Outcome read_words(const Tensors& words, int64_t step);
  torch::Tensor add_numbers(const Tensors& words);
  void divide(const Divisor& divisor);
  void add_in_place(size_t vector, double divisor);
  void add_by_exchange(size_t vector, double divisor, int64_t step,
                       const std::vector<TreeSum::Subtree>& subtrees);
  int64_t word_size() const;

  comm::Communicator& comm_;
  comm::SharedVectors* const shared_;  // null: the vectors are exchanged
  const TreeSum::Vectors vectors_;
  const torch::Tensor numbers_;
  const int64_t lanes_;
  const LaneRange block_;
  TreeSum sum_;
  std::vector<comm::Node> nodes_;  // of all workers, in lane order
  std::vector<Source> sources_;    // beside them
  size_t most_subtrees_ = 0;       // of one worker
  torch::Tensor word_;
  // Where the subtrees but the last of a worker are put for the others to read: [vector][subtree].
  std::vector<Tensors> extras_;
  // Where they share memory: [vector][source], everybody's.
  std::vector<Tensors> inputs_;
  std::vector<Tensors> outputs_;  // [vector][rank]
  Tensors words_;                 // [rank]
  comm::Program program_;         // of this step
};

}  // namespace tutti

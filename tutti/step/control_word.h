#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <torch/types.h>

#include "tutti/comm/sliced_sum.h"
#include "tutti/params/optimizer.h"
#include "tutti/step/tree_sum.h"

namespace tutti {

// Requests of one worker to all workers. Every worker fulfils the requests of all.
struct Wishes {
  bool stop = false;  // the training is complete after this step
  bool save = false;  // to write a checkpoint after this step
  int signal = 0;     // to stop after this step because of this signal, and to go on in another run; 0: none
  bool change = false;  // to go on with other workers after this step (comm::Epochs)
  int leaving = 0;      // how many of these workers do so without the others

  bool end_training() const { return stop || signal != 0; }
  void add(const Wishes& other);
};

// What a worker says of the gradients that it sends. It also says Finite if they are not known yet, and
// without --nan-guard.
enum class Gradients { Finite, NotFinite };

// The facts about a step that every worker knows once it has received the control words of all workers.
struct ReduceOutcome {
  bool any_data = false;        // false: nothing was summed
  bool data_everywhere = true;  // every worker has lanes, and had data in one of them
  int first_with_data = 0;      // the lowest rank that had data, if any had
  int not_finite = -1;          // the lowest rank whose gradients are not finite; -1: there is none
  Wishes wishes;
};

// The message that each worker sends at every step before the sums are made: its step, wishes and learning
// rate, whether its gradients are finite, and for each sum that it holds whether there is data and a few
// float64 numbers, such as the loss and the count of examples. From all words, every worker derives the order
// in which sums are added.
class ControlWord {
 public:
  // One of the sums that a worker holds.
  struct Source {
    int rank;
    size_t subtree;  // index among the subtrees of that rank
  };

  // `ranges` are the leaves of each rank, in rank order and without gaps, of a tree with `leaves` leaves.
  ControlWord(std::span<const LaneRange> ranges, int64_t leaves, int64_t numbers);

  int64_t size() const;
  // The largest number of sums that one worker holds.
  size_t most_subtrees() const { return most_subtrees_; }
  // The sources of all workers, in the order of their leaves.
  std::span<const Source> sources() const { return sources_; }
  // The sources and the order in which they are added. After read(), sources without data are not present.
  const comm::Sources& order() const { return order_; }

  // Writes this worker's word. In each subtree, the last vector holds the numbers of that sum.
  // `learning_rate` is the one that this worker uses, or kNoRate.
  void write(const torch::Tensor& word, int64_t step, const Wishes& wishes, double learning_rate,
             const std::vector<TreeSum::Subtree>& subtrees, Gradients gradients = Gradients::Finite) const;
  // Returns the word of a worker none of whose lanes had data.
  torch::Tensor without_data(int64_t step) const;
  // Accessors for the contents of a word.
  int64_t step_of(const torch::Tensor& word) const;
  bool has_data(const torch::Tensor& word, size_t subtree) const;
  std::span<const double> numbers_of(const torch::Tensor& word, size_t subtree) const;

  // Reads the words of all workers, which are in rank order. Throws the same InvalidArgument on all workers
  // if they are not at the same step or use different learning rates.
  ReduceOutcome read(const std::vector<torch::Tensor>& words);
  // Returns the numbers of all sums added together.
  torch::Tensor sum_numbers(const std::vector<torch::Tensor>& words) const;

 private:
  int64_t place_of(size_t subtree) const;

  const int64_t numbers_;
  std::vector<Source> sources_;
  comm::Sources order_;  // parallel to sources_
  size_t most_subtrees_ = 0;
};

}  // namespace tutti

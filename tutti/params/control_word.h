#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <torch/types.h>

#include "tutti/comm/reduce.h"
#include "tutti/params/tree_sum.h"

namespace tutti {

// What a worker asks of all others; they all do what the one asks that asks for most.
struct Wishes {
  int64_t stop = 0;   // to stop after this step; the larger, the better the reason
  bool save = false;  // to write a checkpoint after this step
};

// What every worker knows of a step once it has heard from all.
struct ReduceOutcome {
  bool any_data = false;        // else nothing was summed
  bool data_everywhere = true;  // every worker with lanes had data in one of them
  int first_with_data = 0;      // the lowest rank that had
  Wishes wishes;
};

// What travels with every step before the sums are made: each worker's step and wishes, whether there is
// anything in each of the sums it holds, and a few float64 numbers of each, such as the loss and the count of
// examples. From it everybody knows in which order the sums become one.
class ControlWord {
 public:
  // A sum that some worker holds.
  struct Source {
    int rank;
    size_t subtree;  // of that rank
  };

  // `blocks` are the leaves of each rank, in rank order and without gaps, of a tree of so many leaves.
  ControlWord(std::span<const LaneRange> blocks, int64_t leaves, int64_t numbers);

  int64_t size() const;
  // The most that one worker holds.
  size_t most_subtrees() const { return most_subtrees_; }
  // Of all workers, in the order of their leaves.
  std::span<const Source> sources() const { return sources_; }
  // Known from read() on: whether there is anything in this source, and the order of the sums.
  bool present(size_t source) const { return nodes_[source].present; }
  const comm::Program& program() const { return program_; }
  // The sources as nodes of the tree.
  std::span<const comm::Node> nodes() const { return nodes_; }
  int64_t leaves() const { return leaves_; }

  // `subtrees` hold the numbers of this worker's sums as the last of their vectors.
  void write(const torch::Tensor& word, int64_t step, const Wishes& wishes,
             const std::vector<TreeSum::Subtree>& subtrees) const;
  // That of a worker none of whose lanes had data.
  torch::Tensor without_data(int64_t step) const;
  // What a word says.
  int64_t step_of(const torch::Tensor& word) const;
  bool has_data(const torch::Tensor& word, size_t subtree) const;

  // All workers' words, by rank. InvalidArgument, alike on all, where they are not at one step.
  ReduceOutcome read(const std::vector<torch::Tensor>& words);
  // The numbers of all sums in one.
  torch::Tensor sum_numbers(const std::vector<torch::Tensor>& words) const;

 private:
  int64_t place_of(size_t subtree) const;

  const int64_t leaves_;
  const int64_t numbers_;
  std::vector<comm::Node> nodes_;  // beside the sources
  std::vector<Source> sources_;
  size_t most_subtrees_ = 0;
  comm::Program program_;
};

}  // namespace tutti

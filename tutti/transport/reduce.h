#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tutti/transport/array.h"
#include "tutti/transport/operation.h"

namespace tutti::comm {

// A node of the binary tree that fixes the order of all sums over lanes or ranks, so that their bits do not
// depend on the number of workers. Node (level, i) covers the existing leaves of [i << level, (i + 1) <<
// level). It is the sum of its two children; the right child may cover no leaves.
struct TreeNode {
  int level;
  int64_t index;
};

inline TreeNode parent_of(const TreeNode& node) { return {node.level + 1, node.index / 2}; }
inline int64_t first_leaf(const TreeNode& node) { return node.index << node.level; }
// One past the last leaf below a node of a tree with so many leaves.
inline int64_t end_of_leaves(const TreeNode& node, int64_t leaves) {
  return std::min(leaves, (node.index + 1) << node.level);
}

// Joins the last of the nodes, which are in the order of their leaves, with its sibling, then their parent
// with its sibling, and so on, as far as all leaves below the parent are in [begin, end): those that have
// come. A child that is not among the nodes has no data and is left out, so that its sibling takes the
// parent's place unchanged. Does not touch nodes before nodes[first]. Node has a TreeNode `place`; join(left,
// right) adds the last node to the one before it.
template <class Node, class Join>
void join_complete(std::vector<Node>& nodes, size_t first, int64_t begin, int64_t end, int64_t leaves,
                   const Join& join) {
  while (nodes.size() > first) {
    const TreeNode last = nodes.back().place;
    const TreeNode parent = parent_of(last);
    const bool is_root = first_leaf(last) == 0 && end_of_leaves(last, leaves) == leaves;
    if (is_root || first_leaf(parent) < begin || end_of_leaves(parent, leaves) > end) return;
    if (nodes.size() > first + 1) {
      Node& left = nodes[nodes.size() - 2];
      if (first_leaf(left.place) >= first_leaf(parent)) {
        join(left, nodes.back());
        nodes.pop_back();
      }
    }
    nodes.back().place = parent;
  }
}

// Returns the slice of `count` elements that one of `world` ranks computes; aligned to cache lines.
ElementRange slice_of(int64_t count, int rank, int world);
// Returns the slices of all ranks.
std::vector<ElementRange> even_slices(int64_t count, int world);

// Throws InvalidArgument if the reduction is not supported, such as the average of integers.
void require_reducible(ElementType type, ReduceOp op);

// The order in which inputs are combined, as a program for a stack machine: a number pushes that input, and
// kCombine replaces the two topmost values by their combination.
using Program = std::vector<int>;
inline constexpr int kCombine = -1;

// A node of the tree whose value a rank holds. `present` is false if the node has no value.
struct Source {
  TreeNode place;
  int rank;
  bool present = true;
};

// Joins sources, given in the order of their leaves and without gaps, along the tree as far as possible.
// Source i is input i. Returns the resulting nodes; `program` computes each, and is empty if no source below
// is present.
struct Root {
  TreeNode place;
  Program program;
};
std::vector<Root> roots_of(std::span<const Source> sources, int64_t leaves);

// The sources of a sum, in the order of their leaves and of their ranks, and how they are added. Together
// they cover all leaves of the tree. Sums take one input for each source.
struct Sources {
  std::vector<Source> all;
  int64_t leaves;
  Program program;   // empty if no source is present
  bool one_by_rank;  // rank i has leaf i, and nothing else
};
Sources sources_of(std::vector<Source> all, int64_t leaves);
// Returns the sources of a sum over one value of each rank.
Sources one_by_rank(int world);

// Combines `inputs` element by element, and writes the result to each of `outputs`, which may be among the
// inputs. Half precision is added in float32 and rounded once (but see Reduction::round_each). Uses plain
// loops, which give the same bits on every machine.
void reduce(std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs,
            const Reduction& reduction, const Program& program);

// Returns the type in which elements of this type are added: float32 for half precision, else the same type.
ElementType sum_type(ElementType type);

// Converts `count` elements between a type and the type in which its elements are added, in either direction,
// with the rounding of reduce(). Copies them if it is the same type.
void convert(const std::byte* from, ElementType type_from, std::byte* to, ElementType type_to, int64_t count);

// A sum, or another reduction, of the values of any number of sources. Every rank computes a slice of it. All
// ranks pass the same, except for their values: arrays, or tensors (comm/sliced_sum.h).
template <class Values>
struct SumOf {
  Reduction reduction;     // `count` is the number of elements of each input
  const Sources* sources;  // must outlive the operation
  // By source: where this rank can read its values; none where it cannot. A rank can always read its
  // own values.
  std::vector<Values> inputs;
  // Receive the result. The first belongs to this rank; it may be one of the inputs, or this rank's slice of
  // it, but may not overlap them otherwise.
  std::vector<Values> outputs;
  // By rank, in their order and without gaps: each rank receives only this slice of the result, in an output
  // that is as long. Empty: all ranks receive the whole result.
  std::vector<ElementRange> slices = {};
  // The ranks of a host read each other's inputs, and write to each other's outputs: all are in memory that
  // they share, `inputs` has an entry for each source of the host, and `outputs` one for each rank of it
  // (unless slices are given). After the inputs were written, the ranks of a host have to meet before they
  // call this.
  bool shared = false;

  bool scatters() const { return !slices.empty(); }
  // Returns the slice that each rank computes.
  std::vector<ElementRange> slices_of(int world) const {
    return scatters() ? slices : even_slices(reduction.count, world);
  }
  // Returns true if it is an all-reduce of one value per rank.
  bool is_all_reduce(int world) const {
    return !scatters() && sources->one_by_rank && sources->leaves == world;
  }
};

using ArraySum = SumOf<Array>;

}  // namespace tutti::comm

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

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

}  // namespace tutti::comm

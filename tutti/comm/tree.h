#pragma once

#include <cstdint>

namespace tutti::comm {

// A node of the binary tree that fixes the order of all sums over lanes or ranks, so that their bits do not
// depend on the number of workers. Node (level, i) covers the existing leaves of [i << level, (i + 1) <<
// level). It is the sum of its two children; the right child may cover no leaves.
struct TreeNode {
  int level;
  int64_t index;
};

enum class Move {
  Stay,        // it is the root, or its sibling is yet to come
  Rise,        // its parent has no other child
  JoinAndRise  // its sibling is the one that waits: together they form their parent
};

// Returns what to do with a new node. Nodes come in the order of their leaves, `waiting` is the last node
// that stayed (or null), and `leaves` is the number of leaves of the tree.
inline Move next_move(const TreeNode& node, const TreeNode* waiting, int64_t leaves) {
  const int64_t on_level = (leaves + (int64_t{1} << node.level) - 1) >> node.level;
  if (on_level == 1) return Move::Stay;
  if (node.index % 2 == 0) return node.index + 1 == on_level ? Move::Rise : Move::Stay;
  const bool sibling = waiting != nullptr && waiting->level == node.level && waiting->index == node.index - 1;
  return sibling ? Move::JoinAndRise : Move::Stay;
}

inline TreeNode parent_of(const TreeNode& node) { return {node.level + 1, node.index / 2}; }

}  // namespace tutti::comm

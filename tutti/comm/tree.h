#pragma once

#include <cstdint>

namespace tutti::comm {

// A node of the one tree along which everything is added (DESIGN 3): (level, i) covers those of the leaves
// [i << level, (i + 1) << level) that exist, and is the sum of its two children, of which the right one may
// cover none.
struct TreeNode {
  int level;
  int64_t index;
};

enum class Move {
  Stay,        // the root, or one whose sibling has yet to come
  Rise,        // its parent has no other child
  JoinAndRise  // its sibling is the one that waits: together they are their parent
};

// What becomes of a node that has just been made, where nodes come in the order of their leaves, `waiting` is
// the last that stayed (or null), and there are so many leaves.
inline Move next_move(const TreeNode& node, const TreeNode* waiting, int64_t leaves) {
  const int64_t on_level = (leaves + (int64_t{1} << node.level) - 1) >> node.level;
  if (on_level == 1) return Move::Stay;
  if (node.index % 2 == 0) return node.index + 1 == on_level ? Move::Rise : Move::Stay;
  const bool sibling = waiting != nullptr && waiting->level == node.level && waiting->index == node.index - 1;
  return sibling ? Move::JoinAndRise : Move::Stay;
}

inline TreeNode parent_of(const TreeNode& node) { return {node.level + 1, node.index / 2}; }

}  // namespace tutti::comm

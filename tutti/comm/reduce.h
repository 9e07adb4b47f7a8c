#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <c10/core/ScalarType.h>

#include "tutti/comm/communicator.h"
#include "tutti/comm/tree.h"

namespace tutti::comm {

// How `count` elements of one type become one.
struct Reduction {
  c10::ScalarType type;
  ReduceOp op;
  int64_t count;
  // What the result, when it has been rounded to its type, is divided by; 0: by nothing. For floating types.
  double divisor = 0;
  // What the average is of, where inputs are themselves sums; 0: of the inputs.
  int64_t parts = 0;
  // Half precision is rounded whenever two have been combined, and not only at the end: so it makes no
  // difference which of the combinations are made elsewhere.
  bool round_each = false;
};

// The part of `count` elements that one of `world` ranks looks after; ends on cache lines.
struct Slice {
  int64_t begin;
  int64_t end;
};
Slice slice_of(int64_t count, int rank, int world);

// Whether there is such a thing: not the average of whole numbers. Else InvalidArgument.
void require_reducible(c10::ScalarType type, ReduceOp op);

// In which order inputs are combined, as for a machine with a stack: a number is the input that is put on it,
// kCombine replaces the two on top by what they make.
using Program = std::vector<int>;
inline constexpr int kCombine = -1;

// A node of the tree, and whether there is anything in it.
struct Node {
  TreeNode place;
  bool present;
};

// What nodes without gaps between them, in the order of their leaves, become along the tree: so many nodes
// further up, and how each is made. Node i is input i. An empty program where none of them is present.
struct Root {
  TreeNode place;
  Program program;
};
std::vector<Root> roots_of(std::span<const Node> nodes, int64_t leaves);

// The same of nodes that cover all leaves: one root.
Program program_of(std::span<const Node> nodes, int64_t leaves);

// All of so many inputs along the tree over their index.
Program tree_program(size_t inputs);

// Combines `inputs` element by element, and writes the result to every one of `outputs`, which may be among
// the inputs. Half precision is added in float32 and rounded once (or Reduction::round_each). Plain loops,
// with the same bits on every machine.
void reduce(std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs,
            const Reduction& reduction, const Program& program);

}  // namespace tutti::comm

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <c10/core/ScalarType.h>

#include "tutti/comm/communicator.h"
#include "tutti/comm/tree.h"

namespace tutti::comm {

// How inputs of `count` elements of one type are combined, element by element.
struct Reduction {
  c10::ScalarType type;
  ReduceOp op;
  int64_t count;
  // Divides the result, after it was rounded to its type; 0: no division. Only for floating-point types, and
  // for half precision only with `round_each`: else a result of several hosts would not be rounded before.
  double divisor = 0;
  // The number of values to average over if the inputs are themselves sums; 0: the number of inputs.
  int64_t parts = 0;
  // Rounds half precision after every combination of two values, and not only at the end. Then the result
  // does not depend on which of the combinations are made elsewhere.
  bool round_each = false;
};

// The part of `count` elements that one of `world` ranks is responsible for; aligned to cache lines.
struct Slice {
  int64_t begin;
  int64_t end;

  int64_t size() const { return end - begin; }
};
Slice slice_of(int64_t count, int rank, int world);
// Returns the slices of all ranks.
std::vector<Slice> even_slices(int64_t count, int world);

// Throws InvalidArgument if the reduction is not supported, such as the average of integers.
void require_reducible(c10::ScalarType type, ReduceOp op);

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
c10::ScalarType sum_type(c10::ScalarType type);

// Converts `count` elements between a type and the type in which its elements are added, in either direction,
// with the rounding of reduce(). Copies them if it is the same type.
void convert(const std::byte* from, c10::ScalarType type_from, std::byte* to, c10::ScalarType type_to,
             int64_t count);

}  // namespace tutti::comm

#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tutti/base/timeline.h"
#include "tutti/transport/array.h"

namespace tutti::comm {

// For booleans, Sum means "any" and Product means "all". Average supports only floating-point types, and
// those of bits only integers and booleans.
enum class ReduceOp { Sum, Average, Min, Max, Product, BitAnd, BitOr, BitXor };

// The place where an operation runs.
enum class Run {
  Here,    // in the calling thread: the call returns when it is done, or throws
  Behind,  // in a thread of the communicator: the call returns at once
};

// Options of every operation.
struct Options {
  std::chrono::milliseconds timeout{0};  // 0: the communicator's
  Run run = Run::Here;                   // or Behind, with which the call returns at once
  bool any_order = false;  // sums may be added in the fastest order, so that the bits may differ
  // For error messages: what is moved, and in which step. The text must outlive the operation.
  const char* what = "";
  int64_t step = -1;  // -1: no step
};

// How inputs of `count` elements of one type are combined, element by element.
struct Reduction {
  ElementType type;
  ReduceOp op;
  int64_t count;
  // Divides the result, after it was rounded to its type; 0: no division. Only for floating-point types, and
  // for half precision only with `round_each`: else a result of several hosts would not be rounded before.
  double divisor = 0;
  // The number of values to average over if the inputs are themselves sums; 0: the number of inputs.
  int64_t parts = 0;
  // Rounds half precision after every combination of two values, and not only at the end. Then the result
  // does not depend on which values are combined elsewhere.
  bool round_each = false;
};

// The peer of a recv from any rank.
inline constexpr int kAnyRank = -2;

// The operation in progress and its deadline.
struct Operation {
  const char* name;  // "all_reduce"
  const char* what;
  int64_t step;
  std::chrono::steady_clock::time_point deadline;
  std::chrono::milliseconds timeout;
  Timeline* timeline = nullptr;  // records the operation
  // All that is combined or moved, on which all ranks must agree; its count is -1 if that may differ.
  std::optional<Reduction> whole = {};
  int root = -1;           // of a broadcast, gather or scatter
  int peer = -1;           // of a send or recv: the other rank, or kAnyRank
  int tag = 0;             // likewise
  bool any_order = false;  // a sum may be added in any order
};

// Returns an operation that begins now. Its timeout is `options.timeout`, or `usual` if that is 0.
Operation operation_of(const char* name, const Options& options, std::chrono::milliseconds usual,
                       Timeline* timeline = nullptr);

// Returns a copy of the operation with this `whole` and root.
inline Operation with_whole(Operation operation, const Reduction& whole, int root = -1) {
  operation.whole = whole;
  operation.root = root;
  return operation;
}

// Hashes what all ranks must agree on: the operation's name and root, and the element type, count and
// reduction.
uint64_t key_of(const Operation& operation);

// An operation in words that can be copied between ranks, for error messages.
struct OperationLabel {
  explicit OperationLabel(const Operation& operation);
  OperationLabel() = default;
  std::string text() const;
  std::string elements() const;  // "1000 float32"

  char name[24];
  char what[56];
  int64_t step;
  int64_t count;  // of the `whole`
  int32_t type;   // likewise; -1: there is none
  int32_t op;
  int32_t root;  // -1: there is none
  int32_t peer;  // likewise
  int32_t tag;   // of a message
};

// Returns the error text for two ranks that call different operations.
std::string different_operations(const std::string& who, const OperationLabel& label,
                                 const std::string& other, const OperationLabel& theirs);

// The end of error texts about sizes.
inline constexpr std::string_view kSameEverywhere = ": every rank has to give the same root and sizes";

// Returns the error text for a message that is not what the receiver expects; "" if it is.
std::string other_message(const std::string& receiver, const OperationLabel& expected,
                          const std::string& sender, const OperationLabel& sent);

// Returns a text such as "all_reduce of gradients at step 118".
std::string describe(const Operation& operation);

// Returns another possible reason why a rank is missing, for error messages: outside steps, programs often
// let only some ranks make a call that all must make. Returns "" in steps, which all ranks begin together.
std::string_view why_not_there(const Operation& operation);

}  // namespace tutti::comm

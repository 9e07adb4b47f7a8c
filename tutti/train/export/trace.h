#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/base/error.h"

namespace torch::jit {
struct Graph;
struct Module;
}  // namespace torch::jit

namespace tutti {

// A function of tensors as a graph of LibTorch's operators.
struct Traced {
  std::shared_ptr<torch::jit::Graph> graph;
  // The operators by which the function has read values of tensors, such as "aten::item". What the program
  // did with the values is not in the graph.
  std::vector<std::string> reads;
};

// Records the operators that a function of C++ calls, for batches with any number of examples. A single trace
// would have the sizes of its example in it: x.view({x.size(0), -1}) is recorded as x.view({32, -1}). So
// there are two traces, with different numbers of examples, which are compared. A whole number that differs
// is a multiple of the number of examples, and a constant, and is computed from the input's size instead.
// Everything else that differs is an InvalidArgument that says what depends on the batch.
//
// `self` has the tensors that the function computes with. Constants with the device of the traces become the
// device of these tensors or inputs, so that the result works on another device as well.
Traced trace_for_any_batch(
    torch::jit::Module& self, const std::vector<std::string>& arguments,
    const std::vector<std::vector<torch::Tensor>>& examples,
    const std::function<std::vector<torch::Tensor>(const std::vector<torch::Tensor>&)>& function);

// Calls `body`. Exceptions of LibTorch become Errors of this kind: "what: why". The messages of TorchScript,
// which contain stack traces, are reduced to the reason.
void or_fail(ErrorKind kind, const std::string& what, const std::function<void()>& body);

}  // namespace tutti

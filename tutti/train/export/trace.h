#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/base/error.h"
#include "tutti/train/export/format.h"

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

// Records the operators that a function of C++ calls, for arguments of any sizes (Computation::Size). A
// single trace would have the sizes of its example in it: x.view({x.size(0), -1}) is recorded as x.view({32,
// -1}). So there is a trace for each combination of two values of every size, and the traces are compared. A
// whole number that differs becomes a sum of products of the sizes, each at most once in a product, and is
// computed from the sizes of the inputs instead. Everything else that differs is an InvalidArgument that says
// what depends on which size.
//
// `self` has the tensors that the function computes with. Constants with the device of the traces become the
// device of these tensors or inputs, so that the result works on another device as well.
Traced trace_for_any_sizes(torch::jit::Module& self, const Computation::Function& function);

// Calls `body`. Exceptions of LibTorch become Errors of this kind: "what: why". The messages of TorchScript,
// which contain stack traces, are reduced to the reason.
void or_fail(ErrorKind kind, const std::string& what, const std::function<void()>& body);

}  // namespace tutti

#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/operator_name.h>

namespace tutti::kernels {

// LibTorch's operators on the CPU, by the reason why each one has or has not the same bits everywhere.
// docs/kernels.md shows the list, and a test compares the two.
enum class OperatorKind {
  Ours,          // registered by SameKernels
  Exact,         // LibTorch's kernel, every operation of which IEEE 754 or integer arithmetic defines
  MadeOfOthers,  // has no kernel on the CPU, only one for all devices, which calls other operators
  NotCovered,    // anything else
};

// Operators of one kind that belong together. Names are without namespace and overload, and without the
// underscore of operators that work in place: "add" is also aten::add_.Tensor.
struct OperatorGroup {
  std::string_view topic;
  std::vector<std::string_view> names;
};

std::span<const OperatorGroup> exact_operators();
// Those that a network may well call; the topic says why they are not covered.
std::span<const OperatorGroup> operators_not_covered();

// Returns "add" for aten::add_.Tensor, with aten:: or without.
std::string_view listed_name(std::string_view name);

OperatorKind kind_of(const c10::OperatorName& name);

// Returns why an operator is not covered.
std::string_view why_not_covered(const c10::OperatorName& name);

}  // namespace tutti::kernels

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/TensorBody.h>

namespace tutti::kernels {

// An operator that LibTorch's own kernel has computed while SameKernels lived, although its bits may depend
// on the processor, and the reason.
struct NotCovered {
  std::string name;  // as in the dispatcher: "aten::mm"
  std::string why;
  std::string layer = {};  // the layer of a model whose output it has computed with; "" if that is not known
  int64_t step = -1;       // the step of a training after which it was named; -1: not named yet
};

// Remembers the pair. Thread-safe.
void not_covered(std::string_view name, std::string_view why);

// Returns each pair once, in the order in which they appeared in this process.
std::vector<NotCovered> not_covered_operators();

// Returns those that have not been named yet, which are named now, after this step.
std::vector<NotCovered> name_not_covered(int64_t step);

// Finds the layers of the operators that were called in the forward pass of `loss`, before its backward pass.
// `name_of` returns the name of a parameter of the model: "conv1.weight".
void locate_not_covered(const at::Tensor& loss, const std::function<std::string(const at::Tensor&)>& name_of);

// While one of these lives, each operator that LibTorch calls in this process, in any thread and in backward
// passes too, is looked up in the list of operators (operator_list.h), and remembered if it is not covered.
// No operator may run while one is made or destroyed.
class CoverageCheck {
 public:
  CoverageCheck();
  ~CoverageCheck();
  CoverageCheck(const CoverageCheck&) = delete;
  CoverageCheck& operator=(const CoverageCheck&) = delete;

 private:
  const uint64_t callback_;  // LibTorch's number of it
};

}  // namespace tutti::kernels

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::kernels {

// An operator that LibTorch's own kernel has computed while SameKernels lived, although its bits may depend
// on the processor, and the reason.
struct NotCovered {
  std::string name;  // as in the dispatcher: "aten::mm"
  std::string why;
};

// Remembers the pair. Thread-safe.
void not_covered(std::string_view name, std::string_view why);

// Returns each pair once, in the order in which they appeared in this process.
std::vector<NotCovered> not_covered_operators();

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

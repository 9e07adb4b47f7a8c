#pragma once

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

}  // namespace tutti::kernels

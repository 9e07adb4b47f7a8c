#pragma once

#include <string>
#include <vector>

namespace tutti::kernels {

// While one of these lives, LibTorch's CPU operators in this process are those of this module, which give the
// same bits on every processor and with any number of threads; autograd, autocast and all other parts of
// LibTorch stay as they are, except that oneDNN is switched off, so that LSTM layers are made of these
// operators too, and that operators which are not covered are remembered (coverage.h). docs/kernels.md has
// the list. Thread-safe; no operator may run while the first one is made
// or the last one destroyed.
class SameKernels {
 public:
  // Changes with the bits that these operators give.
  static constexpr int kVersion = 1;

  SameKernels();
  ~SameKernels();
  SameKernels(const SameKernels&) = delete;
  SameKernels& operator=(const SameKernels&) = delete;

  // Returns the names of the operators that are replaced now, such as "aten::addmm.out", sorted.
  static std::vector<std::string> operators();
  // Returns true while one of them lives.
  static bool are_in_use();
};

}  // namespace tutti::kernels

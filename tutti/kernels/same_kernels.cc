#include "tutti/kernels/same_kernels.h"

#include <memory>
#include <mutex>

#include <torch/library.h>

#include "tutti/kernels/operators.h"

namespace tutti::kernels {
namespace {

// The operators belong to the process, as LibTorch's dispatcher does.
struct Replaced {
  std::mutex mutex;
  int users = 0;
  std::unique_ptr<torch::Library> library;
};

Replaced& replaced() {
  static Replaced all;
  return all;
}

}  // namespace

SameKernels::SameKernels() {
  Replaced& all = replaced();
  const std::lock_guard lock(all.mutex);
  if (all.users++ > 0) return;
  all.library = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  register_products(*all.library);
}

SameKernels::~SameKernels() {
  Replaced& all = replaced();
  const std::lock_guard lock(all.mutex);
  if (--all.users == 0) all.library.reset();
}

}  // namespace tutti::kernels

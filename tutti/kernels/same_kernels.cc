#include "tutti/kernels/same_kernels.h"

#include <memory>
#include <mutex>

#include <c10/util/Exception.h>
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

std::unique_ptr<torch::Library> replace_operators() {
  // LibTorch warns about the first operator of a process that is replaced. It is to be replaced, so that
  // warning is dropped, in such a way that LibTorch still warns if somebody else replaces one.
  class Drop final : public c10::WarningHandler {
    void process(const c10::Warning& /*warning*/) override {}
  } drop;
  const c10::WarningUtils::WarningHandlerGuard guard(&drop);
  const c10::WarningUtils::WarnAlways not_only_once;
  auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", c10::DispatchKey::CPU,
                                                  __FILE__, __LINE__);
  register_products(*library);
  register_convolutions(*library);
  return library;
}

}  // namespace

SameKernels::SameKernels() {
  Replaced& all = replaced();
  const std::lock_guard lock(all.mutex);
  if (all.users == 0) all.library = replace_operators();
  ++all.users;
}

SameKernels::~SameKernels() {
  Replaced& all = replaced();
  const std::lock_guard lock(all.mutex);
  if (--all.users == 0) all.library.reset();
}

bool SameKernels::are_in_use() {
  Replaced& all = replaced();
  const std::lock_guard lock(all.mutex);
  return all.users > 0;
}

}  // namespace tutti::kernels

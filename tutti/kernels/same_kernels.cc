#include "tutti/kernels/same_kernels.h"

#include <algorithm>
#include <memory>
#include <mutex>

#include <ATen/Context.h>
#include <torch/library.h>

#include "tutti/base/torch_compat.h"
#include "tutti/kernels/coverage.h"
#include "tutti/kernels/operators.h"

namespace tutti::kernels {
namespace {

// The operators belong to the process, as LibTorch's dispatcher does.
struct Replaced {
  std::mutex mutex;
  int users = 0;
  std::unique_ptr<torch::Library> library;
  std::unique_ptr<CoverageCheck> check;
  std::unique_ptr<torch::Library> autograd;
  bool used_onednn = false;
  std::vector<std::string> operators;  // sorted
};

Replaced& replaced() {
  static Replaced all;
  return all;
}

void replace_operators(Replaced& all) {
  // LibTorch warns about the first operator of a process that is replaced. It is to be replaced, so that
  // warning is dropped, in such a way that LibTorch still warns if somebody else replaces one.
  const compat::DroppedWarnings dropped;
  all.library = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", c10::DispatchKey::CPU,
                                                 __FILE__, __LINE__);
  all.autograd = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradCPU,
                                                  __FILE__, __LINE__);
  Registrar registrar(*all.library, *all.autograd);
  register_products(registrar);
  register_convolutions(registrar);
  register_functions(registrar);
  register_random(registrar);
  register_dropout(registrar);
  register_reductions(registrar);
  register_softmax(registrar);
  register_likelihoods(registrar);
  register_layer_norm(registrar);
  register_batch_norm(registrar);
  register_group_norm(registrar);
  register_scatters(registrar);
  register_largest(registrar);
  register_attention(registrar);
  register_recurrent(registrar);
  register_interpolations(registrar);
  register_almost_exact(registrar);
  register_composed(registrar);
  all.operators = registrar.names();
  std::sort(all.operators.begin(), all.operators.end());
}

}  // namespace

SameKernels::SameKernels() {
  Replaced& all = replaced();
  const std::lock_guard lock(all.mutex);
  if (all.users == 0) {
    replace_operators(all);
    // Without oneDNN, LibTorch composes the LSTM layers that are not ours of linear layers and functions of
    // one element. oneDNN would compute all steps of a layer in a kernel of its own.
    all.used_onednn = at::globalContext().userEnabledMkldnn();
    at::globalContext().setUserEnabledMkldnn(false);
  }
  if (all.users++ == 0) all.check = std::make_unique<CoverageCheck>();
}

SameKernels::~SameKernels() {
  Replaced& all = replaced();
  const std::lock_guard lock(all.mutex);
  if (--all.users > 0) return;
  all.check.reset();
  all.library.reset();
  all.autograd.reset();
  at::globalContext().setUserEnabledMkldnn(all.used_onednn);
  all.operators.clear();
}

std::vector<std::string> SameKernels::operators() {
  Replaced& all = replaced();
  const std::lock_guard lock(all.mutex);
  return all.operators;
}

bool SameKernels::are_in_use() {
  Replaced& all = replaced();
  const std::lock_guard lock(all.mutex);
  return all.users > 0;
}

}  // namespace tutti::kernels

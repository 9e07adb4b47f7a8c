#include "tutti/base/error.h"
#include "tutti/comm/nccl/nccl.h"

namespace tutti::comm {
namespace {

[[noreturn]] void nccl_missing() {
  fail(ErrorKind::Unimplemented,
       "this build has no NCCL. NCCL needs a LibTorch with CUDA and the headers that are installed with "
       "PyTorch (docs/libtorch.md). Build again with -DTUTTI_WITH_NCCL=ON, or use --comm auto, so that "
       "tensors go through host memory");
}

}  // namespace

bool nccl_built() { return false; }
std::string gpu_identity(torch::Device) { nccl_missing(); }
std::unique_ptr<OnDevice> nccl_on_device(std::shared_ptr<Rendezvous>, torch::Device, const FailuresOptions&,
                                         std::chrono::milliseconds) {
  nccl_missing();
}

}  // namespace tutti::comm

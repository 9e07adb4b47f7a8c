#include "tutti/base/error.h"
#include "tutti/comm/nccl/nccl.h"

namespace tutti::comm {
namespace {

[[noreturn]] void missing() {
  fail(ErrorKind::Unimplemented,
       "this build has no NCCL. It needs a LibTorch with CUDA and the headers that lie beside PyTorch "
       "(docs/libtorch.md); build again with -DTUTTI_WITH_NCCL=ON, or let the tensors go through the hosts");
}

}  // namespace

bool nccl_built() { return false; }
std::string gpu_identity(torch::Device) { missing(); }
std::unique_ptr<OnDevice> nccl_on_device(std::shared_ptr<Rendezvous>, torch::Device, const BoardOptions&,
                                         std::chrono::milliseconds) {
  missing();
}

}  // namespace tutti::comm

#include "tutti/comm/nccl/nccl.h"

#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/check.h"
#include "tutti/base/deadline.h"
#include "tutti/comm/nccl/board_store.h"
#include "tutti/comm/nccl/c10d_device.h"

// LibTorch was built with this definition, but does not pass it on to programs that use it.
#define USE_C10D_NCCL
#include <ATen/cuda/CUDAContext.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace tutti::comm {
namespace {

using std::chrono::milliseconds;

// `Failures` enforces the deadlines. c10d's own comes this much later, in case it cannot.
constexpr milliseconds kNcclIsLater{60000};

// c10d reads these settings only from the environment, when a group is created. With "blocking wait" it has
// no thread that ends the process when it finds an error: errors are left to the caller that waits. The last
// setting limits how long a call of NCCL waits for other ranks. Variables set by the user are kept.
void leave_errors_to_us(milliseconds timeout) {
  const auto set = [](const char* name, const std::string& value) {
    TUTTI_CHECK(::setenv(name, value.c_str(), 0) == 0, "{}={}", name, value);
  };
  set("TORCH_NCCL_BLOCKING_WAIT", "1");
  set("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0");
  set("TORCH_NCCL_ENABLE_MONITORING", "0");
  set("TORCH_NCCL_NONBLOCKING_TIMEOUT",
      std::to_string(std::chrono::ceil<std::chrono::seconds>(timeout).count()));
}

bool can_add(torch::ScalarType type) {
  switch (type) {
    case torch::kFloat:
    case torch::kDouble:
    case torch::kHalf:
    case torch::kBFloat16:
    case torch::kInt:
    case torch::kLong:
    case torch::kByte:
      return true;
    default:
      return false;
  }
}

}  // namespace

bool nccl_built() { return true; }

// Uses the PCI address, by which NCCL distinguishes GPUs.
std::string gpu_identity(torch::Device gpu) {
  const cudaDeviceProp& properties = *at::cuda::getDeviceProperties(gpu.index());
  return fmt::format("{:04x}:{:02x}:{:02x}", properties.pciDomainID, properties.pciBusID,
                     properties.pciDeviceID);
}

std::unique_ptr<OnDevice> nccl_on_device(std::shared_ptr<Rendezvous> board, torch::Device gpu,
                                         const FailuresOptions& options, milliseconds timeout) {
  leave_errors_to_us(timeout);
  roll_call(*board, options, "", timeout);
  auto settings = c10d::ProcessGroupNCCL::Options::create();
  settings->timeout = std::min(timeout, kLongestWait) + kNcclIsLater;
  settings->config.blocking = 0;  // else a wait for a rank that stops while it connects would never end
  const auto deadline = deadline_after(timeout);
  const auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(
      c10::make_intrusive<BoardStore>(with_prefix(board, "store/"), deadline), options.rank, options.world,
      settings);
  C10dBackend backend{.group = group,
                      .name = "nccl",
                      .takes = [gpu](const torch::Tensor& tensor) { return tensor.device() == gpu; },
                      .adds = can_add,
                      .shut_down = [group] { group->shutdown(); },
                      .abort = [group] { group->abort(); }};
  return c10d_device(with_prefix(board, "failures/"), std::move(backend), gpu, options, timeout);
}

}  // namespace tutti::comm

#include "tutti/comm/nccl/nccl.h"

#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/check.h"
#include "tutti/comm/gloo/table_store.h"
#include "tutti/comm/nccl/c10d_device.h"

// LibTorch has been built with it, but does not say so to others.
#define USE_C10D_NCCL
#include <ATen/cuda/CUDAContext.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace tutti::comm {
namespace {

using std::chrono::milliseconds;

// The board keeps the deadlines. c10d's own comes later, for the case that the board cannot.
constexpr milliseconds kNcclIsLater{60000};

// c10d takes this from the environment alone, and reads it when a group is made. With "blocking wait" it has
// no thread that looks for errors and ends the process when it finds one: that is left to whoever waits. No
// call of NCCL waits for other ranks longer than the last of these says.
void leave_errors_to_us(milliseconds timeout) {
  const auto set = [](const char* name, const std::string& value) {
    TUTTI_CHECK(::setenv(name, value.c_str(), 1) == 0, "{}={}", name, value);
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

// What NCCL tells GPUs apart by.
std::string gpu_identity(torch::Device gpu) {
  const cudaDeviceProp& properties = *at::cuda::getDeviceProperties(gpu.index());
  return fmt::format("{:04x}:{:02x}:{:02x}", properties.pciDomainID, properties.pciBusID,
                     properties.pciDeviceID);
}

std::unique_ptr<OnDevice> nccl_on_device(std::shared_ptr<Rendezvous> table, torch::Device gpu,
                                         const BoardOptions& options, milliseconds timeout) {
  leave_errors_to_us(timeout);
  roll_call(*table, options, "", timeout);
  auto settings = c10d::ProcessGroupNCCL::Options::create();
  settings->timeout = timeout + kNcclIsLater;
  settings->config.blocking = 0;  // else nothing ends a wait for a rank that stops while it connects
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  const auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(
      c10::make_intrusive<TableStore>(with_prefix(table, "store/"), deadline), options.rank, options.world,
      settings);
  C10dBackend backend{.group = group,
                      .name = "nccl",
                      .takes = [gpu](const torch::Tensor& tensor) { return tensor.device() == gpu; },
                      .adds = can_add,
                      .shut_down = [group] { group->shutdown(); },
                      .abort = [group] { group->abort(); }};
  return c10d_device(with_prefix(table, "board/"), std::move(backend), gpu, options, timeout);
}

}  // namespace tutti::comm

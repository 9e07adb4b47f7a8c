#include "tutti/comm/connect.h"

#include <string>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/comm/collectives.h"
#include "tutti/comm/nccl/choice.h"
#include "tutti/comm/nccl/nccl.h"
#include "tutti/transport/connect.h"

namespace tutti::comm {
namespace {

// Returns true if tensors on GPUs are sent directly from GPU to GPU. Throws if --comm nccl is impossible.
bool takes_nccl(const TaskContext& context, const std::string& why_not) {
  const std::string& asked = context.config().network.backend;
  if (asked == "nccl" && !why_not.empty())
    fail(ErrorKind::InvalidArgument, "--comm nccl is not possible: {}. Use --comm auto", why_not);
  return (asked == "nccl" || asked == "auto") && why_not.empty();
}

// With --comm auto, NCCL is used only if it gives the sum that the transport gives.
std::unique_ptr<OnDevice> make_on_device(const TaskContext& context, torch::Device device,
                                         const Roster& roster, Transport& transport) {
  std::string why_not = why_not_nccl(roster.devices);
  std::unique_ptr<OnDevice> on_device;
  if (takes_nccl(context, why_not)) {
    const auto make = [&] {
      return nccl_on_device(with_prefix(roster.board, "nccl/"), device,
                            {.rank = context.rank(),
                             .world = context.world(),
                             .who = roster.who,
                             .holder = roster.who.front(),
                             .silence = timeout_of(context)},
                            timeout_of(context));
    };
    if (context.config().network.backend == "nccl") return make();
    CheckedDevice checked = check_on_device(
        make, device, transport, *with_prefix(roster.board, "nccl-check/"), roster.who, timeout_of(context));
    if (!checked.failure.empty()) why_not = "NCCL has failed its check: " + checked.failure;
    on_device = std::move(checked.on_device);
  }
  if (context.is_chief() && device.is_cuda() && on_device == nullptr)
    context.log().info("gradients go through host memory, not from GPU to GPU: {}",
                       why_not.empty() ? "--comm says so" : why_not);
  return on_device;
}

}  // namespace

std::shared_ptr<Communicator> connect(const Context& context) {
  const torch::Device device = context.device();
  return std::make_shared<Collectives>(connect_ranks(
      context, {.meeting = {.device = device_word(device), .threads = context.threads()},
                .on_device =
                    [device](const TaskContext& task, const Roster& roster, Transport& transport) {
                      return make_on_device(task, device, roster, transport);
                    },
                .kernels = [context] { return context.kernels().lines(); }}));
}

}  // namespace tutti::comm

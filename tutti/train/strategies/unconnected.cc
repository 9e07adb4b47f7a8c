#include "tutti/train/strategies/unconnected.h"

#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "tutti/comm/collectives.h"
#include "tutti/comm/inproc/inproc.h"
#include "tutti/ps/client.h"

namespace tutti {

std::unique_ptr<comm::Communicator> group_of_one() {
  constexpr std::chrono::milliseconds kNobodyIsWaitedFor{1000};
  auto transports = comm::inproc_transports(1, kNobodyIsWaitedFor);
  return std::make_unique<comm::Collectives>(std::move(transports.front()), kNobodyIsWaitedFor);
}

comm::TimelineFileOptions timeline_of_its_own(const Context& context) {
  const std::string& path = context.config().output.timeline;
  return {.path = context.is_chief() ? path : fmt::format("{}.rank{}", path, context.rank()),
          .task = context.task().short_name(),
          .log = context.log()};
}

ReplicaOptions in_arena(ReplicaOptions options, const std::shared_ptr<rpc::Arena>& arena) {
  if (options.device.is_cpu()) options.allocate = ps::arena_allocator(arena);
  return options;
}

}  // namespace tutti

#include "tutti/train/teams/alone.h"

#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "tutti/comm/collectives.h"
#include "tutti/comm/inproc/inproc.h"

namespace tutti {

std::unique_ptr<comm::Communicator> group_of_one() {
  constexpr std::chrono::milliseconds kNobodyIsWaitedFor{1000};
  auto transports = comm::inproc_transports(1, kNobodyIsWaitedFor);
  return std::make_unique<comm::Collectives>(std::move(transports.front()), kNobodyIsWaitedFor);
}

comm::TimelineFileOptions timeline_of_its_own(const Context& context) {
  const std::string& path = context.flags().timeline;
  return {.path = context.is_chief() ? path : fmt::format("{}.rank{}", path, context.rank()),
          .task = context.task().short_name(),
          .log = context.log()};
}

}  // namespace tutti

#include "tutti/comm/group.h"

#include <utility>

#include "tutti/base/error.h"
#include "tutti/cluster/roles.h"
#include "tutti/comm/connect.h"

namespace tutti {
namespace {

void require_colour(int colour) {
  if (colour < 0) fail(ErrorKind::InvalidArgument, "the colour {} of a group must be 0 or more", colour);
}

}  // namespace

Group::Group(std::shared_ptr<comm::Communicator> connected, uint64_t epoch)
    : communicator(std::move(connected)), epoch(epoch) {
  if (!communicator) fail(ErrorKind::InvalidArgument, "a group needs a communicator, but it is null");
  refresh();
}

void Group::refresh() {
  if (!communicator) return;
  const comm::Epochs* const epochs = communicator->epochs();
  rank = communicator->rank();
  world = communicator->world();
  if (epochs == nullptr) return;
  epoch = epochs->number();
  chief = epochs->is_joining() ? -1 : 0;
}

Group Group::unconnected(const Context& context) {
  Group group;
  group.rank = context.rank();
  group.world = context.world();
  group.epoch = context.identity().membership.epoch;
  return group;
}

Group Group::split(int colour) const {
  if (!communicator)
    fail(ErrorKind::InvalidArgument,
         "this group cannot be split by a colour, since its workers are not connected to each other: pass a "
         "function that returns the colour of a rank, or split the group that tutti::connect(context) "
         "returns");
  std::shared_ptr<comm::Communicator> connected = communicator->split(colour);
  require_colour(colour);
  Group group(std::move(connected), epoch);
  const comm::Epochs* const epochs = communicator->epochs();
  if (epochs != nullptr ? epochs->is_joining() : chief < 0) group.chief = -1;
  return group;
}

Group Group::split(const std::function<int(int rank)>& colour_of) const {
  const int mine = colour_of(communicator ? communicator->rank() : rank);
  if (communicator) return split(mine);
  require_colour(mine);
  Group group;
  group.epoch = epoch;
  for (int other = 0; other < world; ++other) {
    if (other == rank) group.rank = static_cast<int>(group.part.size());
    if (colour_of(other) == mine) group.part.push_back(rank_in_job(other));
  }
  group.world = static_cast<int>(group.part.size());
  return group;
}

const std::shared_ptr<comm::Communicator>& Group::connected() const {
  if (!communicator)
    fail(ErrorKind::InvalidArgument,
         "the workers of the group are not connected: use tutti::connect(context), or a part of it");
  return communicator;
}

Group connect(const Context& context) {
  Group group(comm::connect(context), context.identity().membership.epoch);
  if (context.identity().is_evaluator) group.chief = -1;
  return group;
}

bool train_through_servers(const Context& context) {
  const std::string& asked = context.config().training.strategy;
  if (context.identity().is_evaluator) return false;
  return asked.empty() ? has_servers(context.cluster()) : asked == "ps-sync" || asked == "ps-async";
}

Group all_workers(const Context& context) {
  const bool may_change =
      !context.identity().members_board.empty() && context.config().training.strategy == "ps-sync";
  return train_through_servers(context) && !may_change ? Group::unconnected(context) : connect(context);
}

int first_world(const Context& context, const Group& group) {
  const bool may_change = group.communicator && group.communicator->epochs() != nullptr;
  return may_change ? context.world() : group.world;
}

int64_t lanes_for(const Context& context, const Group& group) {
  return context.config().training.lanes > 0 ? context.config().training.lanes : first_world(context, group);
}

}  // namespace tutti

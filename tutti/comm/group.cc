#include "tutti/comm/group.h"

#include <utility>

#include "tutti/base/error.h"
#include "tutti/comm/connect.h"

namespace tutti {

Group::Group(std::shared_ptr<comm::Communicator> connected, uint64_t epoch)
    : communicator(std::move(connected)), epoch(epoch) {
  if (!communicator) fail(ErrorKind::InvalidArgument, "a group needs a communicator, but it is null");
  rank = communicator->rank();
  world = communicator->world();
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
         "this group cannot be split, since its workers are not connected to each other: split the one that "
         "tutti::connect(context) returns");
  std::shared_ptr<comm::Communicator> part = communicator->split(colour);
  if (!part) fail(ErrorKind::InvalidArgument, "the colour {} of a group must be 0 or more", colour);
  Group group(std::move(part), epoch);
  if (chief < 0) group.chief = chief;
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

int64_t lanes_for(const RunConfig& config, int world) {
  return config.training.lanes > 0 ? config.training.lanes : world;
}

}  // namespace tutti

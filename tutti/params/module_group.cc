#include "tutti/params/module_group.h"

#include "tutti/base/error.h"
#include "tutti/comm/uses_communicator.h"

namespace tutti {

std::shared_ptr<comm::Communicator> give_group(const Parameters& parameters, comm::Communicator& comm,
                                               int64_t lanes) {
  if (parameters.communicator_users().empty() || comm.world() == 1) return nullptr;
  const int64_t world = comm.world();
  if (lanes % world != 0) {
    fail(ErrorKind::InvalidArgument,
         "the model has modules that work on all workers together (SyncBatchNorm), so all workers need the "
         "same number of lanes, but there are {} lanes for {} workers. Use --lanes {}, or a number of "
         "workers that divides {}",
         lanes, world, (lanes / world + 1) * world, lanes);
  }
  const std::shared_ptr<comm::Communicator> group = comm.split(0);
  for (const auto& user : parameters.communicator_users()) user->use(group);
  return group;
}

}  // namespace tutti

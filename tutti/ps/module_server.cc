#include "tutti/ps/module_server.h"

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/ps/peer.h"

namespace tutti {

ModuleServer::ModuleServer(const Context& context, const ps::GraphLimits& limits)
    : context_(context),
      address_(ps::fixed_address_of(context, context.task())),
      service_(context.task().short_name(), limits),
      host_(ps::host_at_own_address(context), service_) {}

void ModuleServer::join() {
  context_.log().info("serving modules at {}", address_);
  service_.open();
  service_.await_end(milliseconds_of(context_.config().network.start_timeout));
}

}  // namespace tutti

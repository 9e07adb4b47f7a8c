#include "tutti/ps/server.h"

#include <fmt/format.h>

#include "tutti/base/check.h"
#include "tutti/cluster/roles.h"
#include "tutti/ps/addresses.h"

namespace tutti::ps {
namespace {

const std::string& own_address(const Context& context) {
  const Task& task = context.task();
  TUTTI_CHECK(is_server_job(task.job), "{} is no server", task.short_name());
  return address_of(context.cluster(), task);
}

rpc::HostOptions host_options(const Context& context) {
  return {.address = own_address(context),
          .credentials = rpc::credentials_of(context.flags()),
          .insecure = context.flags().insecure};
}

}  // namespace

Server::Server(const Context& context)
    : context_(context),
      service_(context.log(), std::chrono::ceil<std::chrono::milliseconds>(
                                  std::chrono::duration<double>(context.flags().start_timeout))),
      host_(host_options(context), service_) {}

std::string Server::target() const {
  const std::string& address = own_address(context_);
  return fmt::format("grpc://{}:{}", address.substr(0, address.rfind(':')), host_.port());
}

}  // namespace tutti::ps

#include "tutti/ps/server.h"

#include <utility>

#include <fmt/format.h>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/cluster/roles.h"
#include "tutti/ps/peer.h"

namespace tutti::ps {
namespace {

rpc::HostOptions host_options(const Context& context, Service& service) {
  if (!is_server_job(context.task().job)) {
    fail(ErrorKind::InvalidArgument, "{} is not a parameter server: only tasks of the job 'ps' are",
         context.task().short_name());
  }
  rpc::HostOptions options = host_at_own_address(context);
  options.report = [&service, log = options.report](const std::string& text) {
    log(text);
    service.note_refusal(text);
  };
  return options;
}

}  // namespace

Server::Server(const Context& context, std::vector<ElementwiseOptimizer> optimizers)
    : context_(context),
      service_(context.log(), {.patience = milliseconds_of(context.config().network.start_timeout),
                               .timeout = milliseconds_of(context.config().network.timeout),
                               .optimizers = std::move(optimizers)}),
      host_(host_options(context, service_), service_),
      announcement_(context, host_.port()) {}

std::string Server::target() const {
  const Task& task = context_.task();
  const std::string& address = context_.cluster().address(task.job, task.index);
  return fmt::format("grpc://{}:{}", address.substr(0, address.rfind(':')), host_.port());
}

}  // namespace tutti::ps

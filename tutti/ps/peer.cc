#include "tutti/ps/peer.h"

#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tutti/base/address.h"
#include "tutti/base/error.h"
#include "tutti/base/this_host.h"

namespace tutti::ps {

Json hello_of(const Context& context) {
  return {{"task", context.task().short_name()}, {"host", host_name()}, {"pid", ::getpid()}};
}

std::string name_of(const rpc::Caller& caller) {
  // The content comes from the caller and may be of any type.
  const auto said = [&](const char* key, const char* otherwise) {
    const auto found = caller.hello.find(key);
    if (found == caller.hello.end()) return std::string(otherwise);
    return found->is_string() ? found->get<std::string>() : found->dump();
  };
  return fmt::format("{} (host {}, pid {})", said("task", "somebody"), said("host", "?"), said("pid", "0"));
}

std::string address_of(const Context& context, const Task& task) {
  if (context.cluster().empty())
    fail(ErrorKind::InvalidArgument,
         "{} has no address: the cluster (found through {}) names none. Give --cluster_spec "
         "'worker|a:2222;b:2222', --job_name and --task_index, or a TF_CONFIG",
         task.short_name(), context.identity().source);
  return context.cluster().address(task.job, task.index);
}

std::string fixed_address_of(const Context& context, const Task& task) {
  std::string address = address_of(context, task);
  if (parse_address(address).port == 0) {
    fail(ErrorKind::InvalidArgument,
         "{} serves modules but has port 0 ({} in the cluster), so clients cannot find it: give it a port",
         task.short_name(), address);
  }
  return address;
}

rpc::HostOptions host_at_own_address(const Context& context) {
  return {.address = address_of(context, context.task()),
          .credentials = rpc::credentials_of(context.config()),
          .insecure = context.config().security.insecure,
          .report = [log = context.log()](const std::string& text) { log.warning("{}", text); }};
}

}  // namespace tutti::ps

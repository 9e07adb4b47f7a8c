#include "tutti/ps/addresses.h"

#include "tutti/base/error.h"
#include "tutti/cluster/address.h"

namespace tutti::ps {

const std::string& address_of(const ClusterSpec& cluster, const Task& server) {
  const std::string& address = cluster.address(server.job, server.index);
  if (parse_address(address).port == 0) {
    fail(ErrorKind::InvalidArgument,
         "{} has port 0, which no other task could find ({} in the cluster): give it a port, or let "
         "`tutti run --ps` choose one",
         server.short_name(), address);
  }
  return address;
}

}  // namespace tutti::ps

#pragma once

#include <string>

#include "tutti/cluster/cluster_spec.h"
#include "tutti/cluster/identity.h"

namespace tutti::ps {

// Where a server of the cluster is to be found. InvalidArgument where it has port 0: whoever listens there
// learns which port it has become, and nobody else does.
const std::string& address_of(const ClusterSpec& cluster, const Task& server);

}  // namespace tutti::ps

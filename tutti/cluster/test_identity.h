#pragma once

#include <string>

#include "tutti/cluster/identity.h"
#include "tutti/cluster/roles.h"

namespace tutti {

// For tests: a task of a cluster.
inline Identity identity(const std::string& cluster, const std::string& job, int index) {
  return identity_in(ClusterSpec::parse(cluster), {.job = job, .index = index}, "test");
}

}  // namespace tutti

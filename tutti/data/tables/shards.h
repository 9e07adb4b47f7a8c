#pragma once

#include <string>
#include <vector>

namespace tutti::data {

// The folders in `root`, each of which is a shard: shard2 before shard10. What begins with a dot is none.
// InvalidArgument where there is no such folder, or nothing in it.
std::vector<std::string> shards_in(const std::string& root);

}  // namespace tutti::data

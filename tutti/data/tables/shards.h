#pragma once

#include <string>
#include <vector>

#include "tutti/data/tables/schema.h"

namespace tutti::data {

// The folders in `root`, each of which is a shard: shard2 before shard10. What begins with a dot is none.
// InvalidArgument where there is no such folder, or nothing in it.
std::vector<std::string> shards_in(const std::string& root);

// The file that a shard has of a schema's table `name`. InvalidArgument, which names the shard, where it has
// none.
std::string path_in(const std::string& shard, const std::string& name, const TableFile& table);

}  // namespace tutti::data

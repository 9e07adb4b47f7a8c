#pragma once

#include <string>
#include <vector>

#include "tutti/data/tables/schema.h"

namespace tutti::data {

// Returns the folders in `root`, each of which is a shard, with shard2 before shard10. Ignores names that
// begin with a dot. Throws InvalidArgument if `root` does not exist or has no folders.
std::vector<std::string> shards_in(const std::string& root);

// Returns the path of the file for the schema's table `name`. Throws an InvalidArgument that names the shard
// if it does not exist.
std::string path_in(const std::string& shard, const std::string& name, const TableFile& table);

}  // namespace tutti::data

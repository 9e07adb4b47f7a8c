#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/store/folder_lock.h"

namespace tutti {

// The folders of exported models: DIR/1, DIR/2, ...

inline constexpr const char* kSignatureFile = "signature.json";

// Returns the greatest number of a version in the directory; 0 if there is none.
int64_t newest_version(const std::string& dir);
std::string version_path(const std::string& dir, int64_t version);

// Throws an InvalidArgument if there is this version already; 0 stands for the next number, which is free.
void require_free_version(const std::string& dir, int64_t version);

// Gives a folder the name of its version, and returns the path. Another process may export to the same place
// at the same time.
std::string publish_version(store::TemporaryFolder& written, const std::string& dir, int64_t version);

// Throws an InvalidArgument if an asset does not exist, or if its name leads out of the folder of the assets.
void require_assets(const std::map<std::string, std::string>& assets);
// Copies the assets into the folder of a version.
void copy_assets(const std::map<std::string, std::string>& assets, const std::string& folder);

// Describes each function in signature.json by one line: "forward(image float32[*,1,28,28]) -> prediction
// float32[*,10]", where * is a size that is not fixed.
std::vector<std::string> lines_of_signatures(const Json& signature);

// Returns true if an input has a size that is the same in every call.
bool has_fixed_sizes(const Json& signature);

}  // namespace tutti

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace tutti::store {

inline constexpr const char* kManifestName = "manifest.json";

// What the tensors of a file are to a checkpoint.
inline constexpr const char* kWeightsPart = "weights";
inline constexpr const char* kOptimizerPart = "optimizer";

// One safetensors file of a checkpoint. A part may lie in any number of files, from any number of writers.
struct ManifestFile {
  std::string name;  // within the folder
  std::string part;
  uint64_t bytes = 0;
  uint32_t checksum = 0;  // CRC-32C
};

// The table of contents of a checkpoint's folder. Written last: where it is whole, so is what it lists.
struct Manifest {
  int64_t step = 0;
  int64_t sequence =
      0;  // counts the saves into one log directory: the newest has the greatest, whatever its step
  std::string tutti_version;
  std::string libtorch_version;
  std::vector<ManifestFile> files;
  nlohmann::json state;
};

// On the device when it returns.
void write_manifest(const std::string& path, const Manifest& manifest);

// One flipped bit anywhere in it is a DataLoss; the form of a later Tutti is Unimplemented.
Manifest read_manifest(const std::string& path);

}  // namespace tutti::store

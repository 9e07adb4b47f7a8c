#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/base/progress.h"

namespace tutti::store {

struct Checkpoint;
struct SharedFiles;

inline constexpr const char* kManifestName = "manifest.json";

// The roles of a file's tensors in a checkpoint.
inline constexpr const char* kWeightsPart = "weights";
inline constexpr const char* kOptimizerPart = "optimizer";
inline constexpr const char* kAveragePart = "average";  // the moving average of the weights
inline constexpr const char* kRowsPart = "rows";        // of sharded embedding tables, with their slots

// One safetensors file of a checkpoint. A part may be spread over any number of files and writers.
struct ManifestFile {
  std::string name;  // within the folder
  std::string part;
  uint64_t bytes = 0;
  uint32_t checksum = 0;  // CRC-32C
};

// The table of contents of a checkpoint's folder. It is written last: if it is intact, so are the listed
// files.
struct Manifest {
  int64_t step = 0;
  int64_t sequence =
      0;  // number of the save in the log directory: the newest has the greatest, whatever its step
  std::string tutti_version;
  std::string libtorch_version;
  std::vector<ManifestFile> files;
  nlohmann::json state;
  // An earlier checkpoint in the same directory. This checkpoint has only the changes of these parts since
  // then.
  struct Base {
    int64_t step = 0;
    std::vector<std::string> parts;
  };
  std::optional<Base> base = {};
};

// Returns when the manifest is on the device.
void write_manifest(const std::string& path, const Manifest& manifest);

// Throws DataLoss if any bit has changed, and Unimplemented for the format of a later version of Tutti.
Manifest read_manifest(const std::string& path);

// Writes the files of a checkpoint into a folder, waits for the files of other tasks, and writes the manifest
// last. Returns when all files are on the device. Tells the bytes that are written here.
void write_checkpoint_folder(const std::string& folder, const Checkpoint& checkpoint, int64_t sequence,
                             const SharedFiles& shared, const OnProgress& on_progress = {});

// Reads only the manifest. Throws DataLoss if it is missing or damaged.
Manifest read_folder_manifest(const std::string& folder);

// Returns the name of the folder of the checkpoint of a step: "ckpt-100".
std::string checkpoint_folder_name(int64_t step);

// Reads all listed files and the files of the base, or only the files of `parts` if any are named, and
// verifies sizes and checksums. Throws DataLoss if a file is missing or damaged. Each file is read twice, for
// its checksum and for its tensors: the bytes that are told are the mean of both.
Checkpoint read_checkpoint_folder(const std::string& folder, const std::set<std::string>& parts = {},
                                  const OnProgress& on_progress = {});

}  // namespace tutti::store

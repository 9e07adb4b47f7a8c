#pragma once

#include <cstdint>
#include <string>

#include "tutti/store/checkpoint.h"
#include "tutti/store/manifest.h"

namespace tutti::store {

// Writes the files of a checkpoint into a folder, waits for those that other tasks write, and writes the
// manifest last. Returns when all is on the device.
void write_checkpoint_folder(const std::string& folder, const Checkpoint& checkpoint, int64_t sequence,
                             const CheckpointDir::Shared& shared = {});

// Reads only the manifest. Throws DataLoss if it is missing or damaged.
Manifest read_folder_manifest(const std::string& folder);

// Reads all listed files and verifies sizes and checksums. Throws DataLoss if a file is missing or damaged.
Checkpoint read_checkpoint_folder(const std::string& folder);

}  // namespace tutti::store

#pragma once

#include <cstdint>
#include <string>

#include "tutti/store/checkpoint.h"
#include "tutti/store/manifest.h"

namespace tutti::store {

// Fills an empty folder with the files of a checkpoint, the manifest last, all of it on the device.
void write_checkpoint_folder(const std::string& folder, const Checkpoint& checkpoint, int64_t sequence);

// The manifest alone; DataLoss where it is missing or damaged.
Manifest read_folder_manifest(const std::string& folder);

// Verifies sizes and checksums and reads every listed file; DataLoss where anything is missing or wrong.
Checkpoint read_checkpoint_folder(const std::string& folder);

}  // namespace tutti::store

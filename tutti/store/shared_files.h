#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "tutti/store/manifest.h"
#include "tutti/store/named_tensor.h"

// The files of one part of a checkpoint that several tasks write into the same folder. Each task writes its
// own file and then a record of it; the task that writes the manifest waits for the records.
namespace tutti::store {

// Writes the file of task `writer` (from 0) out of `writers`. Returns when it is on the device.
void write_shared_file(const std::string& folder, const std::string& part, int writer, int writers,
                       const std::vector<NamedTensor>& tensors, int64_t step);

// Waits for the files of all writers and removes their records. Throws Timeout, with the numbers of the tasks
// whose files are missing.
std::vector<ManifestFile> await_shared_files(const std::string& folder, const std::string& part, int writers,
                                             std::chrono::milliseconds timeout);

}  // namespace tutti::store

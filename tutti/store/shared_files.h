#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tutti/store/manifest.h"
#include "tutti/store/safetensors.h"

// A checkpoint may have many writers: the task that writes the manifest makes the folder, other tasks that
// share the folder write their files into it, each followed by a record, and the manifest comes last.
namespace tutti::store {

// A file with a random name in a folder. A task that is told its path and finds it shares the folder. Removed
// by the destructor.
class FolderMark {
 public:
  explicit FolderMark(const std::string& folder);
  ~FolderMark();
  FolderMark(const FolderMark&) = delete;
  FolderMark& operator=(const FolderMark&) = delete;

  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

// Returns the folder of a mark if this task can see the mark and write to the folder, else "".
std::string folder_of_mark(const std::string& mark);

// A file of a checkpoint that another task writes.
struct SharedFile {
  std::string part;    // "optimizer"
  std::string name;    // see shared_file_name()
  std::string writer;  // the task, for errors: "ps/1 (h:2222)"
  // Set to true when the task is known to be lost, so that nobody waits for its file. May be null.
  std::shared_ptr<const std::atomic<bool>> is_lost = {};
};

// Files that other tasks write into the folder of a checkpoint.
struct SharedFiles {
  std::vector<SharedFile> files = {};
  std::chrono::milliseconds timeout{60000};
};

// Returns the name of the file of writer `index` (from 0) out of `count`: "optimizer-2of3.safetensors".
std::string shared_file_name(const std::string& part, int index, int count);

// Writes this task's file, and then a record with its size and checksum. On failure, writes a record of the
// error and throws it; PeerLost if the folder is gone. Returns when the file is on the device.
void write_shared_file(const std::string& folder, const std::string& name, const NamedTensors& tensors,
                       int64_t step, const OnBytes& on_bytes = {});

// Waits for the files of other tasks and removes their records. Throws an error that names the task and its
// file: the error that the task has recorded, a Timeout, PeerLost if the task is lost, or DataLoss if the
// file does not agree with its record, is incomplete, or is of another step. Does not read the tensors:
// reading the checkpoint verifies their checksums.
std::vector<ManifestFile> await_shared_files(const std::string& folder, const SharedFiles& shared,
                                             int64_t step);

}  // namespace tutti::store

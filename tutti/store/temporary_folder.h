#pragma once

#include <string>

#include "tutti/base/file.h"

namespace tutti::store {

// A folder with a unique name in `parent`. It is filled and then renamed to its target; otherwise it is
// removed. It is locked while its process lives, so that others can tell leftovers of dead processes from
// work in progress.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::string& parent);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  void rename_to(const std::string& target);

 private:
  std::string path_;
  FileDescriptor lock_;
};

// Removes a folder atomically: nobody sees a part of it under its name. remove_leftovers() removes later what
// cannot be removed at once.
void remove_folder(const std::string& parent, const std::string& path);

// Removes the temporary folders in `parent` whose processes have ended.
void remove_leftovers(const std::string& parent);

}  // namespace tutti::store

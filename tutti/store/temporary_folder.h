#pragma once

#include <string>

#include "tutti/base/file.h"

namespace tutti::store {

// A folder with a name of its own in `parent`, to be filled and then renamed to what it shall be; else it is
// removed. It is locked while its process lives, so that others know the leftovers of the dead from work in
// progress.
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

// Removes a folder so that nobody ever sees a part of it under its name. What cannot be removed at once is
// left to remove_leftovers().
void remove_folder(const std::string& parent, const std::string& path);

// Removes the temporary folders in `parent` whose processes are gone.
void remove_leftovers(const std::string& parent);

}  // namespace tutti::store

#pragma once

#include <optional>
#include <string>

#include "tutti/base/file.h"

namespace tutti {

// A control group (version 2) of the processes of one job, below the control group of this process. A process
// cannot leave it by ending its parent, by a session of its own or by an empty environment.
class ControlGroup {
 public:
  // Makes an empty one. nullopt where that is not allowed, as in most containers, or the kernel has none.
  static std::optional<ControlGroup> make();
  // One that another process has made.
  explicit ControlGroup(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  // Returns the file into which a process writes "0" to join.
  FileDescriptor entrance() const;
  // Sends SIGKILL to all processes in this group and in the groups below it, at one moment.
  void kill_all() const;
  // Removes the group and those below it. Returns false while there is a process in one of them.
  bool remove() const;

 private:
  std::string path_;
};

}  // namespace tutti

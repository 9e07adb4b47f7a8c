#pragma once

#include <optional>
#include <string>

#include "tutti/base/file.h"

namespace tutti {

// A control group (version 2) of the processes of one job, below the control group of this process. A process
// does not leave it when its parent ends, when it starts a new session, or when it clears its environment.
class ControlGroup {
 public:
  // Makes an empty group. Returns nullopt if that is not allowed, as in most containers, or if the kernel has
  // no
  // control groups.
  static std::optional<ControlGroup> make();
  // A group that another process has made.
  explicit ControlGroup(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  // Returns the file into which a process writes "0" to join.
  FileDescriptor entrance() const;
  // Sends SIGKILL to all processes in this group and in the groups below it at the same time.
  void kill_all() const;
  // Removes the group and those below it. Returns false while there is a process in one of them.
  bool remove() const;

 private:
  std::string path_;
};

}  // namespace tutti

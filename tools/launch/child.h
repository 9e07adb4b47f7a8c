#pragma once

#include <string>
#include <sys/types.h>
#include <vector>

#include "tutti/base/file.h"

namespace tutti {

enum class ChildOutput {
  Inherit,  // the terminal, or whatever this process has; stdin too
  Capture,  // two pipes; stdin is empty
};

struct ChildOptions {
  std::vector<std::string> environment;  // "NAME=value", all of it
  std::vector<int> cores;                // to be pinned to; empty: where the scheduler likes
  ChildOutput output = ChildOutput::Inherit;
};

// A started program. It leads a session of its own, so that its process group is named by its pid, and it is
// killed when this process dies.
struct Child {
  pid_t pid = -1;
  FileDescriptor out;  // read ends, non-blocking, with Capture
  FileDescriptor err;
};

// Looks for the program in PATH where its name has no '/'. Returns once it runs; a program that is not there
// or cannot be executed is an InvalidArgument that says so.
Child start_child(const std::vector<std::string>& command, const ChildOptions& options = {});

}  // namespace tutti

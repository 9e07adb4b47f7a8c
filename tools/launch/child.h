#pragma once

#include <signal.h>
#include <string>
#include <sys/types.h>
#include <vector>

#include "tutti/base/file.h"

namespace tutti {

enum class ChildOutput {
  Inherit,  // this process's streams, such as the terminal, including stdin
  Capture,  // two pipes; stdin is empty
  Talk,     // like Capture, but stdin is a socket
  File,     // both streams are appended to a file; stdin is empty
};

struct ChildOptions {
  std::vector<std::string> environment = {};  // "NAME=value", all of it
  std::vector<int> cores = {};                // the cores to pin it to; empty: not pinned
  ChildOutput output = ChildOutput::Inherit;
  std::string output_file = {};  // for ChildOutput::File
  int keep = -1;                 // a descriptor of this process that the program inherits; -1: none
  int death_signal = SIGKILL;    // sent to it when this process dies
  int ignored_signal = 0;        // unless it has a handler for it; 0: none
  FileDescriptor group = {};     // ControlGroup::entrance()
};

// A started program. It leads a new session, so that its pid is also the number of its process group, and it
// gets a signal when this process dies.
struct Child {
  pid_t pid = -1;
  FileDescriptor out;  // read ends, non-blocking, with Capture and Talk
  FileDescriptor err;
  FileDescriptor in;  // the other end of stdin, with Talk
};

// Looks for the program in PATH if its name has no '/'. Returns once it runs.
//   InvalidArgument  the program does not exist or cannot be executed
//   Overloaded       no more processes, memory or files
//   Timeout          the program was not loaded within a minute, for example since a file server hangs
Child start_child(const std::vector<std::string>& command, const ChildOptions& options = {});

// Throws the InvalidArgument that start_child() throws if there is no such program, or none that can be
// executed.
void require_program(const std::string& program);

// Throws the Error for errno of fork(2), which names the limits. `what` as for fail_errno().
[[noreturn]] void fail_to_fork(int error, const std::string& what);

}  // namespace tutti

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace tutti {

// A line of /proc/PID/stat. Reading it never blocks; the environment and the command line of a process are
// read from its memory, which may block if the process hangs in the kernel.
struct ProcessState {
  pid_t pid = -1;
  pid_t parent = -1;
  char state = '?';  // 'R' running, 'S' sleeping, 'D' waiting in the kernel, 'T' stopped, 'Z' ended
  uint64_t started =
      0;  // in ticks since the machine was started; with the pid, it names one process for ever
  std::string name;
};

// nullopt if there is no such process.
std::optional<ProcessState> process_state(pid_t pid);
std::vector<ProcessState> all_processes();

// Sends a signal to this process, and never to another one that has got its pid since. Returns 0 or errno.
int send_signal(const ProcessState& process, int signal);

// Returns where a process in state 'D' waits: " in nfs_wait_bit_killable", or "" if the kernel does not say
// it.
std::string wait_channel(pid_t pid);

}  // namespace tutti

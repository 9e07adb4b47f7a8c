#pragma once

#include <cstddef>
#include <functional>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <thread>
#include <vector>

namespace tutti {

// For tests: the system calls that make symbolic links.
inline std::vector<long> link_calls() {
#ifdef SYS_symlink
  return {SYS_symlink, SYS_symlinkat};
#else
  return {SYS_symlinkat};
#endif
}

// Lets these system calls fail with this error for the calling thread, and for all threads and processes that
// it starts from now on. Returns false if this process may not do that.
inline bool refuse_calls(const std::vector<long>& calls, int error) {
  std::vector<sock_filter> filter = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const long call : calls) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call), 0, 1));
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)));
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Calls `body` in a thread for which these calls fail, as on a file system without links, locks or the like.
// Returns false without calling it if this process may not do that.
inline bool with_refused_calls(const std::vector<long>& calls, int error, const std::function<void()>& body) {
  bool refused = false;
  std::thread([&] {
    refused = refuse_calls(calls, error);
    if (refused) body();
  }).join();
  return refused;
}

}  // namespace tutti

#include "tools/launch/processes.h"

#include <cerrno>
#include <filesystem>
#include <signal.h>
#include <sstream>
#include <sys/syscall.h>
#include <unistd.h>

#include <fmt/core.h>

#include "tutti/base/file.h"
#include "tutti/base/text.h"

namespace tutti {

std::optional<ProcessState> process_state(pid_t pid) {
  const std::string text = read_system_file(fmt::format("/proc/{}/stat", pid));
  // The format is "12 (name) S 1 ..."; the name may itself contain spaces and brackets.
  const size_t open = text.find('(');
  const size_t close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open) return std::nullopt;
  ProcessState process{.pid = pid, .name = text.substr(open + 1, close - open - 1)};
  std::istringstream rest(text.substr(close + 1));
  rest >> process.state >> process.parent;
  constexpr int kBetween = 17;  // fields between the parent and the time of the start
  std::string skipped;
  for (int i = 0; i < kBetween; ++i) rest >> skipped;
  if (!(rest >> process.started)) return std::nullopt;
  return process;
}

std::vector<ProcessState> all_processes() {
  std::vector<ProcessState> all;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::optional<int64_t> pid = parse_int(entry.path().filename().string());
    if (!pid) continue;
    if (auto process = process_state(static_cast<pid_t>(*pid))) all.push_back(*std::move(process));
  }
  return all;
}

int send_signal(const ProcessState& process, int signal) {
  // glibc has functions for these calls only since 2.36, and a wheel should run with an older one.
  const FileDescriptor handle(static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0)));
  if (handle.get() < 0) return errno;
  // From here on, the handle refers to one process. It is the wanted process if it started at the same time.
  const auto now = process_state(process.pid);
  if (!now || now->started != process.started) return ESRCH;
  return syscall(SYS_pidfd_send_signal, handle.get(), signal, nullptr, 0) == 0 ? 0 : errno;
}

std::string wait_channel(pid_t pid) {
  const std::string name = read_system_file(fmt::format("/proc/{}/wchan", pid));
  return name.empty() || name == "0" ? "" : " in " + name;
}

}  // namespace tutti

#include "tools/launch/job_mark.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/core.h>

#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti {
namespace {

// Empty where the process is gone, a zombie, or somebody else's.
std::string environment_of(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/environ", pid), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

bool has_variable(const std::string& environment, const std::string& variable) {
  const std::string whole = variable + '\0';
  const size_t at = environment.find(whole);
  return at == 0 || (at != std::string::npos && environment[at - 1] == '\0');
}

// The guardian's whole life. The goodbye is one byte; the end of the pipe without it is the launcher's sudden
// death.
[[noreturn]] void guard(int leash, const JobMark& mark) {
  prctl(PR_SET_NAME, "tutti-guardian");
  setsid();
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(signal, SIG_IGN);
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int descriptor = 0; descriptor <= 2; ++descriptor) dup2(null, descriptor);
  char goodbye = 0;
  ssize_t count = 0;
  do {
    count = read(leash, &goodbye, 1);
  } while (count < 0 && errno == EINTR);
  if (count == 0) {
    while (mark.signal_all(SIGKILL) > 0) usleep(10'000);
  }
  _exit(0);
}

}  // namespace

JobMark::JobMark() {
  // The time makes it unique: process numbers come back.
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  variable_ = fmt::format("_TUTTI_JOB={}.{}", getpid(), now);
}

// A process that is just becoming another program has no environment for a moment: where nobody is found, a
// second look is taken.
std::vector<pid_t> JobMark::processes() const {
  constexpr useconds_t kMoment = 2000;
  std::vector<pid_t> found = processes_seen();
  if (!found.empty()) return found;
  usleep(kMoment);
  return processes_seen();
}

std::vector<pid_t> JobMark::processes_seen() const {
  std::vector<pid_t> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::optional<int64_t> pid = parse_int(entry.path().filename().string());
    if (pid && has_variable(environment_of(static_cast<pid_t>(*pid)), variable_)) {
      found.push_back(static_cast<pid_t>(*pid));
    }
  }
  return found;
}

int JobMark::signal_all(int signal) const {
  const std::vector<pid_t> found = processes();
  for (const pid_t pid : found) kill(pid, signal);
  return static_cast<int>(found.size());
}

Guardian::Guardian(const JobMark& mark) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) fail_errno(errno, "opening a pipe to the guardian");
  FileDescriptor read_end(ends[0]);
  leash_ = FileDescriptor(ends[1]);
  pid_ = fork();
  if (pid_ < 0) fail_errno(errno, "starting the guardian process");
  if (pid_ == 0) {
    close(ends[1]);
    guard(ends[0], mark);
  }
}

Guardian::~Guardian() {
  [[maybe_unused]] const ssize_t written = write(leash_.get(), "x", 1);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace tutti

#include "tools/launch/job_mark.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <filesystem>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/core.h>

#include "tools/launch/child.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"

namespace tutti {
namespace {

using std::chrono::steady_clock;

// Returns "" if the process is gone, a zombie, or another user's.
std::string environment_of(pid_t pid) { return read_system_file(fmt::format("/proc/{}/environ", pid)); }

bool has_variable(const std::string& environment, const std::string& variable) {
  const std::string whole = variable + '\0';
  const size_t at = environment.find(whole);
  return at == 0 || (at != std::string::npos && environment[at - 1] == '\0');
}

// Returns true if a thread is in state 'D': it may hold the memory lock of the process, for which a reader of
// its environment waits.
bool hangs_in_the_kernel(pid_t pid) {
  namespace fs = std::filesystem;
  std::error_code error;  // the process may end meanwhile
  const std::string threads = fmt::format("/proc/{}/task", pid);
  for (fs::directory_iterator thread(threads, error), end; !error && thread != end; thread.increment(error)) {
    if (read_system_file(thread->path() / "stat").find(") D ") != std::string::npos) return true;
  }
  return false;
}

// A process has no environment for a moment during exec, and most waits in the kernel are short: after no
// process is found any more, keeps scanning for a while. Does not wait forever for a process that cannot be
// killed.
void kill_all_of(const JobMark& mark) {
  constexpr std::chrono::seconds kLongest{60};
  constexpr std::chrono::seconds kLookAgain{5};
  constexpr useconds_t kBetweenScans = 10'000;
  const auto end = steady_clock::now() + kLongest;
  auto last_found = steady_clock::now();
  for (int clean = 0; clean < 2 && steady_clock::now() < end; usleep(kBetweenScans)) {
    const JobMark::Killed killed = mark.kill_all();
    const auto now = steady_clock::now();
    if (killed.processes > 0) last_found = now;
    const bool done = killed.processes == 0 && (killed.skipped == 0 || now > last_found + kLookAgain);
    clean = done ? clean + 1 : 0;
  }
}

// The main function of the guardian. The end of the pipe means the launcher's death, since the launcher ends
// its guardian by a signal.
[[noreturn]] void guard(int leash, const JobMark& mark) {
  prctl(PR_SET_NAME, "tutti-guardian");
  prctl(PR_SET_PDEATHSIG, SIGCONT);
  setsid();
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(signal, SIG_IGN);
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int descriptor = 0; descriptor <= 2; ++descriptor) dup2(null, descriptor);
  char none = 0;
  while (read(leash, &none, 1) < 0 && errno == EINTR) {
  }
  kill_all_of(mark);
  _exit(0);
}

}  // namespace

JobMark::JobMark() {
  // The time makes it unique, since process numbers are reused. The name is unique too, so that the processes
  // of a job inside another one, as of `tutti run` in a sweep, keep the marks of both.
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  variable_ = fmt::format("_TUTTI_JOB_{}_{}=1", getpid(), now);
}

JobMark::Killed JobMark::kill_all() const {
  Killed killed;
  for (const ProcessState& process : all_processes()) {
    if (hangs_in_the_kernel(process.pid)) {
      ++killed.skipped;
    } else if (has_variable(environment_of(process.pid), variable_)) {
      ::kill(process.pid, SIGKILL);
      ++killed.processes;
    }
  }
  return killed;
}

Guardian::Guardian(const JobMark& mark, JobProcesses& processes) : mark_(mark), processes_(processes) {
  start();
}

void Guardian::start() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) fail_errno(errno, "opening a pipe to the guardian");
  FileDescriptor read_end(ends[0]);
  leash_ = FileDescriptor(ends[1]);
  pid_ = fork();
  if (pid_ < 0) fail_to_fork(errno, "starting the guardian process");
  if (pid_ == 0) {
    close(ends[1]);
    guard(ends[0], mark_);
  }
  processes_.leave_out(pid_);
}

void Guardian::replace() {
  pid_ = -1;
  start();
}

Guardian::~Guardian() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace tutti

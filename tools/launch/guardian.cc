#include "tools/launch/guardian.h"

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include "tools/launch/child.h"
#include "tools/launch/control_group.h"
#include "tools/launch/processes.h"
#include "tutti/base/environment.h"
#include "tutti/base/error.h"

namespace tutti {
namespace {

using std::chrono::steady_clock;

// Does not wait forever for a process that cannot be killed.
constexpr std::chrono::seconds kLongestKilling{60};
constexpr useconds_t kBetweenScans = 10'000;

void kill_group(const ControlGroup& group) {
  const auto end = steady_clock::now() + kLongestKilling;
  group.kill_all();
  while (!group.remove() && steady_clock::now() < end) usleep(kBetweenScans);
}

// Returns true if the process has the variable; false also if it is gone, a zombie, or another user's.
bool has_variable(pid_t pid, const std::string& variable) {
  const std::string environment = read_system_file(fmt::format("/proc/{}/environ", pid));
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

struct Scan {
  int killed = 0;
  int skipped = 0;  // processes that hang in the kernel, so that reading their environment might hang too
};

Scan kill_marked(const std::string& mark) {
  Scan scan;
  for (const ProcessState& process : all_processes()) {
    if (hangs_in_the_kernel(process.pid)) {
      ++scan.skipped;
    } else if (has_variable(process.pid, mark)) {
      send_signal(process, SIGKILL);
      ++scan.killed;
    }
  }
  return scan;
}

// A process has no environment for a moment during exec, and most waits in the kernel are short. Therefore
// keeps scanning for a while after the last process was found.
void kill_all_marked(const std::string& mark) {
  constexpr std::chrono::seconds kLookAgain{5};
  const auto end = steady_clock::now() + kLongestKilling;
  auto last_found = steady_clock::now();
  for (int clean = 0; clean < 2 && steady_clock::now() < end; usleep(kBetweenScans)) {
    const Scan scan = kill_marked(mark);
    const auto now = steady_clock::now();
    if (scan.killed > 0) last_found = now;
    const bool done = scan.killed == 0 && (scan.skipped == 0 || now > last_found + kLookAgain);
    clean = done ? clean + 1 : 0;
  }
}

}  // namespace

Guardian::Guardian(const GuardedJob& job, int keep, std::vector<std::string> program)
    : command_(std::move(program)), keep_(keep) {
  // `tutti bench` starts jobs as well, from another program in the same folder.
  if (command_.empty())
    command_ = {std::filesystem::read_symlink("/proc/self/exe").replace_filename("tutti").string(),
                kGuardian};
  command_.insert(command_.end(), {job.mark, job.group});
  start();
}

void Guardian::start() {
  // SIGCONT lets the guardian work even if it is stopped when this process dies.
  ChildOptions options{.output = ChildOutput::Talk, .keep = keep_, .death_signal = SIGCONT};
  const Environment environment = Environment::of_process();
  for (const auto& [name, value] : environment.variables())
    options.environment.push_back(fmt::format("{}={}", name, value));
  Child child = start_child(command_, options);
  pid_ = child.pid;
  leash_ = std::move(child.in);
}

void Guardian::replace() {
  pid_ = -1;
  start();
}

void Guardian::end_job() {
  pid_ = -1;
  leash_ = FileDescriptor();
}

Guardian::~Guardian() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

// The launcher ends its guardian by a signal, so the end of the stream means that the launcher has died.
int guardian_command(const std::vector<std::string>& arguments) {
  if (arguments.size() != 2)
    fail(ErrorKind::InvalidArgument, "tutti {}: this command is for `tutti run` alone", kGuardian);
  prctl(PR_SET_NAME, "tutti-guardian");
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(signal, SIG_IGN);
  char none = 0;
  while (read(STDIN_FILENO, &none, 1) < 0 && errno == EINTR) {
  }
  if (arguments[1].empty()) {
    kill_all_marked(arguments[0]);
  } else {
    kill_group(ControlGroup(arguments[1]));
  }
  return 0;
}

}  // namespace tutti

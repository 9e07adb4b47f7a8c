#include "tools/launch/child.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include "tutti/base/deadline.h"
#include "tutti/base/environment.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti {
namespace {

struct Pipe {
  FileDescriptor read_end;
  FileDescriptor write_end;
};

Pipe open_pipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) fail_errno(errno, "opening a pipe to a task");
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

// A socket, unlike a pipe, can be written to without SIGPIPE if the child has ended.
Pipe open_socket() {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    fail_errno(errno, "opening a socket to a task");
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  result.reserve(texts.size() + 1);
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

// The data that the child needs between fork and exec. Between these calls it must not allocate memory.
struct Launch {
  std::vector<char*> command;
  std::vector<char*> environment;
  cpu_set_t cores;
  bool pinned = false;
  int in = -1;
  int out = -1;
  int err = -1;
  int complaint = -1;  // receives errno if the program cannot be executed
  pid_t launcher = -1;
  int keep = -1;
  int group = -1;
  int death_signal = SIGKILL;
  int ignored_signal = 0;
};

void restore_signals() {
  // exec resets signal handlers, but neither the signal mask nor ignored signals.
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGXFSZ}) ::signal(signal, SIG_DFL);
}

[[noreturn]] void become(const Launch& launch) {
  setsid();
  restore_signals();
  if (launch.ignored_signal > 0) ::signal(launch.ignored_signal, SIG_IGN);
  prctl(PR_SET_PDEATHSIG, launch.death_signal);
  if (getppid() != launch.launcher) _exit(1);  // the launcher died before prctl()
  if (launch.keep >= 0) fcntl(launch.keep, F_SETFD, 0);
  if (launch.group >= 0) static_cast<void>(write(launch.group, "0", 1));
  if (launch.pinned) sched_setaffinity(0, sizeof launch.cores, &launch.cores);
  if (launch.out >= 0) {
    const int null = open("/dev/null", O_RDONLY);
    dup2(launch.in >= 0 ? launch.in : null, STDIN_FILENO);
    dup2(launch.out, STDOUT_FILENO);
    dup2(launch.err, STDERR_FILENO);
    close(null);
  }
  execvpe(launch.command[0], launch.command.data(), launch.environment.data());
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(launch.complaint, &error, sizeof error);
  _exit(127);
}

[[noreturn]] void fail_to_execute(const std::string& program, int error) {
  if (error == ENOENT) {
    const bool is_path = program.find('/') != std::string::npos;
    fail(ErrorKind::InvalidArgument, "{}: there is no such program{}", program,
         is_path ? "; check the path, or build it"
                 : fmt::format(" in PATH; if it is in this folder, write ./{}", program));
  }
  if (error == EACCES) {
    fail(ErrorKind::InvalidArgument, "{}: the file is not executable; check its permissions (chmod +x)",
         program);
  }
  fail_errno(error, "executing " + program);
}

// Waits until the program runs: exec closes the pipe. If the pipe contains data, it is errno.
void await_exec(const Pipe& complaint, const std::string& program, pid_t pid) {
  constexpr std::chrono::seconds kLoading{60};
  const auto deadline = std::chrono::steady_clock::now() + kLoading;
  pollfd ready{complaint.read_end.get(), POLLIN, 0};
  while (poll(&ready, 1, poll_time(deadline)) <= 0) {
    if (std::chrono::steady_clock::now() < deadline) continue;  // interrupted by a signal
    kill(pid, SIGKILL);
    fail(ErrorKind::Timeout,
         "{}: the program was not loaded within {} s; check the disk or file server that it is on", program,
         kLoading.count());
  }
  int error = 0;
  if (read(complaint.read_end.get(), &error, sizeof error) != sizeof error) return;
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  fail_to_execute(program, error);
}

void set_non_blocking(const FileDescriptor& descriptor) {
  if (fcntl(descriptor.get(), F_SETFL, O_NONBLOCK) != 0) fail_errno(errno, "making a pipe non-blocking");
}

}  // namespace

Child start_child(const std::vector<std::string>& command, const ChildOptions& options) {
  Launch launch;
  launch.command = pointers(command);
  launch.environment = pointers(options.environment);
  CPU_ZERO(&launch.cores);
  for (const int core : options.cores) CPU_SET(core, &launch.cores);
  launch.pinned = !options.cores.empty();
  launch.launcher = getpid();
  launch.keep = options.keep;
  launch.group = options.group.get();
  launch.death_signal = options.death_signal;
  launch.ignored_signal = options.ignored_signal;

  Pipe complaint = open_pipe();
  launch.complaint = complaint.write_end.get();
  Pipe in;
  Pipe out;
  Pipe err;
  if (options.output == ChildOutput::Talk) {
    in = open_socket();
    launch.in = in.read_end.get();
  }
  if (options.output == ChildOutput::Capture || options.output == ChildOutput::Talk) {
    out = open_pipe();
    err = open_pipe();
    launch.out = out.write_end.get();
    launch.err = err.write_end.get();
    set_non_blocking(out.read_end);
    set_non_blocking(err.read_end);
  }
  FileDescriptor file;
  if (options.output == ChildOutput::File) {
    file = FileDescriptor(options.output_file, O_WRONLY | O_CREAT | O_APPEND);
    launch.out = file.get();
    launch.err = file.get();
  }

  const pid_t pid = fork();
  if (pid < 0) fail_to_fork(errno, "starting a process for " + command[0]);
  if (pid == 0) become(launch);
  complaint.write_end = FileDescriptor();
  await_exec(complaint, command[0], pid);
  return {pid, std::move(out.read_end), std::move(err.read_end), std::move(in.write_end)};
}

void require_program(const std::string& program) {
  int error = ENOENT;
  const auto is_there = [&](const std::string& path) {
    if (access(path.c_str(), X_OK) == 0) return true;
    if (errno == EACCES) error = EACCES;
    return false;
  };
  if (program.find('/') != std::string::npos) {
    if (!is_there(program)) fail_to_execute(program, error);
    return;
  }
  const std::string folders = Environment::of_process().get("PATH").value_or("/bin:/usr/bin");
  for (const std::string& folder : split(folders, ':')) {  // as execvpe() does
    if (is_there(fmt::format("{}/{}", folder.empty() ? "." : folder, program))) return;
  }
  fail_to_execute(program, error);
}

void fail_to_fork(int error, const std::string& what) {
  if (error == EAGAIN) {
    fail(ErrorKind::Overloaded,
         "{}: this user or container has reached its maximum number of processes; end some, or raise the "
         "limit (ulimit -u, pids.max)",
         what);
  }
  fail_errno(error, what);
}

}  // namespace tutti

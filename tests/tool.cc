#include "tests/tool.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <signal.h>
#include <stdexcept>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tests/programs.h"
#include "tutti/base/file.h"

namespace tutti::testing {

[[gnu::weak]] ProgramMain find_program(const std::string& name);  // null if this executable has no programs

namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience{180};

std::array<int, 2> make_pipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
  return ends;
}

void append_from(int& descriptor, std::string& text) {
  std::array<char, 1 << 16> buffer;
  const ssize_t count = read(descriptor, buffer.data(), buffer.size());
  if (count > 0) {
    text.append(buffer.data(), static_cast<size_t>(count));
  } else if (count == 0) {
    close(descriptor);
    descriptor = -1;
  }
}

// Ends without the destructors of static objects: those of LibTorch take as long as a short training.
[[noreturn]] void run_and_exit(ProgramMain program, const std::vector<char*>& arguments) noexcept {
  const int code = program(static_cast<int>(arguments.size()) - 1, const_cast<char**>(arguments.data()));
  std::fflush(nullptr);
  _exit(code);
}

}  // namespace

std::string crash_in(const std::string& output) {
  constexpr std::array kSigns = {
      "Segmentation fault",      "(Aborted)",   "Bus error",        "Floating point exception",
      "Illegal instruction",     "core dumped", "terminate called", "SUMMARY: AddressSanitizer",
      "SUMMARY: ThreadSanitizer"};
  for (const char* sign : kSigns) {
    const size_t at = output.find(sign);
    if (at == std::string::npos) continue;
    const size_t begin = at == 0 ? 0 : output.rfind('\n', at - 1) + 1;  // npos + 1 is 0
    return output.substr(begin, output.find('\n', at) - begin);
  }
  return "";
}

RunningProgram::RunningProgram(const std::vector<std::string>& command,
                               const std::vector<std::string>& environment, Crashes crashes)
    : crashes_(crashes) {
  const std::array<int, 2> out = make_pipe();
  const std::array<int, 2> err = make_pipe();
  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  const std::string name = command[0].substr(command[0].rfind('/') + 1);
  const ProgramMain program = find_program != nullptr ? find_program(name) : nullptr;
  std::fflush(nullptr);  // else the program would print again what waits to be printed
  pid_ = fork();
  if (pid_ < 0) throw std::runtime_error("fork");
  if (pid_ == 0) {
    setpgid(0, 0);
    ::signal(SIGHUP, SIG_DFL);         // as if the tests did not run under nohup
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // a killed test leaves nothing behind
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    for (const std::string& variable : environment) putenv(const_cast<char*>(variable.c_str()));
    if (program != nullptr) run_and_exit(program, arguments);
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  close(out[1]);
  close(err[1]);
  out_pipe_ = out[0];
  err_pipe_ = err[0];
}

RunningProgram::~RunningProgram() {
  if (!exit_code_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    look_for_crashes();
  }
  for (const int descriptor : {out_pipe_, err_pipe_}) {
    if (descriptor >= 0) close(descriptor);
  }
}

// Returns false at the end of both streams, and if nothing was printed for so long.
bool RunningProgram::read_some(std::chrono::milliseconds patience) {
  std::array<pollfd, 2> events = {
      {{out_pipe_, POLLIN, 0}, {err_pipe_, POLLIN, 0}}};  // poll() ignores closed ones (-1)
  if (out_pipe_ < 0 && err_pipe_ < 0) return false;
  if (poll(events.data(), events.size(), static_cast<int>(patience.count())) == 0) {
    if (patience.count() > 0)
      ADD_FAILURE() << "nothing more was printed for three minutes after:\n" << out_ << err_;
    return false;
  }
  if (events[0].revents != 0) append_from(out_pipe_, out_);
  if (events[1].revents != 0) append_from(err_pipe_, err_);
  return true;
}

void RunningProgram::wait_for(const std::string& text, const std::string& stream) {
  while (stream.find(text) == std::string::npos) {
    if (!read_some(kPatience)) {
      ADD_FAILURE() << "'" << text << "' was never printed, but:\n" << out_ << err_;
      return;
    }
  }
}

void RunningProgram::read_what_is_there() {
  while (read_some(std::chrono::milliseconds(0))) {
  }
}

int RunningProgram::wait() {
  while (read_some(kPatience)) {
  }
  if (out_pipe_ >= 0 || err_pipe_ >= 0) kill(pid_, SIGKILL);  // it has not ended by itself
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  exit_code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  look_for_crashes();
  return *exit_code_;
}

void RunningProgram::look_for_crashes() const {
  if (crashes_ == Crashes::AskedFor) return;
  for (const std::string* stream : {&out_, &err_}) {
    const std::string line = crash_in(*stream);
    if (!line.empty()) {
      ADD_FAILURE() << "a task has crashed, which the test did not ask for: " << line << "\n" << err_;
      return;
    }
  }
  for (const int signal : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL}) {
    if (exit_code_ == 128 + signal)
      ADD_FAILURE() << "the program has crashed by SIG" << sigabbrev_np(signal) << ":\n" << out_ << err_;
  }
}

ProgramResult run_program(const std::vector<std::string>& command,
                          const std::vector<std::string>& environment, Crashes crashes) {
  RunningProgram program(command, environment, crashes);
  const int exit_code = program.wait();
  return {exit_code, program.out(), program.err()};
}

char state_of(pid_t pid) {
  const std::string line = read_system_file(fmt::format("/proc/{}/stat", pid));
  const size_t at = line.rfind(") ");
  return at == std::string::npos ? '?' : line[at + 2];
}

Words launcher_of_node(int rank, const std::string& rendezvous, int nodes) {
  return {program_path("tutti"), "run",          "--nnodes", std::to_string(nodes), "--node-rank",
          std::to_string(rank),  "--rendezvous", rendezvous};
}

bool eventually(const std::function<bool()>& condition) {
  const auto limit = steady_clock::now() + kPatience;
  while (!condition()) {
    if (steady_clock::now() > limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

std::vector<pid_t> processes_with(const Words& variables) {
  std::vector<pid_t> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string environment = '\0' + read_system_file(entry.path() / "environ");
    const auto is_there = [&](const std::string& variable) {
      return environment.find('\0' + variable + '\0') != std::string::npos;
    };
    if (std::all_of(variables.begin(), variables.end(), is_there)) found.push_back(std::stoi(name));
  }
  return found;
}

}  // namespace tutti::testing

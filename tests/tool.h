#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

#include "tutti/base/net.h"
#include "tutti/base/test_folder.h"
#include "tutti/base/test_run.h"

namespace tutti::testing {

// The words of a command line.
using Words = std::vector<std::string>;
inline Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// Says if a test fails on a crash: SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL, or a sanitizer's report.
enum class Crashes { Fail, AskedFor };

// Returns the line of `output` that reports a crash: of a task of `tutti run` or mpirun, even if it was
// restarted and all ended well, or by an uncaught exception. "" if there is none.
std::string crash_in(const std::string& output);

// A program under test whose output is captured. If it or one of its tasks crashes, the test fails, unless it
// allows crashes. If the program is inside this executable (programs.h), it runs in a process that is forked
// and not started.
class RunningProgram {
 public:
  // `environment` has entries "NAME=value" in addition to this process's variables.
  explicit RunningProgram(const std::vector<std::string>& command,
                          const std::vector<std::string>& environment = {}, Crashes crashes = Crashes::Fail);
  ~RunningProgram();  // kills it if it still runs
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;

  pid_t pid() const { return pid_; }
  // Reads until standard output contains `text`. Fails the test after a minute without output.
  void wait_for_output(const std::string& text) { wait_for(text, out_); }
  // Like wait_for_output(), but for standard error.
  void wait_for_error(const std::string& text) { wait_for(text, err_); }
  // Reads what it has printed, so that it never waits for a reader. Does not wait.
  void read_what_is_there();
  // Reads to the end, or kills it after a minute without output. Returns the exit code, or 128 + signal.
  int wait();

  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }

 private:
  void wait_for(const std::string& text, const std::string& stream);
  bool read_some(std::chrono::milliseconds patience);
  void look_for_crashes() const;

  const Crashes crashes_;
  pid_t pid_ = -1;
  int out_pipe_ = -1;
  int err_pipe_ = -1;
  std::string out_;
  std::string err_;
  std::optional<int> exit_code_;
};

struct ProgramResult {
  int exit_code = 0;
  std::string out;
  std::string err;
};

ProgramResult run_program(const std::vector<std::string>& command,
                          const std::vector<std::string>& environment = {}, Crashes crashes = Crashes::Fail);

// Returns the address of this machine with this port.
inline SocketAddress loopback(int port) { return resolve("127.0.0.1", port).addresses.front(); }

// Returns the words that start the launcher of a node of two; its other flags follow.
Words launcher_of_node(int rank, const std::string& rendezvous, int nodes = 2);

// Returns true as soon as `condition` holds, and false after a minute.
bool eventually(const std::function<bool()>& condition);

// Returns 'T' for a process that is stopped, 'Z' for one that has ended and is not reaped, '?' if there is
// none.
char state_of(pid_t pid);

// Returns the running processes (no zombies) whose environment contains the variables "NAME=value".
std::vector<pid_t> processes_with(const Words& variables);
inline std::vector<pid_t> processes_with(const std::string& variable) {
  return processes_with(Words{variable});
}

}  // namespace tutti::testing

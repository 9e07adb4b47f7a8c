#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

#include "tutti/base/net.h"
#include "tutti/base/test_folder.h"

namespace tutti::testing {

// Of a command line.
using Words = std::vector<std::string>;
inline Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// A program under test with its output in memory: what a user at a terminal would see.
class RunningProgram {
 public:
  // `environment`: "NAME=value" beside what this process has.
  explicit RunningProgram(const std::vector<std::string>& command,
                          const std::vector<std::string>& environment = {});
  ~RunningProgram();  // kills it, where it still runs
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;

  pid_t pid() const { return pid_; }
  // Reads until standard output holds `text`. Fails the test after a minute of silence.
  void wait_for_output(const std::string& text) { wait_for(text, out_); }
  // The same of standard error.
  void wait_for_error(const std::string& text) { wait_for(text, err_); }
  // Reads to the end; one that is silent for a minute is killed. The exit code, or 128 + signal.
  int wait();

  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }

 private:
  void wait_for(const std::string& text, const std::string& stream);
  bool read_some();

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
                          const std::vector<std::string>& environment = {});

// The path of a program in build/bin.
std::string program_path(const std::string& name);

// This machine at a port.
inline SocketAddress loopback(int port) { return resolve("127.0.0.1", port).addresses.front(); }

// True as soon as `condition` holds, false after a minute.
bool eventually(const std::function<bool()>& condition);

// The living processes (no zombies) whose environment holds the variable "NAME=value".
std::vector<pid_t> processes_with(const std::string& variable);

}  // namespace tutti::testing

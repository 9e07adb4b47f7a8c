#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "tools/launch/child.h"
#include "tools/launch/line_splitter.h"
#include "tools/launch/outcome.h"

namespace tutti {

// One task of a group: its process, and what it prints, line by line with the task's name before each.
class Member {
 public:
  Member(std::string task, Child child);

  const std::string& task() const { return task_; }
  pid_t pid() const { return pid_; }
  bool running() const { return !outcome_; }
  const std::optional<Outcome>& outcome() const { return outcome_; }
  void ended(Outcome outcome) { outcome_ = outcome; }
  double seconds() const;

  // The pipes that are still open, for poll(2).
  std::vector<int> descriptors() const;
  // Passes on some of what has arrived, without waiting; false where nothing had. What the reader of our own
  // output does not take any more is dropped.
  bool pass_on();
  // Passes on all that has arrived, a last line without its newline too.
  void finish_output();
  // To the process group that the process leads, for as long as it runs.
  void signal(int number) const;

  const std::deque<std::string>& last_lines() const { return last_lines_; }

 private:
  struct Stream {
    FileDescriptor from;
    int to;
    LineSplitter splitter;
  };
  bool pass_on(Stream& stream);
  void write_lines(Stream& stream, std::string_view bytes);

  std::string task_;
  pid_t pid_;
  Stream out_;
  Stream err_;
  std::optional<Outcome> outcome_;
  std::deque<std::string> last_lines_;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

// All bytes, waiting where a pipe is full. False where nobody reads any more.
bool write_all(int descriptor, std::string_view text);

}  // namespace tutti

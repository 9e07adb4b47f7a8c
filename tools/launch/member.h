#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "tools/launch/child.h"
#include "tools/launch/line_splitter.h"
#include "tools/launch/outcome.h"
#include "tools/launch/output.h"

namespace tutti {

// One task of a group: its process and its output, in which every line is prefixed with the task's name.
class Member {
 public:
  // The outputs must outlive this object.
  Member(std::string task, Child child, Output& out, Output& err);

  const std::string& task() const { return task_; }
  pid_t pid() const { return pid_; }
  bool running() const { return !outcome_; }
  const std::optional<Outcome>& outcome() const { return outcome_; }
  void ended(Outcome outcome) { outcome_ = outcome; }
  double seconds() const;
  // Returns true if the task was started again.
  bool came_back() const { return came_back_; }
  void set_came_back() { came_back_ = true; }

  // The pipes that are still open and may be read from, for poll(2).
  std::vector<int> descriptors() const;
  // Passes on some of the output that has arrived, without waiting. Passes on nothing if the output is full.
  void pass_on();
  // Passes on everything that has arrived by now, including a last line without a newline.
  void finish_output();
  // Sends a signal to the process group that the process leads, if the process still runs.
  void signal(int number) const;

  const std::deque<std::string>& last_lines() const { return last_lines_; }

 private:
  struct Stream {
    FileDescriptor from;
    Output* to;
    LineSplitter splitter;
  };
  size_t pass_on(Stream& stream, size_t most);
  void write_lines(Stream& stream, std::string_view bytes);

  std::string task_;
  pid_t pid_;
  Stream out_;
  Stream err_;
  std::optional<Outcome> outcome_;
  bool came_back_ = false;
  std::deque<std::string> last_lines_;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

}  // namespace tutti

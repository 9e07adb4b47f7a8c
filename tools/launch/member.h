#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/launch/child.h"
#include "tools/launch/line_splitter.h"
#include "tools/launch/outcome.h"
#include "tools/launch/output.h"

namespace tutti {

// One task of a group: its process and its output, in which every line is prefixed with the task's name. Or
// the host launcher of a host (host_link.h): its lines are passed on as they are, and it reads orders from
// stdin.
class Member {
 public:
  // The outputs must outlive this object. Child(): the task is started later; until then it has ended well.
  Member(std::string task, Child child, Output& out, Output& err);

  const std::string& task() const { return task_; }
  pid_t pid() const { return pid_; }
  bool has_started() const { return pid_ > 0; }
  bool running() const { return !outcome_; }
  const std::optional<Outcome>& outcome() const { return outcome_; }
  void ended(Outcome outcome) { outcome_ = outcome; }
  double seconds() const;
  // The outcome before the task was restarted; nullopt if it was not restarted.
  const std::optional<Outcome>& before() const { return before_; }
  void set_before(const Outcome& before) { before_ = before; }

  // The pipes that are still open and may be read from, for poll(2).
  std::vector<int> descriptors() const;
  // Passes on some of the received output, without waiting. Passes on nothing if the output is full.
  void pass_on();
  // Passes on all output received so far, including a last line without a newline.
  void finish_output();
  // Sends a signal to the process group that the process leads, if the process still runs.
  void signal(int number) const;

  // Returns true for the host launcher of a host.
  bool is_host() const { return orders_.get() >= 0; }
  // Sends an order or a heartbeat to a host launcher. It is dropped if it cannot be sent at once.
  void send(std::string_view line) const;
  // The exit code that a host launcher has printed at its end, after it has reported the cause itself.
  std::optional<int> reported_end() const { return reported_end_; }

  const std::deque<std::string>& last_lines() const { return last_lines_; }

 private:
  struct Stream {
    FileDescriptor from;
    Output* to;
    LineSplitter splitter;
  };
  LineSplitter splitter_for(const Output& output) const;
  size_t pass_on(Stream& stream, size_t most);
  void write_lines(Stream& stream, std::string_view bytes);

  std::string task_;
  pid_t pid_;
  FileDescriptor orders_;
  Stream out_;
  Stream err_;
  std::optional<Outcome> outcome_;
  std::optional<int> reported_end_;
  std::optional<Outcome> before_;
  std::deque<std::string> last_lines_;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

}  // namespace tutti

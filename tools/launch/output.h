#pragma once

#include <string>
#include <string_view>

#include "tutti/base/live_line.h"

namespace tutti {

// Buffers the output of this process, so that the process never waits for a slow reader, such as a pager or a
// stopped terminal. Drops output if the reader is gone. Not thread-safe.
class Output {
 public:
  // `is_live`: a line that changes in place is shown, in a terminal or by the launcher above this one.
  explicit Output(int descriptor, bool is_live = false);

  int descriptor() const { return descriptor_; }
  bool empty() const { return pending_.empty(); }
  // Returns true if callers should not add more for now.
  bool full() const { return pending_.size() >= kMost; }
  // Adds whole lines.
  void add(std::string_view lines);
  bool is_live() const { return is_live_; }
  // Returns true if a live line of this output stands in the terminal in which the other one writes.
  bool shares_terminal(const Output& other) const;
  // Shows a line below all others, in place of the one before; "" shows none.
  void show(std::string_view line);
  // Removes that line.
  void end_live();
  // Writes as much as the reader accepts without waiting.
  void pass_on();
  // Returns the errno with which text could not be written, as on a full disk; 0 if none was lost, or only
  // because the reader is gone.
  int error() const { return error_; }

 private:
  static constexpr size_t kMost = size_t{1} << 20;

  const int descriptor_;
  const bool is_live_;
  const bool is_terminal_;
  std::string pending_;
  std::string live_;  // the line that is shown in the terminal
  int error_ = 0;
};

}  // namespace tutti

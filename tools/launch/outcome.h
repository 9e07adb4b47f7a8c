#pragma once

#include <string>

namespace tutti {

// How a process ended, from what waitpid(2) says.
class Outcome {
 public:
  explicit Outcome(int wait_status) : status_(wait_status) {}

  bool success() const;
  bool killed() const;
  int signal() const;     // only where killed()
  int exit_code() const;  // 128 + signal where killed(), as shells count

  // "was killed by SIGSEGV (Segmentation fault)", "ended with exit code 11 (Timeout)".
  std::string describe() const;
  // Of several that ended at once, the one that tells most about the cause: a death before an error, and an
  // error before the complaint of a peer that somebody else is gone.
  int weight() const;
  static constexpr int kComplaint = 1;

 private:
  int status_;
};

}  // namespace tutti

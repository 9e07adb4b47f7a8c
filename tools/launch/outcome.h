#pragma once

#include <string>

namespace tutti {

// The way in which a process ended, according to waitpid(2).
class Outcome {
 public:
  explicit Outcome(int wait_status) : status_(wait_status) {}
  // Returns the outcome of a process that has ended by itself with this exit code.
  static Outcome exited(int exit_code);

  int status() const { return status_; }  // as the constructor takes it
  bool success() const;
  bool killed() const;
  int signal() const;     // requires killed()
  int exit_code() const;  // 128 + signal if killed(), as in shells

  // Returns true if the task has ended by itself after SIGTERM, SIGINT or SIGHUP, that is, with exit code
  // 143, 130 or 129.
  bool interrupted() const;

  // Returns "was killed by SIGSEGV (Segmentation fault)", "ended with exit code 11 (Timeout)" or the like.
  std::string describe() const;
  // Among several outcomes, the one with the highest weight explains most about the cause: a death more than
  // an error, and an error more than a complaint that another task is gone.
  int weight() const;
  static constexpr int kComplaint = 1;

  bool operator==(const Outcome&) const = default;

 private:
  int status_;
};

}  // namespace tutti

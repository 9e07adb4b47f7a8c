#pragma once

#include <chrono>
#include <string>

namespace tutti {

// The pauses before restarts of one task or job: none before the first, then 1 s, 2 s, 4 s and so on, at most
// a minute, so that repeated failures do not load the machine and fill the log. After a start that has lasted
// longer than a minute, the sequence begins again without a pause.
class RestartPause {
 public:
  // Returns the pause after a start that has failed after `lasted`.
  std::chrono::seconds next(std::chrono::duration<double> lasted);

 private:
  std::chrono::seconds next_{0};
};

// Returns " in 2 s", or "" without a pause.
std::string describe_pause(std::chrono::seconds pause);

}  // namespace tutti

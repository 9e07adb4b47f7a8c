#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/tool.h"

namespace tutti::testing {

// An sshd of the present user, at a port of its own and with keys made for it. It reads and changes nothing
// of the machine's own sshd or of ~/.ssh. Whoever connects to any of its addresses is on "another host".
class Sshd {
 public:
  // All processes that it starts have the variable `mark`, "NAME=value". `where` is prefixed to its command
  // (Host::here()).
  explicit Sshd(const std::string& mark,
                const std::vector<std::string>& addresses = {"127.0.0.2", "127.0.0.3"},
                const std::vector<std::string>& where = {});

  // The ssh that reaches it, for --rsh; `options` come first.
  std::string ssh(const std::string& options = "") const;
  const TestFolder& folder() const { return folder_; }
  pid_t pid() const { return server_->pid(); }
  // Returns why there can be none on this machine, or "".
  static std::string why_not();

 private:
  const TestFolder folder_;
  std::unique_ptr<RunningProgram> server_;
};

}  // namespace tutti::testing

#pragma once

#include <functional>

#include "tests/simulation/disk.h"
#include "tests/simulation/process.h"

namespace tutti::simulation {

// A call that changes files: "fsync", and the path.
struct FileCall {
  const char* name = "";
  std::string path;
  std::string to = {};  // of a rename
};

// The C library's calls for files, locks, time and sleep of a program that is linked with calls.cc. While a
// simulated process runs, they act on its disk and with the time of its world; the code between them is that
// of production. Calls outside of simulated processes, and on other files, are as ever. At most one at a
// time.
class Calls {
 public:
  // `before` is called before each change. It may let the process sleep, and returns 0, or the errno with
  // which the call is to fail. `after` is called after a change that was made.
  Calls(Disk& disk, std::function<int(Process&, const FileCall&)> before,
        std::function<void(Process&, const FileCall&)> after);
  ~Calls();
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  // For mistakes: a call does nothing, and succeeds.
  bool skips_files = false;    // fsync of a file
  bool skips_folders = false;  // of a folder

  Disk& disk() { return disk_; }
  // Returns 0, or an errno.
  int before(Process& process, const FileCall& call);
  void after(Process& process, const FileCall& call) { after_(process, call); }

 private:
  Disk& disk_;
  const std::function<int(Process&, const FileCall&)> before_;
  const std::function<void(Process&, const FileCall&)> after_;
};

}  // namespace tutti::simulation

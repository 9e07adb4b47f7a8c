#pragma once

#include <string>

#include "tests/tool.h"

namespace tutti::testing {

// A disk of a few megabytes in place of a folder, for the programs that are started with here(). It vanishes
// with its first process, which does nothing, and with the programs that use it.
class SmallDisk {
 public:
  SmallDisk(std::string folder, int megabytes);

  // Returns the words to prefix to a command.
  Words here() const;
  // Returns the folder as other programs see it.
  std::string outside() const;
  void fill() const;
  void free() const;
  // Returns why this machine cannot make such a disk, or "".
  static std::string why_not();

 private:
  const std::string folder_;
  RunningProgram holder_;
};

}  // namespace tutti::testing

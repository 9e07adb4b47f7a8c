#pragma once

#include <memory>
#include <string>
#include <sys/types.h>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/tool.h"

namespace tutti::testing {

// The first example in four lanes on a handful of made-up digits. Its weights have to be the same, to the
// bit, whoever starts it and as however many processes. Owns the folder in which all of it happens.
class Training {
 public:
  Training();

  const TestFolder& folder() const { return folder_; }

  // The words of a launcher, then the program and its flags, with which it ends after a few steps.
  std::vector<std::string> command(std::vector<std::string> launcher,
                                   const std::vector<std::string>& flags = {}) const;
  // The same without an end. It leaves a checkpoint after every step.
  std::vector<std::string> endless_command(std::vector<std::string> launcher,
                                           const std::vector<std::string>& flags = {}) const;
  // What a launcher has to hand on to all that it starts: by it they are found again.
  std::vector<std::string> environment(const std::vector<std::string>& more = {}) const;

  // Those that live.
  std::vector<pid_t> processes() const;
  // The one of them with this variable, "NAME=value", or -1.
  pid_t process_with(const std::string& variable) const;
  // Whether the endless one has made that many steps.
  bool has_come_to(int step) const;

  nlohmann::json report() const;
  // Of one process, with the same flags.
  std::string hash_of_one(const std::vector<std::string>& flags = {}) const;
  void expect_the_bits_of_one(const ProgramResult& result, int workers,
                              const std::vector<std::string>& flags = {}) const;

 private:
  std::vector<std::string> with_flags(std::vector<std::string> launcher, const std::vector<std::string>& some,
                                      const std::vector<std::string>& more) const;

  const TestFolder folder_;
  const std::string mark_;
};

// Reads all of them to the end, one after the other.
std::vector<ProgramResult> wait_for_all(const std::vector<std::unique_ptr<RunningProgram>>& programs);

// Whether PATH leads to a program of this name.
bool is_installed(const std::string& program);

}  // namespace tutti::testing

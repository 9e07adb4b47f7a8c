#pragma once

#include <memory>
#include <string>
#include <sys/types.h>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/tool.h"

namespace tutti::testing {

// Runs the first example in four lanes on a few made-up digits. Its weights must have the same bits with any
// launcher and any number of processes. Owns the folder of all its files.
class Training {
 public:
  Training();

  const TestFolder& folder() const { return folder_; }

  // Returns a launcher's command, followed by the program and its flags; the program ends after a few steps.
  std::vector<std::string> command(std::vector<std::string> launcher,
                                   const std::vector<std::string>& flags = {}) const;
  // Like command(), but the program does not end. It saves a checkpoint after every step.
  std::vector<std::string> endless_command(std::vector<std::string> launcher,
                                           const std::vector<std::string>& flags = {}) const;
  // Returns the variables that a launcher must pass on to all that it starts; they serve to find these.
  std::vector<std::string> environment(const std::vector<std::string>& more = {}) const;

  // Returns the running processes.
  std::vector<pid_t> processes() const;
  // Returns the one of them with this variable, "NAME=value", or -1.
  pid_t process_with(const std::string& variable) const;
  // Returns true if the endless program has made that many steps.
  bool has_come_to(int step) const;

  nlohmann::json report() const;
  // Returns the hash of the weights from one process with the same flags.
  std::string hash_of_one(const std::vector<std::string>& flags = {}) const;
  void expect_the_bits_of_one(const ProgramResult& result, int workers,
                              const std::vector<std::string>& flags = {}) const;

 private:
  std::vector<std::string> with_flags(std::vector<std::string> launcher, const std::vector<std::string>& some,
                                      const std::vector<std::string>& more) const;

  const TestFolder folder_;
  const std::string mark_;
};

// Waits for all programs, one after the other.
std::vector<ProgramResult> wait_for_all(const std::vector<std::unique_ptr<RunningProgram>>& programs);

// Returns true if PATH contains a program of this name.
bool is_installed(const std::string& program);

}  // namespace tutti::testing

#include "tests/launchers/training.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <unistd.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/few_digits.h"
#include "tutti/base/text.h"

namespace tutti::testing {

// The name does not begin with TUTTI_, since the program refuses unknown variables of that prefix.
Training::Training() : mark_("LAUNCHERS_TEST=" + folder_.path()) { write_few_digits(folder_); }

std::vector<std::string> Training::with_flags(std::vector<std::string> launcher,
                                              const std::vector<std::string>& some,
                                              const std::vector<std::string>& more) const {
  launcher.insert(launcher.end(), {program_path("mnist"), "--data", folder_.path(), "--lanes", "4", "--batch",
                                   "5", "--threads", "1"});
  launcher.insert(launcher.end(), some.begin(), some.end());
  launcher.insert(launcher.end(), more.begin(), more.end());
  return launcher;
}

std::vector<std::string> Training::command(std::vector<std::string> launcher,
                                           const std::vector<std::string>& flags) const {
  return with_flags(std::move(launcher), {"--steps", "6", "--logdir=", "--report", folder_ / "report.json"},
                    flags);
}

std::vector<std::string> Training::endless_command(std::vector<std::string> launcher,
                                                   const std::vector<std::string>& flags) const {
  return with_flags(std::move(launcher),
                    {"--steps", "1000000", "--logdir", folder_ / "run", "--checkpoint-every", "1"}, flags);
}

std::vector<std::string> Training::environment(const std::vector<std::string>& more) const {
  // Some launchers leave files in the folder for temporary files.
  std::vector<std::string> all = {mark_, "TMPDIR=" + folder_.path()};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::vector<pid_t> Training::processes() const { return processes_with(mark_); }

pid_t Training::process_with(const std::string& variable) const {
  const std::vector<pid_t> mine = processes();
  for (const pid_t pid : processes_with(variable)) {
    if (std::find(mine.begin(), mine.end(), pid) != mine.end()) return pid;
  }
  return -1;
}

bool Training::has_come_to(int step) const {
  return std::filesystem::exists(folder_ / fmt::format("run/ckpt-{}", step));
}

nlohmann::json Training::report() const {
  std::ifstream in(folder_ / "report.json");
  return nlohmann::json::parse(in);
}

std::string Training::hash_of_one(const std::vector<std::string>& flags) const {
  static std::map<std::vector<std::string>, std::string> known;  // all trainings have the same digits
  std::filesystem::remove(folder_ / "report.json");
  if (const auto found = known.find(flags); found != known.end()) return found->second;
  const ProgramResult result = run_program(command({}, flags));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json one = report();
  EXPECT_EQ(one.at("world"), 1);
  EXPECT_EQ(one.at("strategy"), "single");
  return known[flags] = one.at("weights_sha256");
}

void Training::expect_the_bits_of_one(const ProgramResult& result, int workers,
                                      const std::vector<std::string>& flags) const {
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const nlohmann::json all = report();
  EXPECT_EQ(all.at("world"), workers);
  EXPECT_EQ(all.at("strategy"), "allreduce");
  EXPECT_EQ(all.at("weights_sha256"), hash_of_one(flags));
}

std::vector<ProgramResult> wait_for_all(const std::vector<std::unique_ptr<RunningProgram>>& programs) {
  std::vector<ProgramResult> results;
  for (const auto& program : programs) {
    const int exit_code = program->wait();
    results.push_back({exit_code, program->out(), program->err()});
  }
  return results;
}

bool is_installed(const std::string& program) {
  const char* path = std::getenv("PATH");
  if (path == nullptr) return false;
  const std::vector<std::string> folders = split(path, ':');
  return std::any_of(folders.begin(), folders.end(), [&](const std::string& folder) {
    return access((folder + "/" + program).c_str(), X_OK) == 0;
  });
}

}  // namespace tutti::testing

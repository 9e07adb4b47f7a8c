// Tests training under PyTorch's torchrun, which either holds the board (rendezvous) of the workers itself
// (its agent's store), or lets rank 0 hold it.
#include <csignal>
#include <cstdlib>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launchers/training.h"
#include "tutti/base/ports.h"

namespace tutti::testing::torchrun_test {
namespace {

using ::testing::HasSubstr;

std::vector<std::vector<std::string>> places_of_torchrun() {
  std::vector<std::vector<std::string>> places;
  if (const char* python = std::getenv("TUTTI_TEST_PYTHON"))
    places.push_back({python, "-m", "torch.distributed.run"});
  if (is_installed("torchrun")) places.push_back({"torchrun"});
  for (const char* python : {"python3", "/usr/bin/python3"})
    places.push_back({python, "-m", "torch.distributed.run"});
  return places;
}

// Returns a command that starts one task that does nothing.
std::vector<std::string> with_task(std::vector<std::string> torchrun) {
  const std::string port = std::to_string(free_ports(1).front());
  torchrun.insert(torchrun.end(), {"--no_python", "--nproc_per_node", "1", "-r", "9:1", "-t", "9:1",
                                   "--master_port", port, "true"});
  return torchrun;
}

// The first torchrun that works, or why there is none: Debian 13's needs a libuv that its build lacks.
struct Found {
  std::vector<std::string> words = {};
  std::string why_not = {};
  std::string version = {};  // of its PyTorch
};

// Asks the Python that runs it, which the script names in its first line.
std::string version_of(const std::vector<std::string>& torchrun) {
  const std::string python =
      torchrun.size() > 1 ? torchrun.front() : "$(sed -n '1s/^#!//p' \"$(command -v torchrun)\")";
  return run_program({"sh", "-c", python + " -c 'import torch; print(torch.__version__, end=\"\")'"}).out;
}

// The version of LibTorch with which Tutti was built.
std::string own_version() {
  const std::string text = run_program({program_path("tutti"), "version"}).out;
  const std::string name = "LibTorch ";
  const size_t begin = text.find(name);
  return begin == std::string::npos
             ? ""
             : text.substr(begin + name.size(), text.find('\n', begin) - begin - name.size());
}

Found find_torchrun() {
  Found found;
  for (const std::vector<std::string>& words : places_of_torchrun()) {
    const auto result = run_program(with_task(words));
    if (result.exit_code == 0) return {words, "", version_of(words)};
    const std::string text = result.err.substr(0, result.err.find_last_not_of('\n') + 1);
    found.why_not += fmt::format("{}: {}; ", fmt::join(words, " "), text.substr(text.rfind('\n') + 1));
  }
  return found;
}

class Torchrun : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { found = find_torchrun(); }
  void SetUp() override {
    if (found.words.empty())
      GTEST_SKIP() << "NOTHING IS TESTED HERE: no torchrun that works (apt-get install python3-torch). "
                   << found.why_not;
  }

  // Returns why the workers cannot use the store of its agent, or "". LibTorch 2 speaks another protocol
  // than 1.
  static std::string why_not_its_store() {
    const std::string own = own_version();
    if (!own.empty() && found.version.substr(0, found.version.find('.')) == own.substr(0, own.find('.')))
      return "";
    return fmt::format("NOT TESTED: the store of torchrun is that of PyTorch {}, but LibTorch is {}",
                       found.version, own);
  }

  // The flags with which its agent holds the board.
  static std::vector<std::string> with_its_store() {
    return {"--master_port", std::to_string(free_ports(1).front())};
  }

  static std::vector<std::string> torchrun(const std::vector<std::string>& flags = {}) {
    std::vector<std::string> words = found.words;
    // All versions know the names with _. -r and -t, for a rank that does not exist, express the default in
    // another form, since 1.13 fails on the default itself under Python 3.11.
    words.insert(words.end(), {"--no_python", "--nproc_per_node", "4", "-r", "9:1", "-t", "9:1"});
    words.insert(words.end(), flags.begin(), flags.end());
    return words;
  }

  const Training training_;

 private:
  static inline Found found;
};

TEST_F(Torchrun, four_workers_that_meet_at_its_own_store_end_with_the_bits_of_one) {
  if (const std::string why = why_not_its_store(); !why.empty()) GTEST_SKIP() << why;
  const auto result = run_program(training_.command(torchrun(with_its_store())), training_.environment());
  training_.expect_the_bits_of_one(result, 4);
}

TEST_F(Torchrun, four_workers_found_by_c10d_end_with_the_bits_of_one) {
  const std::vector<std::string> c10d = {"--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0"};
  for (const std::string comm : {"shm", "tcp"}) {
    const auto result =
        run_program(training_.command(torchrun(c10d), {"--comm", comm}), training_.environment());
    training_.expect_the_bits_of_one(result, 4);
    EXPECT_THAT(result.err, HasSubstr("4 workers connected over " + comm));
  }
}

// Its store still has everything from before the restart.
TEST_F(Torchrun, starts_all_again_when_one_is_killed) {
  if (const std::string why = why_not_its_store(); !why.empty()) GTEST_SKIP() << why;
  const std::vector<std::string> flags = {
      "--steps", "30", "--logdir", training_.folder() / "run", "--checkpoint-every", "1"};
  std::vector<std::string> restarting = with_its_store();
  restarting.insert(restarting.end(), {"--max_restarts", "1", "--monitor_interval", "0.1"});
  RunningProgram run(training_.command(torchrun(restarting), flags), training_.environment());
  ASSERT_TRUE(eventually([&] { return training_.has_come_to(2); }));
  const pid_t victim = training_.process_with("LOCAL_RANK=2");
  ASSERT_GT(victim, 0) << "it was faster than this test";
  kill(victim, SIGKILL);
  const int exit_code = run.wait();
  ASSERT_EQ(exit_code, 0) << run.err();
  EXPECT_EQ(training_.report().at("restarts"), 1);
  training_.expect_the_bits_of_one({exit_code, run.out(), run.err()}, 4, {"--steps", "30"});
}

}  // namespace
}  // namespace tutti::testing::torchrun_test

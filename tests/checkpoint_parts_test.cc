// Tests checkpoints that parameter servers and the chief write together: any number of tasks of any kind
// reads them, and none counts that is not whole.
#include <chrono>
#include <filesystem>
#include <functional>
#include <set>
#include <signal.h>
#include <string_view>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/served.h"
#include "tutti/base/error.h"
#include "tutti/store/manifest.h"
#include "tutti/store/safetensors.h"

namespace tutti::testing::checkpoint_parts_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

// The chief notices it in the call that asks for the part, or while it waits for the part.
const auto kLostWhileWriting =
    ::testing::AnyOf(HasSubstr("was lost before it had written its part"),
                     HasSubstr("the connection ended during 'write' (its part of a checkpoint)"));

const Flags kModel = {"--net", "normed", "--lanes", "4", "--batch", "3"};

// Returns the files of the optimiser in a checkpoint that have tensors. All files have to be of its step.
std::set<std::string> optimizer_files(const std::string& folder) {
  std::set<std::string> files;
  const store::Manifest manifest = store::read_manifest(folder + "/manifest.json");
  for (const store::ManifestFile& listed : manifest.files) {
    const store::SafetensorsFile file(folder + "/" + listed.name);
    EXPECT_EQ(file.metadata().at("step"), std::to_string(manifest.step)) << listed.name;
    if (listed.part == store::kOptimizerPart && !file.tensors().empty()) files.insert(listed.name);
  }
  return files;
}

std::set<std::string> files_of(int servers) {
  std::set<std::string> files;
  for (int i = 1; i <= servers; ++i) files.insert(fmt::format("optimizer-{}of{}.safetensors", i, servers));
  return files;
}

TEST(CheckpointParts, of_servers_are_read_by_any_number_of_tasks_of_any_kind) {
  const TestFolder folder;
  const std::string log = folder / "log";
  const auto until = [&](int steps) { return Flags{"--steps", std::to_string(steps)}; };
  const Flags kept = with(kModel, {"--logdir", log});
  const auto servers = [&](int count, int steps) {
    const Flags sync = with(kept, {"--strategy", "ps-sync", "--placement", "split:256"});
    const std::string hash = hash_of(on_servers(count, 2, with(sync, until(steps))), folder);
    EXPECT_EQ(optimizer_files(log + "/latest"), files_of(count)) << steps;
    EXPECT_EQ(json_of(log + "/latest/manifest.json").at("state").at("weights_sha256"), hash) << steps;
  };
  servers(3, 8);
  servers(2, 16);
  const ProgramResult inspected = run_program({program_path("tutti"), "inspect", log});
  EXPECT_EQ(inspected.exit_code, 0) << inspected.out << inspected.err;
  const Flags sharded = with(kept, {"--optimizer-state", "sharded"});
  hash_of(on_workers(3, with(sharded, until(24))), folder);
  // The model is so small that the first worker has none of it.
  EXPECT_THAT(files_of(3), ::testing::IsSupersetOf(optimizer_files(log + "/latest")));
  EXPECT_FALSE(optimizer_files(log + "/latest").empty());
  servers(1, 32);
  hash_of(on_workers(1, with(kept, until(40))), folder);
  EXPECT_EQ(optimizer_files(log + "/latest"), std::set<std::string>{"optimizer.safetensors"});
  servers(3, 48);
  EXPECT_EQ(hash_of(on_workers(2, with(kept, until(56))), folder),
            hash_of(on_workers(1, with(kModel, until(56))), folder));
}

TEST(CheckpointParts, of_servers_have_a_buffer_of_booleans_as_it_is) {
  const TestFolder folder;
  const std::string log = folder / "log";
  for (const char* strategy : {"ps-async", "ps-sync"}) {
    report_of(on_servers(2, 2, {"--net", "masked", "--steps", "8", "--strategy", strategy, "--logdir", log}),
              folder);
    const store::SafetensorsFile weights(log + "/latest/weights.safetensors");
    const torch::Tensor mask = weights.read("mask");
    EXPECT_TRUE(mask.equal(torch::arange(7) == 3)) << mask;
    fs::remove_all(log);
  }
}

// The state that only the chief keeps: a task that comes back brings all to the newest checkpoint, if need be
// to that of the start.
class Averages : public ::testing::TestWithParam<std::pair<const char*, int>> {};
INSTANTIATE_TEST_SUITE_P(CheckpointParts, Averages,
                         ::testing::Values(std::pair("worker", 0), std::pair("worker", 1),
                                           std::pair("ps", 1)),
                         [](const auto& info) {
                           return fmt::format("{}_{}", info.param.first, info.param.second);
                         });

TEST_P(Averages, stay_the_same_after_a_task_was_killed) {
  const auto [job, index] = GetParam();
  const Flags flags = {"--net",   "normed", "--lanes",   "4",   "--batch",          "5",
                       "--steps", "60",     "--average", "0.9", "--validate-every", "5"};
  const auto average_in = [](const std::string& log) {
    return store::SafetensorsFile(log + "/latest/average.safetensors").read_all();
  };
  const TestFolder folder;
  const std::string alone = hash_of(on_workers(1, with(flags, {"--logdir", folder / "alone"})), folder);
  const auto expected = average_in(folder / "alone");
  for (const char* every : {"0", "7", "auto"}) {
    const std::string log = folder / every;
    const std::string report = log + ".json";
    ServedRun run(fmt::format("average-{}{}", job, index),
                  served(2, 2,
                         with(flags, {"--strategy", "ps-sync", "--logdir", log, "--checkpoint-every", every,
                                      "--report", report}),
                         {"--restarts", "1"}));
    ASSERT_TRUE(eventually([&] { return fs::exists(log + "/ckpt-0"); }));
    run.kill(job, index);
    EXPECT_EQ(run.run().wait(), 0) << run.run().err();
    EXPECT_EQ(json_of(report).at("weights_sha256"), alone) << run.run().err();
    // Not before all have begun.
    const bool is_lost = run.run().err().find("has lost its part of the parameters") != std::string::npos;
    if (std::string_view(every) == "auto" && is_lost) {
      EXPECT_GE(json_of(report).at("checkpoints").at("failures"), 1) << run.run().err();
    }
    const auto found = average_in(log);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i)
      EXPECT_TRUE(found[i].tensor.equal(expected[i].tensor)) << found[i].name;
  }
}

// Every worker pushes whenever it likes, and the chief saves often.
TEST(CheckpointParts, of_servers_that_take_pushes_meanwhile_are_of_one_step) {
  const TestFolder folder;
  const std::string log = folder / "log";
  const Flags flags =
      with(kModel, {"--steps", "200", "--logdir", log, "--checkpoint-every", "10", "--keep", "0"});
  report_of(on_servers(3, 3, flags), folder);
  int checkpoints = 0;
  for (const auto& entry : fs::directory_iterator(log)) {
    if (!entry.path().filename().string().starts_with("ckpt-") || entry.path().filename() == "ckpt-0")
      continue;
    ++checkpoints;
    EXPECT_EQ(optimizer_files(entry.path()), files_of(3));
  }
  EXPECT_GE(checkpoints, 3);
}

// Starts two servers, with words before their commands, and a worker. Returns the chief's output.
ProgramResult with_servers_under(const Flags& words, const Flags& flags) {
  const Terminals terminals(2, 1);
  std::vector<std::unique_ptr<RunningProgram>> servers;
  for (int i = 0; i < 2; ++i)
    servers.push_back(terminals.start("ps", i, flags, with(words, {together_program(), "--threads", "1"})));
  const auto chief = terminals.start("worker", 0, flags);
  const int code = chief->wait();
  for (const auto& server : servers) {
    if (code != 0) ::kill(server->pid(), SIGTERM);
    server->wait();
  }
  return {code, chief->out(), chief->err()};
}

TEST(CheckpointParts, go_through_the_chief_if_servers_do_not_share_its_folder) {
  const TestFolder folder;
  const std::string log = folder / "log";
  fs::create_directory(log);
  const Flags elsewhere = {"unshare", "--mount", "sh", "-c", "mount -t tmpfs none " + log + " && exec \"$@\"",
                           "sh"};
  if (run_program(with(elsewhere, {"true"})).exit_code != 0)
    GTEST_SKIP() << "NOT TESTED: mounting is not allowed here";
  const Flags sync = with(kModel, {"--strategy", "ps-sync"});
  const Flags kept = with(sync, {"--logdir", log});
  const ProgramResult result = with_servers_under(elsewhere, with(kept, {"--steps", "10"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(optimizer_files(log + "/latest"), std::set<std::string>{"optimizer.safetensors"});
  EXPECT_EQ(hash_of(on_servers(3, 2, with(kept, {"--steps", "20"})), folder),
            hash_of(on_workers(1, with(kModel, {"--steps", "20"})), folder));
}

// The servers may not write files of more than 8 KB, which is less than their parts have.
TEST(CheckpointParts, that_a_server_cannot_write_are_named_and_do_not_count) {
  const TestFolder folder;
  const std::string log = folder / "log";
  const Flags full = {"sh", "-c", "trap '' XFSZ; ulimit -f 16; exec \"$@\"", "sh"};
  const ProgramResult result =
      with_servers_under(full, {"--net", "odd", "--lanes", "2", "--batch", "3", "--strategy", "ps-sync",
                                "--steps", "10", "--logdir", log});
  EXPECT_EQ(result.exit_code, exit_code(ErrorKind::Overloaded)) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("step 10"), HasSubstr("ps/"), HasSubstr("of2.safetensors"),
                                HasSubstr("File too large")));
  EXPECT_FALSE(fs::exists(log + "/ckpt-10"));
  EXPECT_EQ(json_of(log + "/latest/manifest.json").at("step"), 0);
}

// Returns true if the second server is writing its part at this moment.
bool is_writing(const std::string& log) {
  std::error_code error;
  for (fs::directory_iterator entry(log, error), end; !error && entry != end; entry.increment(error)) {
    const std::string file = entry->path() / "optimizer-2of2.safetensors";
    std::error_code ignored;
    if (fs::exists(file, ignored) && !fs::exists(file + ".written", ignored) &&
        entry->path().filename().string().starts_with("."))
      return true;
  }
  return false;
}

// Kills the second server while it writes its part of a checkpoint. Returns false if the writing was over
// before this process saw it, as on a busy machine.
bool kill_while_it_writes(int steps, const char* first) {
  const TestFolder folder;
  const std::string log = folder / "log";
  const Flags flags = {"--net", "wide", "--lanes", "2", "--batch", "2", "--steps", std::to_string(steps)};
  const std::string alone = hash_of(on_workers(1, flags), folder);
  const std::string report = folder / "killed.json";
  ServedRun job(fmt::format("writing{}", steps),
                served(2, 2,
                       with(flags, {"--strategy", "ps-sync", "--logdir", log, "--checkpoint-every", "3",
                                    "--placement", "split:1M", "--report", report}),
                       {"--restarts", "1"}));
  EXPECT_TRUE(eventually([&] { return fs::exists(log + first); })) << job.run().err();
  const std::string last = fmt::format("{}/ckpt-{}", log, steps);
  bool is_seen = false;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!is_seen && !fs::exists(last) && std::chrono::steady_clock::now() < deadline) {
    is_seen = is_writing(log);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (is_seen) job.kill("ps", 1);
  EXPECT_EQ(job.run().wait(), 0) << job.run().err();
  EXPECT_EQ(json_of(report).at("weights_sha256"), alone) << job.run().err();
  EXPECT_EQ(optimizer_files(last), files_of(2));
  return is_seen && ::testing::Value(job.run().err(), kLostWhileWriting);
}

bool some_time(const std::function<bool()>& happens) {
  constexpr int kTries = 10;
  for (int i = 0; i < kTries; ++i)
    if (happens()) return true;
  return false;
}

TEST(CheckpointParts, of_a_server_that_is_killed_while_it_writes_do_not_count) {
  EXPECT_TRUE(some_time([] { return kill_while_it_writes(12, "/ckpt-3"); }));
}

TEST(CheckpointParts, of_a_server_that_is_killed_while_it_writes_the_last_ones_are_written_again) {
  EXPECT_TRUE(some_time([] { return kill_while_it_writes(3, "/ckpt-0"); }));
}

}  // namespace
}  // namespace tutti::testing::checkpoint_parts_test

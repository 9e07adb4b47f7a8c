// Tests a master and its passive workers as users run them: with the same program, and with bare servers that
// receive one.
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>

#include <gmock/gmock.h>

#include "tests/served.h"
#include "tests/together.h"
#include "tutti/base/error.h"

namespace tutti::testing::in_graph_test {
namespace {

using ::testing::HasSubstr;

Flags driven(int workers, const Flags& flags, const Flags& launcher = {}) {
  Flags command = with({program_path("tutti"), "run", "-n", std::to_string(workers)}, launcher);
  command = with(command, {"--", together_program(), "--threads", "1", "--strategy", "in-graph"});
  return with(command, flags);
}

TEST(InGraph, has_the_bits_of_one_process) {
  const TestFolder folder;
  for (const std::string net : {"normed", "odd"}) {
    const Flags flags = {"--net", net, "--lanes", "8", "--batch", "3", "--steps", "20"};
    const std::string alone = hash_of(on_workers(1, flags), folder);
    for (const int workers : {1, 2, 3}) EXPECT_EQ(hash_of(with_master(workers, flags), folder), alone) << net;
  }
}

TEST(InGraph, clips_the_gradient_and_leaves_out_empty_lanes_with_the_bits_of_one_process) {
  const TestFolder folder;
  // In the last of the two steps, lanes 1 and 2 have no examples.
  const Flags flags = {
      "--net",    "normed", "--clip-norm",         "0.5",        "--lanes", "3", "--batch", "190",
      "--epochs", "1",      "--no-drop-remainder", "--examples", "600"};
  EXPECT_EQ(hash_of(with_master(2, flags), folder), hash_of(on_workers(1, flags), folder));
}

TEST(InGraph, ends_where_a_hook_says_at_the_step_of_one_process) {
  const TestFolder folder;
  const Flags flags = {"--net", "normed", "--lanes", "4", "--batch", "3", "--steps", "100", "--stop-at", "7"};
  const nlohmann::json alone = report_of(on_workers(1, flags), folder);
  const Flags kept = with(flags, {"--logdir", folder / "log"});
  for (const int workers : {2, 1}) {
    const nlohmann::json report = report_of(with_master(workers, kept), folder);
    EXPECT_EQ(report.at("steps"), 8) << workers;
    EXPECT_EQ(report.at("weights_sha256"), alone.at("weights_sha256")) << workers;
  }
}

TEST(InGraph, saves_every_so_many_steps_and_no_more_often) {
  const TestFolder folder;
  const ProgramResult result =
      run_program(driven(2, {"--batch", "3", "--steps", "50", "--logdir", folder / "log",
                             "--checkpoint-every", "15", "--keep", "100"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::set<std::string> saved;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "log")) {
    const std::string name = entry.path().filename();
    if (name.starts_with("ckpt-")) saved.insert(name);
  }
  EXPECT_EQ(saved, (std::set<std::string>{"ckpt-15", "ckpt-30", "ckpt-45", "ckpt-50"}));
}

TEST(InGraph, a_hook_may_measure_between_two_steps) {
  const TestFolder folder;
  const Flags flags = {"--lanes",         "2",  "--batch",   "20", "--steps", "30",
                       "--measure-every", "10", "--evaluate"};
  const ProgramResult alone = run_job(on_workers(1, flags));
  const ProgramResult result = run_job(with_master(2, flags));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto measured = [](const ProgramResult& ran) {
    std::vector<std::string> lines;
    for (size_t at = ran.out.find("accuracy "); at != std::string::npos;
         at = ran.out.find("accuracy ", at + 1))
      lines.push_back(ran.out.substr(at, ran.out.find('\n', at) - at));
    return lines;
  };
  EXPECT_EQ(measured(result).size(), 3U) << result.out;
  EXPECT_EQ(measured(result), measured(alone));
}

TEST(InGraph, says_who_did_what) {
  const TestFolder folder;
  const std::string report = folder / "report.json";
  const ProgramResult result = run_program(driven(2, {"--batch", "4", "--steps", "10", "--report", report}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("2 passive workers connected"));
  EXPECT_EQ(json_of(report).at("strategy"), "in-graph");
  EXPECT_EQ(json_of(report).at("world"), 2);
  EXPECT_EQ(json_of(report).at("lanes"), 2);
  EXPECT_EQ(json_of(report).at("examples"), 80);
}

TEST(InGraph, workers_choose_their_ports_and_tell_the_master) {
  const TestFolder folder;
  const Flags model = {"--net", "odd", "--lanes", "2", "--batch", "4", "--steps", "20"};
  const Terminals terminals({{"master", 1}, {"worker", 2}}, "master/0");
  const Flags flags = with(model, {"--strategy", "in-graph"});
  const std::string report = folder / "report.json";
  const auto first = terminals.start("worker", 0, flags);
  const auto second = terminals.start("worker", 1, flags);
  const auto master = terminals.start("master", 0, with(flags, {"--report", report}));
  for (RunningProgram* task : {master.get(), first.get(), second.get()})
    EXPECT_EQ(task->wait(), 0) << task->err();
  EXPECT_EQ(json_of(report).at("weights_sha256"), hash_of(on_workers(1, model), folder));
}

class KilledInGraph : public ::testing::TestWithParam<std::pair<const char*, int>> {};
INSTANTIATE_TEST_SUITE_P(InGraph, KilledInGraph,
                         ::testing::Values(std::pair("worker", 1), std::pair("master", 0)),
                         [](const auto& info) { return std::string(info.param.first); });

TEST_P(KilledInGraph, task_comes_back_and_the_bits_stay) {
  const auto [job, index] = GetParam();
  const TestFolder folder;
  const Flags flags = {"--net", "normed", "--lanes", "4", "--batch", "50", "--steps", "150"};
  const std::string alone = hash_of(on_workers(1, flags), folder);
  const std::string report = folder / "killed.json";
  ServedRun run(
      fmt::format("in-graph-{}", job),
      driven(2, with(flags, {"--logdir", folder / "log", "--checkpoint-every", "20", "--report", report}),
             {"--restarts", "1"}));
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(folder / "log/ckpt-20"); }));
  run.kill(job, index);
  EXPECT_EQ(run.run().wait(), 0) << run.run().err();
  EXPECT_EQ(json_of(report).at("weights_sha256"), alone) << run.run().err();
  if (job == std::string("worker")) {
    EXPECT_THAT(run.run().err(), ::testing::ContainsRegex("worker/1 .*is back"));
  }
}

TEST(InGraph, stops_with_a_checkpoint_and_goes_on_from_it) {
  const TestFolder folder;
  const Flags flags = {"--net", "odd", "--lanes", "2", "--batch", "4", "--steps", "2000"};
  const std::string alone = hash_of(on_workers(1, flags), folder);
  const Flags kept = with(flags, {"--logdir", folder / "log"});
  RunningProgram first(driven(2, kept));
  first.wait_for_output("under way");
  ::kill(first.pid(), SIGTERM);
  EXPECT_EQ(first.wait(), 128 + SIGTERM) << first.err();
  EXPECT_EQ(hash_of(with_master(1, kept), folder), alone);
}

TEST(InGraph, refuses_a_worker_of_another_model) {
  const Terminals terminals({{"master", 1}, {"worker", 1}});
  const Flags program = {together_program(), "--strategy", "in-graph", "--steps", "5"};
  const auto worker = terminals.start("worker", 0, {"--net", "normed"}, program);
  const auto master = terminals.start("master", 0, {"--net", "odd"}, program);
  EXPECT_EQ(master->wait(), exit_code(ErrorKind::InvalidArgument)) << master->err();
  EXPECT_THAT(master->err(), HasSubstr("worker/0 has"));
  EXPECT_EQ(worker->wait(), exit_code(ErrorKind::InvalidArgument)) << worker->err();
}

TEST(InGraph, refuses_a_worker_with_another_flag_and_tells_all) {
  const Terminals terminals({{"master", 1}, {"worker", 2}});
  const Flags program = {together_program(), "--strategy", "in-graph", "--steps", "5"};
  const auto other = terminals.start("worker", 1, {"--clip-norm", "0.5"}, program);
  const auto worker = terminals.start("worker", 0, {}, program);
  const auto master = terminals.start("master", 0, {}, program);
  for (const auto* task : {&master, &worker, &other}) {
    EXPECT_EQ((*task)->wait(), exit_code(ErrorKind::InvalidArgument)) << (*task)->err();
    EXPECT_THAT((*task)->err(), HasSubstr("worker/1"));
    EXPECT_THAT((*task)->err(), HasSubstr("'--clip-norm 0.5'"));
  }
}

TEST(InGraph, names_workers_that_do_not_come) {
  const Terminals terminals({{"master", 1}, {"worker", 2}});
  const Flags program = {together_program(), "--strategy", "in-graph", "--steps", "5"};
  const auto worker = terminals.start("worker", 1, {}, program);
  const auto master = terminals.start("master", 0, {"--start-timeout", "1"}, program);
  EXPECT_EQ(master->wait(), exit_code(ErrorKind::Timeout)) << master->err();
  EXPECT_THAT(master->err(), HasSubstr("waited in vain for 1 s (--start-timeout) for worker/0 (127.0.0.1:"));
}

TEST(InGraph, names_a_master_that_does_not_come) {
  const Terminals terminals({{"master", 1}, {"worker", 1}});
  const auto worker = terminals.start("worker", 0, {"--strategy", "in-graph", "--start-timeout", "1"});
  EXPECT_EQ(worker->wait(), exit_code(ErrorKind::Timeout)) << worker->err();
  EXPECT_THAT(worker->err(),
              HasSubstr("waited in vain for 1 s (--start-timeout) for the master, master/0 (127.0.0.1:"));
}

TEST(InGraph, names_the_callers_that_a_worker_has_refused_if_its_master_does_not_come) {
  const Terminals terminals({{"master", 1}, {"worker", 1}});
  const auto master =
      terminals.start("master", 0, {"--strategy", "in-graph", "--secret", std::string(32, 'a')});
  const auto worker = terminals.start(
      "worker", 0, {"--strategy", "in-graph", "--secret", std::string(32, 'b'), "--start-timeout", "15"});
  EXPECT_NE(master->wait(), 0);
  EXPECT_EQ(worker->wait(), exit_code(ErrorKind::Timeout)) << worker->err();
  EXPECT_THAT(worker->err(), AllOf(HasSubstr("callers that this task has refused"), HasSubstr("secret")));
}

TEST(InGraph, names_a_master_that_is_stopped_and_waits_no_longer_than_its_timeout) {
  const Terminals terminals({{"master", 1}, {"worker", 1}});
  const Flags flags = {"--strategy", "in-graph", "--batch",         "2",   "--steps", "1000000000",
                       "--timeout",  "4",        "--start-timeout", "3600"};
  const auto worker = terminals.start("worker", 0, flags);
  const auto master = terminals.start("master", 0, flags);
  master->wait_for_output("under way");
  ::kill(master->pid(), SIGSTOP);
  EXPECT_EQ(worker->wait(), exit_code(ErrorKind::Timeout)) << worker->err();
  EXPECT_THAT(worker->err(), HasSubstr("waited in vain for 4 s (--timeout) for the master, master/0 (host "));
  EXPECT_THAT(worker->err(), HasSubstr("is stopped"));
}

TEST(InGraph, wants_somebody_who_computes) {
  const ProgramResult result = run_program({together_program(), "--strategy", "in-graph", "--steps", "5"});
  EXPECT_EQ(result.exit_code, exit_code(ErrorKind::InvalidArgument));
  EXPECT_THAT(result.err, HasSubstr("tutti run -n 2"));
}

// The cluster of the documentation: a master, and two bare servers in jobs of their own.
class BareServers : public ::testing::Test {
 protected:
  Flags example(const Flags& flags) const {
    return with({program_path("in_graph"), "--threads", "1", "--steps", "100"}, flags);
  }
  Flags in_graph(const Flags& flags) const { return with(example({"--strategy", "in-graph"}), flags); }
  std::unique_ptr<RunningProgram> serve(const std::string& job, const Flags& flags = {"--allow-programs"}) {
    return terminals_.start(job, 0, flags, {program_path("tutti"), "serve"});
  }
  static std::string content(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }

  const TestFolder folder_;
  const Terminals terminals_{{{"master", 1}, {"worker", 1}, {"worker_", 1}}};
};

TEST_F(BareServers, draw_the_curve_of_one_process) {
  const std::string alone = folder_ / "alone.txt";
  const std::string hash = hash_of(example({"--lanes", "2", "--curve", alone}), folder_);
  const auto worker = serve("worker");
  const auto other = serve("worker_");
  const std::string picture = folder_ / "curves.svg";
  const std::string report = folder_ / "driven.json";
  const auto master = terminals_.start(
      "master", 0, {}, in_graph({"--against", alone, "--picture", picture, "--report", report}));
  EXPECT_EQ(master->wait(), 0) << master->err();
  EXPECT_THAT(master->out(), HasSubstr("the curves are the same in all 100 steps"));
  EXPECT_EQ(json_of(report).at("weights_sha256"), hash);
  EXPECT_THAT(content(picture), HasSubstr("<svg"));
  EXPECT_THAT(content(picture), HasSubstr("a master and its workers"));
  EXPECT_EQ(worker->wait(), 0) << worker->err();
  EXPECT_EQ(other->wait(), 0) << other->err();
}

TEST_F(BareServers, give_by_hand_what_the_trainer_gives) {
  const std::string hash = hash_of(example({"--lanes", "2"}), folder_);
  const auto worker = serve("worker");
  const auto other = serve("worker_");
  const auto master = terminals_.start("master", 0, {}, in_graph({"--by-hand"}));
  EXPECT_EQ(master->wait(), 0) << master->err();
  EXPECT_THAT(master->out(), HasSubstr("weights " + hash));
  EXPECT_EQ(worker->wait(), 0) << worker->err();
  EXPECT_EQ(other->wait(), 0) << other->err();
}

TEST_F(BareServers, carry_out_nothing_where_they_were_not_told_so) {
  const auto worker = serve("worker", {});
  const auto other = serve("worker_");
  const auto master = terminals_.start("master", 0, {}, in_graph({}));
  EXPECT_EQ(master->wait(), exit_code(ErrorKind::InvalidArgument)) << master->err();
  EXPECT_THAT(master->err(), HasSubstr("worker/0 does not run programs"));
  EXPECT_THAT(master->err(), HasSubstr("--allow-programs"));
  for (const std::string job : {"worker", "worker_"}) {
    const ProgramResult stop =
        run_program({program_path("tutti"), "stop", "--cluster_spec", terminals_.spec(), "--job_name", job});
    EXPECT_EQ(stop.exit_code, 0) << stop.err;
  }
  EXPECT_EQ(worker->wait(), 0) << worker->err();
  EXPECT_EQ(other->wait(), 0) << other->err();
}

TEST_F(BareServers, say_that_the_first_task_is_the_client) {
  const auto master = serve("master");
  EXPECT_EQ(master->wait(), exit_code(ErrorKind::InvalidArgument)) << master->err();
  EXPECT_THAT(master->err(), HasSubstr("master/0 is the first task of the cluster"));
  EXPECT_THAT(master->err(), HasSubstr("start your program with these flags instead"));
  EXPECT_THAT(master->err(), HasSubstr("worker/0, worker_/0"));
}

TEST_F(BareServers, name_a_master_that_does_not_come_and_wait_on) {
  const auto worker = serve("worker", {"--start-timeout", "1"});
  worker->wait_for_error("still waiting for the master, master/0 (127.0.0.1:");
  worker->wait_for_error("waits on; `tutti stop` ends it");
  const ProgramResult stop = run_program(
      {program_path("tutti"), "stop", "--cluster_spec", terminals_.spec(), "--job_name", "worker"});
  EXPECT_EQ(stop.exit_code, 0) << stop.err;
  EXPECT_EQ(worker->wait(), 0) << worker->err();
}

TEST_F(BareServers, ask_for_a_program_where_they_get_none) {
  const auto worker = serve("worker");
  const auto other = serve("worker_");
  const auto master =
      terminals_.start("master", 0, {}, {together_program(), "--strategy", "in-graph", "--steps", "5"});
  EXPECT_EQ(master->wait(), exit_code(ErrorKind::InvalidArgument)) << master->err();
  EXPECT_THAT(master->err(), HasSubstr("does not have the model"));
}

TEST_F(BareServers, are_waited_for_when_they_are_lost) {
  const std::string hash = hash_of(example({"--lanes", "2", "--steps", "1500"}), folder_);
  auto worker = serve("worker");
  const auto other = serve("worker_");
  const std::string report = folder_ / "driven.json";
  const auto master = terminals_.start("master", 0, {}, in_graph({"--steps", "1500", "--report", report}));
  worker->wait_for_error("driven by");
  ::kill(worker->pid(), SIGKILL);
  worker->wait();
  worker = serve("worker");
  EXPECT_EQ(master->wait(), 0) << master->err();
  EXPECT_EQ(json_of(report).at("weights_sha256"), hash);
  EXPECT_EQ(worker->wait(), 0) << worker->err();
  EXPECT_EQ(other->wait(), 0) << other->err();
}

}  // namespace
}  // namespace tutti::testing::in_graph_test

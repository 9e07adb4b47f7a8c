// Tests how `tutti run` starts a job and passes on what it prints.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sched.h>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/run_job.h"
#include "tutti/base/error.h"
#include "tutti/base/ports.h"

namespace tutti::testing::run_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

TEST_F(Run, tells_each_worker_who_it_is) {
  const auto result = run({"-n", "3"}, "echo $TUTTI_JOB_NAME $TUTTI_TASK_INDEX $TUTTI_CLUSTER_SPEC");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::set<std::string> clusters;
  std::vector<std::string> who;
  for (const std::string& line : lines_of(result.out)) {
    std::istringstream words(line);
    std::string prefix, job, index, cluster;
    words >> prefix >> job >> index >> cluster;
    who.push_back((prefix += " " + job) += " " + index);
    clusters.insert(cluster);
  }
  EXPECT_THAT(who, UnorderedElementsAre("[worker/0] worker 0", "[worker/1] worker 1", "[worker/2] worker 2"));
  ASSERT_EQ(clusters.size(), 1U);
  const std::string port = "127\\.0\\.0\\.1:[0-9]+";
  EXPECT_TRUE(std::regex_match(*clusters.begin(), std::regex("worker\\|" + port + ";" + port + ";" + port)))
      << *clusters.begin();
}

TEST_F(Run, tells_each_worker_its_rank_as_torchrun_does) {
  const std::string ranks = "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR";
  for (const Words& hosts : {Words{}, Words{"-H", "localhost:2"}}) {
    const auto result = run(hosts + Words{"-n", "2", "--ps", "1"}, ranks, {"RANK=7"});
    EXPECT_THAT(lines_of(result.out), UnorderedElementsAre("[worker/0] 0 2 0 2 0 127.0.0.1",
                                                           "[worker/1] 1 2 1 2 0 127.0.0.1", "[ps/0] 7"))
        << result.err;
  }
  // PyTorch's store has a port of its own, but not if the user has chosen the ports of the tasks.
  const std::string port =
      "case $TUTTI_CLUSTER_SPEC in *:$MASTER_PORT*) echo of a task;; *) echo ${MASTER_PORT:+own};; esac";
  const std::string range = "20000-30000";
  for (const Words& hosts : {Words{}, Words{"-H", "localhost:2"}}) {
    EXPECT_THAT(lines_of(run(hosts + Words{"-n", "2"}, port).out),
                UnorderedElementsAre("[worker/0] own", "[worker/1] own"));
    EXPECT_THAT(lines_of(run(hosts + Words{"-n", "2", "--ports", range}, port).out),
                UnorderedElementsAre("[worker/0] of a task", "[worker/1] of a task"));
  }
  const auto changing = run({"-n", "2", "--min", "1"}, "echo $RANK $WORLD_SIZE $MASTER_PORT.");
  EXPECT_THAT(lines_of(changing.out), UnorderedElementsAre("[worker/0] .", "[worker/1] ."));
}

TEST_F(Run, gives_tasks_ports_of_the_range) {
  const int first = HeldPorts(1).numbers().at(0);
  const std::string range = fmt::format("{}-{}", std::min(first, 65000), std::min(first, 65000) + 100);
  for (const Words& hosts : {Words{}, Words{"-H", "localhost:2"}}) {
    const auto result =
        run(hosts + Words{"-n", "2", "--ps", "1", "--ports", range}, "echo $TUTTI_CLUSTER_SPEC");
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const std::regex address("127\\.0\\.0\\.1:([0-9]+)");
    const std::string line = lines_of(result.out).at(0);
    int ports = 0;
    for (std::sregex_iterator found(line.begin(), line.end(), address), end; found != end; ++found, ++ports) {
      const int port = std::stoi((*found)[1]);
      EXPECT_TRUE(port >= std::min(first, 65000) && port <= std::min(first, 65000) + 100) << line;
    }
    EXPECT_EQ(ports, 3) << line;
  }
}

TEST_F(Run, says_that_a_range_of_ports_is_too_small_or_none) {
  const auto small = run({"-n", "2", "--ports", std::to_string(HeldPorts(1).numbers().at(0))}, "echo never");
  EXPECT_EQ(small.exit_code, 2);
  EXPECT_THAT(small.err, HasSubstr("is too small for 2 tasks"));
  EXPECT_EQ(small.out, "");
  const auto none = run({"-n", "2", "--ports", "2300-2222"}, "echo never");
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("'2300-2222' is not a range of ports"));
}

// Nobody else is given a port of a task that has not listened yet, or is being restarted.
TEST_F(Run, holds_the_ports_of_its_tasks) {
  const std::string script =
      "echo $TUTTI_CLUSTER_SPEC; until [ -e " + folder_.path() + "/go ]; do sleep 0.01; done";
  RunningProgram program(command({"-n", "2"}, script), {mark_});
  program.wait_for_output("\n");
  const std::string line = lines_of(program.out()).at(0);
  const int port = std::stoi(line.substr(line.rfind(':') + 1));
  EXPECT_THROW(HeldPorts(1, PortRange{port, port}), Error);
  folder_.write("go", "");
  EXPECT_EQ(program.wait(), 0) << program.err();
}

TEST_F(Run, one_worker_writes_to_the_terminal_itself) {
  const auto result = run({}, "printf 'no newline'; printf '\\r50 %%' >&2");
  EXPECT_EQ(result.out, "no newline");
  EXPECT_EQ(result.err, "\r50 %");
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  return CPU_COUNT(&set);
}

TEST_F(Run, shares_out_the_cores_unless_there_are_too_few) {
  const auto result =
      run({"-n", "2"}, "grep Cpus_allowed_list /proc/self/status; echo threads $OMP_NUM_THREADS");
  std::set<std::string> cores;
  for (const std::string& line : lines_of(result.out)) {
    if (line.find("Cpus_allowed_list") != std::string::npos) cores.insert(line.substr(line.find('\t')));
  }
  EXPECT_EQ(cores.size(), usable_cores() > 1 ? 2U : 1U) << result.out;
  const auto crowd = run({"-n", "500"}, "true");
  EXPECT_EQ(crowd.exit_code, 0) << crowd.err;
}

TEST_F(Run, leaves_the_number_of_threads_that_was_asked_for) {
  const auto result = run({"-n", "2"}, "echo $OMP_NUM_THREADS", {"OMP_NUM_THREADS=3"});
  EXPECT_THAT(lines_of(result.out), UnorderedElementsAre("[worker/0] 3", "[worker/1] 3"));
}

TEST_F(Run, never_mixes_lines_of_two_workers) {
  // Prints halves of lines, slowly, to both streams.
  const std::string script =
      "for i in $(seq 200); do printf 'half of %s.' $TUTTI_TASK_INDEX; printf 'other half of %s\\n' "
      "$TUTTI_TASK_INDEX; "
      "printf 'E%s' $TUTTI_TASK_INDEX >&2; printf 'e%s\\n' $TUTTI_TASK_INDEX >&2; done";
  const auto result = run({"-n", "3"}, script);
  const std::regex out_line("\\[worker/([0-9])\\] half of \\1\\.other half of \\1");
  const std::regex err_line("\\[worker/([0-9])\\] E\\1e\\1");
  for (const std::string& line : lines_of(result.out)) EXPECT_TRUE(std::regex_match(line, out_line)) << line;
  for (const std::string& line : lines_of(result.err)) EXPECT_TRUE(std::regex_match(line, err_line)) << line;
  EXPECT_EQ(lines_of(result.out).size(), 600U);
  EXPECT_EQ(lines_of(result.err).size(), 600U);
}

TEST_F(Run, passes_on_long_lines_and_last_ones_without_a_newline) {
  const auto result = run({"-n", "2"}, "head -c 300000 /dev/zero | tr '\\0' x; echo; printf end");
  const auto lines = lines_of(result.out);
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(), [](const auto& line) { return line.size() == 300011; }),
            2);
  EXPECT_THAT(lines, ::testing::IsSupersetOf({"[worker/0] end", "[worker/1] end"}));
}

TEST_F(Run, many_workers_that_print_much_lose_nothing) {
  const auto result = run({"-n", "4"}, "seq 50000");
  EXPECT_EQ(lines_of(result.out).size(), 200000U);
}

// Nobody reads the output until the end.
TEST_F(Run, a_reader_that_stalls_does_not_keep_a_failure_from_ending_the_job) {
  const std::string endless = "ENDLESS_OF_THIS_TEST=" + folder_.path();
  RunningProgram program(
      command({"-n", "2"}, "if [ $TUTTI_TASK_INDEX = 1 ]; then sleep 1; exit 3; fi; " + endless + " yes"),
      {mark_});
  EXPECT_TRUE(eventually([&] { return !processes_with(endless).empty(); }));
  EXPECT_TRUE(eventually([&] { return processes_with(endless).empty(); }));
  EXPECT_EQ(program.wait(), 3);
  EXPECT_THAT(program.err(), HasSubstr("worker/1 (pid "));
  EXPECT_TRUE(nobody_is_left());
}

TEST_F(Run, a_reader_that_stalls_does_not_keep_a_signal_from_ending_the_job) {
  const std::string endless = "ENDLESS_OF_THIS_TEST=" + folder_.path();
  RunningProgram program(command({"-n", "2"}, "echo ready; " + endless + " exec yes"), {mark_});
  program.wait_for_output("ready");
  EXPECT_TRUE(eventually([&] { return processes_with(endless).size() == 2; }));
  kill(program.pid(), SIGTERM);
  EXPECT_TRUE(eventually([&] { return processes_with(endless).empty(); }));
  EXPECT_EQ(program.wait(), 143);
  EXPECT_TRUE(nobody_is_left());
}

TEST_F(Run, a_slow_reader_gets_it_all) {
  const auto result = run_program(
      {"sh", "-c", program_path("tutti") + " run -n 2 -- seq 200000 | { sleep 2; wc -l; }"}, {mark_});
  EXPECT_EQ(result.out, "400000\n");
}

TEST_F(Run, a_grandchild_that_goes_on_printing_does_not_keep_a_failure_from_ending_the_job) {
  const auto result = run({"-n", "2"}, "[ $TUTTI_TASK_INDEX = 0 ] && sleep 1000; yes & sleep 0.3; exit 4");
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, HasSubstr("worker/1 (pid "));
  EXPECT_TRUE(nobody_is_left());
}

TEST_F(Run, tells_every_launch_from_all_others) {
  std::set<std::string> keys;
  for (const size_t launches : {1U, 2U}) {
    for (const std::string& line : lines_of(run({"-n", "2"}, "echo $_TUTTI_LAUNCH").out))
      keys.insert(line.substr(line.find(' ')));
    EXPECT_EQ(keys.size(), launches);
  }
}

TEST_F(Run, makes_a_secret_that_only_its_tasks_know) {
  const std::string script = "echo \"$_TUTTI_SECRET,$TUTTI_SECRET\"";
  std::set<std::string> secrets;
  for (const size_t launches : {1U, 2U}) {
    const auto result = run({"-n", "2"}, script, {"_TUTTI_SECRET=old", "TUTTI_LOG_LEVEL=debug"});
    for (const std::string& line : lines_of(result.out)) {
      if (line.ends_with(",")) secrets.insert(line.substr(line.find(' ') + 1));
    }
    EXPECT_EQ(secrets.size(), launches) << result.out;
    EXPECT_FALSE(secrets.contains("old,"));
    for (const std::string& secret : secrets) EXPECT_EQ(secret.size(), 33U) << secret;
  }
  const auto given = run({"-n", "2"}, "echo \"$_TUTTI_SECRET,$TUTTI_SECRET\"", {"TUTTI_SECRET=ours"});
  EXPECT_THAT(lines_of(given.out), ::testing::UnorderedElementsAre("[worker/0] ,ours", "[worker/1] ,ours"));
}

// The variables of the tests name GPUs that this machine may not have.
constexpr const char* kNoGpus = "but this machine shows none";

std::string without_that_there_are_no_gpus(const std::string& err) {
  std::string rest;
  for (const std::string& line : lines_of(err)) {
    if (line.find(kNoGpus) == std::string::npos) rest += line + "\n";
  }
  return rest;
}

TEST_F(Run, says_that_there_are_no_GPUs_although_a_variable_names_some) {
  if (std::filesystem::exists("/dev/nvidia0")) GTEST_SKIP() << "NOT TESTED: this machine has a GPU";
  const auto result = run({}, "true", {"CUDA_VISIBLE_DEVICES=0,1"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(lines_of(result.err).size(), 1U) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("warning"), HasSubstr("names 2 GPUs"), HasSubstr(kNoGpus)));
}

TEST_F(Run, starts_a_worker_for_every_GPU_and_shows_each_its_own) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> lists = {
      {"0,1", {"[worker/0] 0", "[worker/1] 1"}},
      {"3,1,2", {"[worker/0] 3", "[worker/1] 1", "[worker/2] 2"}},
      {"0,1,-1,2", {"[worker/0] 0", "[worker/1] 1"}},
      {"GPU-8932f937,GPU-0c1f", {"[worker/0] GPU-8932f937", "[worker/1] GPU-0c1f"}},
      {"2", {"2"}},
      {"-1", {"-1"}},
      {"", {""}}};
  for (const auto& [list, lines] : lists) {
    const auto result = run({}, "echo $CUDA_VISIBLE_DEVICES", {"CUDA_VISIBLE_DEVICES=" + list});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(lines_of(result.out), ::testing::UnorderedElementsAreArray(lines)) << list;
    EXPECT_EQ(without_that_there_are_no_gpus(result.err), "");
  }
}

TEST_F(Run, believes_what_the_container_was_given) {
  unsetenv("CUDA_VISIBLE_DEVICES");
  const std::string script = "echo ${CUDA_VISIBLE_DEVICES-unset}";
  EXPECT_THAT(lines_of(run({}, script, {"NVIDIA_VISIBLE_DEVICES=4,6"}).out),
              UnorderedElementsAre("[worker/0] 0", "[worker/1] 1"));
  EXPECT_THAT(lines_of(run({}, script, {"NVIDIA_VISIBLE_DEVICES=MIG-a,MIG-b"}).out),
              UnorderedElementsAre("[worker/0] MIG-a", "[worker/1] MIG-b"));
  EXPECT_EQ(run({}, script, {"NVIDIA_VISIBLE_DEVICES=none"}).out, "unset\n");
}

TEST_F(Run, says_once_that_workers_and_GPUs_are_not_as_many) {
  const auto crowd = run({"-n", "3"}, "echo $CUDA_VISIBLE_DEVICES", {"CUDA_VISIBLE_DEVICES=4,5"});
  EXPECT_THAT(lines_of(crowd.out), UnorderedElementsAre("[worker/0] 4", "[worker/1] 5", "[worker/2] 4"));
  EXPECT_THAT(crowd.err, HasSubstr("warning: 3 workers on 2 GPUs"));
  EXPECT_EQ(lines_of(without_that_there_are_no_gpus(crowd.err)).size(), 1U) << crowd.err;
  const std::vector<std::string> four = {"CUDA_VISIBLE_DEVICES=4,5,6,7", "TUTTI_LOG_LEVEL=info"};
  const auto few = run({"-n", "1"}, "echo $CUDA_VISIBLE_DEVICES", four);
  EXPECT_EQ(few.out, "4\n");
  EXPECT_THAT(few.err, HasSubstr("1 worker on 4 GPUs"));
  const auto quiet = run({"-n", "1"}, "true", {"CUDA_VISIBLE_DEVICES=4,5,6,7", "TUTTI_LOG_LEVEL=error"});
  EXPECT_EQ(quiet.err, "");
}

TEST_F(Run, refuses_a_GPU_that_is_named_twice) {
  const auto result = run({}, "true", {"CUDA_VISIBLE_DEVICES=0,1,0"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("CUDA_VISIBLE_DEVICES='0,1,0' names GPU '0' twice"));
}

TEST_F(Run, gives_the_workers_the_variables_that_x_names) {
  const auto result = run({"-n", "2", "-x", "COLOUR=red", "-x", "MARK_OF_THIS_TEST"}, "echo $COLOUR");
  EXPECT_THAT(lines_of(result.out), UnorderedElementsAre("[worker/0] red", "[worker/1] red"));
  EXPECT_EQ(run({"-x", "NOWHERE"}, "true").exit_code, 2);
}

TEST_F(Run, refuses_hosts_that_it_does_not_understand_and_quotes_them) {
  const auto refused = [&](const std::string& text, const ProgramResult& result) {
    EXPECT_EQ(result.exit_code, 2) << result.out;
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, HasSubstr(text));
    EXPECT_EQ(lines_of(result.err).size(), 1U) << result.err;
  };
  refused("empty entry", run({"-H", ""}, "true"));
  refused("'x' in 'b:x'", run({"-H", "a:2,b:x"}, "true"));
  refused("'a' twice", run({"-H", "a:2,a:2"}, "true"));
  refused("5 workers", run({"-H", "a:2,b:2", "-n", "5"}, "true"));
  refused("TF_CONFIG", run({"-H", "a:2"}, "true", {"TF_CONFIG={\"cluster\": {}}"}));
  refused("-x NOWHERE: the variable is not set here", run({"-H", "a:2", "-x", "NOWHERE"}, "true"));
  refused("names no program", run({"-H", "a:2", "--rsh", " "}, "true"));
  refused("the other hosts cannot reach 'localhost'",
          run({"-H", "localhost:1,b:1", "--rsh", agent()}, "true"));
}

// This machine needs no ssh. The worker has the addresses of a job on one machine.
TEST_F(Run, on_this_host_alone_needs_no_other_program) {
  const auto result = run({"-H", "localhost:2", "--rsh", "no-such-program"}, "echo $TUTTI_CLUSTER_SPEC");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(lines_of(result.out), ::testing::Each(HasSubstr("] worker|127.0.0.1:")));
  EXPECT_EQ(lines_of(result.out).size(), 2U);
}

TEST_F(Run, fills_the_slots_of_the_hosts_in_their_order) {
  const auto result = run({"-H", "a:2,b:2,c:2", "-n", "3", "--rsh", agent()}, "echo $HOST_OF_AGENT");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(lines_of(result.out), UnorderedElementsAre("[worker/0] a", "[worker/1] a", "[worker/2] b"));
}

TEST_F(Run, a_program_that_is_not_there_is_one_readable_line) {
  for (const char* workers : {"1", "3"}) {
    const auto result = run_program(
        {program_path("tutti"), "run", "-n", workers, "--restarts", "2", "--", "no-such-program"});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err,
                StartsWith("InvalidArgument: no-such-program: there is no such program in PATH; if "
                           "it is in this folder, write ./no-such-program"));
    EXPECT_THAT(result.err, Not(HasSubstr("./dev")));  // an installed command is not in the repository
    EXPECT_EQ(lines_of(result.err).size(), 1U);
  }
}

TEST_F(Run, a_file_that_is_no_program_is_one_readable_line) {
  const std::string file = folder_ / "plain.txt";
  std::ofstream(file) << "text";
  const auto result = run_program({program_path("tutti"), "run", "--", file});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("chmod +x"));
}

TEST_F(Run, flags_behind_the_program_are_the_programs) {
  const std::string tutti = program_path("tutti");
  EXPECT_EQ(run_program({tutti, "run", "-n", "1", "--", "echo", "-n", "2", "--", "x"}).out, "2 -- x");
  EXPECT_EQ(run_program({tutti, "run", "echo", "a", "--", "b"}).out, "a -- b\n");
}

TEST_F(Run, refuses_what_it_does_not_understand) {
  const std::string tutti = program_path("tutti");
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{{"-n", "0"},
                                                                                     {"-n", "x"},
                                                                                     {"-n"},
                                                                                     {"--restarts", "-1"},
                                                                                     {"--restart", "1"},
                                                                                     {"-H"},
                                                                                     {"--start-timeout", "0"},
                                                                                     {"--start-timeout", "x"},
                                                                                     {}}) {
    std::vector<std::string> command = {tutti, "run"};
    command.insert(command.end(), flags.begin(), flags.end());
    if (!flags.empty()) command.insert(command.end(), {"--", "true"});
    const auto result = run_program(command);
    EXPECT_EQ(result.exit_code, 2) << ::testing::PrintToString(flags);
    EXPECT_EQ(lines_of(result.err).size(), 1U) << result.err;
  }
  EXPECT_THAT(run_program({tutti, "run", "--restart", "1", "--", "true"}).err,
              HasSubstr("did you mean '--restarts'?"));
}

TEST(Tutti, suggests_the_command_that_was_meant) {
  const auto result = run_program({program_path("tutti"), "inspekt"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("did you mean 'inspect'?"));
}

TEST(Tutti, helps_and_tells_its_version) {
  const std::string tutti = program_path("tutti");
  EXPECT_THAT(run_program({tutti, "help"}).out, HasSubstr("usage: tutti COMMAND"));
  EXPECT_EQ(run_program({tutti}).exit_code, 2);
  EXPECT_THAT(run_program({tutti, "run", "--help"}).out, HasSubstr("--restarts"));
  EXPECT_THAT(run_program({tutti, "--version"}).out, StartsWith("tutti "));
}

}  // namespace
}  // namespace tutti::testing::run_test

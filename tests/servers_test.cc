// Tests parameter servers as users run them: equal bits, and processes that are killed, told to stop, or do
// not match.
#include <filesystem>
#include <iterator>
#include <regex>
#include <set>
#include <signal.h>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/relay.h"
#include "tests/served.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/net/test_certificates.h"

namespace tutti::testing::servers_test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Servers, in_lock_step_give_the_bits_of_one_worker) {
  const TestFolder folder;
  for (const std::string net : {"normed", "odd"}) {
    const Flags flags = {"--net", net, "--lanes", "8", "--batch", "3", "--steps", "20"};
    const std::string alone = hash_of(on_workers(1, flags), folder);
    const Flags sync = with(flags, {"--strategy", "ps-sync"});
    EXPECT_EQ(hash_of(on_servers(1, 1, sync), folder), alone) << net;
    EXPECT_EQ(hash_of(on_servers(1, 3, sync), folder), alone) << net;
    EXPECT_EQ(hash_of(on_servers(2, 2, with(sync, {"--placement", "greedy"})), folder), alone) << net;
    EXPECT_EQ(hash_of(on_servers(3, 2, with(sync, {"--placement", "split:1K"})), folder), alone) << net;
  }
}

TEST(Servers, in_lock_step_clip_the_gradient_with_the_bits_of_one_worker) {
  const TestFolder folder;
  const Flags flags = {"--net", "normed",  "--clip-norm", "0.5",     "--lanes",
                       "4",     "--batch", "3",           "--steps", "20"};
  const std::string alone = hash_of(on_workers(1, flags), folder);
  EXPECT_EQ(hash_of(on_servers(2, 3, with(flags, {"--strategy", "ps-sync"})), folder), alone);
}

TEST(Servers, in_lock_step_give_a_loop_of_the_program_the_bits_of_a_trainer) {
  const TestFolder folder;
  const Flags flags = {"--net", "normed",  "--layout", "contiguous",  "--lanes", "4",         "--batch",
                       "3",     "--steps", "20",       "--clip-norm", "0.5",     "--average", "0.9"};
  const std::string trainer = hash_of(training(1, flags), folder);
  const Flags loop = with(flags, {"--own-loop", "--strategy", "ps-sync"});
  EXPECT_EQ(hash_of(served(1, 1, loop), folder), trainer);
  EXPECT_EQ(hash_of(served(2, 2, with(loop, {"--placement", "split:1K"})), folder), trainer);
  const Flags kept = with(loop, {"--logdir", folder / "log"});
  EXPECT_NE(hash_of(served(2, 4, with(kept, {"--stop-after", "7"})), folder), trainer);
  EXPECT_EQ(hash_of(served(3, 3, kept), folder), trainer);
  // A run with servers continues by all-reduce, and in the other kind of loop.
  const Flags again = with(flags, {"--logdir", folder / "log", "--steps", "30"});
  const std::string longer = hash_of(training(1, with(flags, {"--steps", "30"})), folder);
  EXPECT_EQ(hash_of(training(2, with(again, {"--own-loop"})), folder), longer);
}

TEST(Servers, validate_and_measure_a_loop_of_the_program_as_a_trainer_does) {
  const TestFolder folder;
  const Flags flags = {
      "--net",   "normed", "--layout",  "contiguous", "--lanes",          "4", "--batch", "5",
      "--steps", "200",    "--average", "0.9",        "--validate-every", "5"};
  const nlohmann::json trainer = report_of(training(1, flags), folder);
  EXPECT_LT(trainer.at("steps"), 200);
  const Flags loop = with(flags, {"--own-loop", "--strategy", "ps-sync", "--evaluate"});
  const std::string report = folder / "report.json";
  const ProgramResult result = run_program(served(2, 3, with(loop, {"--report", report})));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json json = json_of(report);
  for (const char* same : {"steps", "weights_sha256", "history"}) EXPECT_EQ(json.at(same), trainer.at(same));
  // After the loop, all workers get what the chief measures.
  const std::regex line("accuracy of rank [0-2] is ([0-9.]+)");
  std::set<std::string> values;
  const auto lines = std::sregex_iterator(result.out.begin(), result.out.end(), line);
  for (auto each = lines; each != std::sregex_iterator(); ++each) values.insert((*each)[1]);
  EXPECT_EQ(std::distance(lines, std::sregex_iterator()), 3) << result.out;
  EXPECT_EQ(values.size(), 1U) << result.out;
}

TEST(Servers, take_the_pushes_of_a_loop_of_the_program_at_any_time) {
  const TestFolder folder;
  const std::string report = folder / "report.json";
  const Flags flags = {"--own-loop", "--net", "normed",   "--strategy", "ps-async",
                       "--batch",    "4",     "--report", report};
  const auto updates = [&](const Flags& more, int64_t oldest) {
    const ProgramResult result = run_program(served(2, 3, with(flags, more)));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, Not(HasSubstr("when the lost task has connected again")));
    const nlohmann::json made = json_of(report);
    int64_t all = 0;
    for (const auto& [steps, count] : made.at("staleness").items()) {
      EXPECT_LE(std::stoll(steps), oldest);
      all += count.get<int64_t>();
    }
    return all;
  };
  EXPECT_EQ(updates({"--steps", "50", "--logdir", folder / "log", "--checkpoint-every", "2"}, 50), 50);
  EXPECT_TRUE(std::filesystem::exists(folder / "log/ckpt-50"));
  // With a staleness of 0, all workers wait for each other, so that no update is older than one round.
  EXPECT_EQ(updates({"--steps", "40", "--staleness", "0"}, 4), 40);
  const nlohmann::json made = json_of(report);
  EXPECT_EQ(made.at("strategy"), "ps-async");
  EXPECT_EQ(made.at("examples"), 160);
  const Flags kept = with(flags, {"--steps", "50", "--logdir", folder / "log"});
  EXPECT_EQ(report_of(served(1, 3, kept), folder).at("restarts"), 1);
  // The workers use each example once in an epoch, as one worker alone does.
  const Flags epoch = {"--own-loop", "--net", "normed", "--lanes", "3", "--batch", "50", "--epochs", "1"};
  const nlohmann::json alone = report_of(training(1, epoch), folder);
  const nlohmann::json together = report_of(served(1, 3, with(epoch, {"--strategy", "ps-async"})), folder);
  EXPECT_EQ(together.at("examples"), alone.at("examples"));
  EXPECT_EQ(together.at("steps"), 3 * alone.at("steps").get<int64_t>());
}

TEST(Servers, in_lock_step_end_where_a_hook_says_at_the_step_of_one_worker_and_stay_ended) {
  const TestFolder folder;
  const Flags flags = {"--net", "normed", "--lanes", "4", "--batch", "3", "--steps", "100", "--stop-at", "7"};
  const nlohmann::json alone = report_of(on_workers(1, flags), folder);
  EXPECT_EQ(alone.at("steps"), 8);
  const Flags sync = with(flags, {"--strategy", "ps-sync", "--logdir", folder / "log"});
  for (const int workers : {2, 1}) {
    const nlohmann::json report = report_of(on_servers(1, workers, sync), folder);
    EXPECT_EQ(report.at("steps"), 8) << workers;
    EXPECT_EQ(report.at("weights_sha256"), alone.at("weights_sha256")) << workers;
  }
}

TEST(Servers, tell_of_a_hook_whose_changes_of_the_weights_would_be_lost) {
  for (const std::string strategy : {"ps-sync", "ps-async"}) {
    for (const Flags& change : {Flags{"--decay"}, Flags{"--decay-buffers"}, Flags{"--decay", "--own-loop"}}) {
      const ProgramResult result = run_program(served(
          1, 2, with({"--net", "normed", "--batch", "3", "--steps", "10", "--strategy", strategy}, change)));
      EXPECT_EQ(result.exit_code, exit_code(ErrorKind::InvalidArgument)) << result.err;
      EXPECT_THAT(result.err, HasSubstr("the parameters or buffers were changed by a hook")) << strategy;
      EXPECT_THAT(result.err, HasSubstr("use --strategy allreduce"));
    }
  }
}

TEST(Servers, in_lock_step_tell_all_workers_that_their_learning_rates_differ) {
  const Terminals terminals(1, 3);
  const Flags flags = {"--strategy", "ps-sync", "--batch", "3", "--steps", "50", "--rate-of-rank-1", "0.5"};
  const auto server = terminals.start("ps", 0, flags);
  std::vector<std::unique_ptr<RunningProgram>> workers;
  for (int worker = 0; worker < 3; ++worker) workers.push_back(terminals.start("worker", worker, flags));
  for (const auto& worker : workers) {
    EXPECT_EQ(worker->wait(), exit_code(ErrorKind::InvalidArgument)) << worker->err();
    EXPECT_THAT(worker->err(), HasSubstr("different learning rates at step 3"));
  }
}

TEST(Servers, hold_what_is_pinned_to_them_and_give_the_bits_of_one_worker) {
  const TestFolder folder;
  const Flags flags = {"--net", "odd", "--lanes", "2", "--batch", "3", "--steps", "10"};
  const Flags pinned = with(flags, {"--create-on", "/job:ps/task:1", "--strategy", "ps-sync"});
  EXPECT_EQ(hash_of(on_servers(2, 2, pinned), folder), hash_of(on_workers(1, flags), folder));
  const ProgramResult told = run_program(served(2, 1, with(pinned, {"--log-placement"})));
  for (const char* name : {"dense.weight", "dense.bias", "pred.weight", "pred.bias"})
    EXPECT_THAT(told.err, ::testing::ContainsRegex(fmt::format("{}: .*/job:ps/replica:0/task:1/", name)));
}

TEST(Servers, that_a_pin_names_and_are_not_there_are_an_error_that_says_so) {
  const Flags flags = {"--net", "odd", "--steps", "1"};
  const auto expect_refused = [](const Flags& command, const char* why) {
    const ProgramResult result = run_program(command);
    EXPECT_NE(result.exit_code, 0);
    EXPECT_THAT(result.err, ::testing::AllOf(HasSubstr("dense.weight"), HasSubstr(why)));
  };
  expect_refused(served(1, 1, with(flags, {"--create-on", "/job:ps/task:1"})), "ps (task 0)");
  expect_refused(training(1, with(flags, {"--create-on", "/job:ps/task:0"})), "names no jobs");
  expect_refused(served(1, 1, with(flags, {"--create-on", "/job:ps", "--strategy", "allreduce"})),
                 "every worker holds all parameters");
}

TEST(Servers, make_exactly_the_steps_asked_for_and_end_by_themselves) {
  const TestFolder folder;
  const std::string report = folder / "report.json";
  const ProgramResult result =
      run_program(served(2, 3, {"--net", "normed", "--batch", "4", "--steps", "50", "--report", report}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json json = json_of(report);
  EXPECT_EQ(json.at("strategy"), "ps-async");
  EXPECT_EQ(json.at("steps"), 50);
  EXPECT_EQ(json.at("examples"), 200);
  int64_t updates = 0;
  for (const auto& [steps, count] : json.at("staleness").items()) updates += count.get<int64_t>();
  EXPECT_EQ(updates, 50);
  EXPECT_THAT(result.err, HasSubstr("the bits of the result depend on the number of workers, and on whose "
                                    "update comes first (--strategy ps-sync"));
  EXPECT_THAT(result.err, Not(HasSubstr("set --lanes")));
}

TEST(Servers, have_one_task_print_a_line_of_the_run) {
  const Flags flags = {"--batch", "4", "--steps", "60", "--tell-every", "10"};
  for (const char* strategy : {"ps-async", "ps-sync"}) {
    const ProgramResult result = run_program(served(1, 3, with(flags, {"--strategy", strategy})));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("told by rank 0"));
    EXPECT_THAT(result.out, Not(HasSubstr("told by rank 1")));
    EXPECT_THAT(result.out, Not(HasSubstr("told by rank 2")));
  }
}

// A push is a step of one worker, whose share is a part of a batch.
TEST(Servers, that_take_pushes_at_any_time_count_an_epoch_when_all_examples_were_read) {
  const TestFolder folder;
  const Flags flags = {"--net", "normed",   "--lanes", "3",          "--batch",
                       "50",    "--epochs", "1",       "--examples", "3000"};
  const nlohmann::json alone = report_of(on_workers(1, flags), folder);
  const nlohmann::json served_by =
      report_of(on_servers(1, 3, with(flags, {"--strategy", "ps-async"})), folder);
  EXPECT_EQ(served_by.at("examples"), alone.at("examples"));
  EXPECT_EQ(served_by.at("steps"), 3 * alone.at("steps").get<int64_t>());
}

// Workers that make steps independently reach their ends one after the other.
TEST(Servers, write_the_last_checkpoint_after_the_last_update_of_any_worker) {
  const TestFolder folder;
  const Flags flags = {"--net", "normed", "--batch", "4", "--steps", "50", "--logdir", folder / "log"};
  const nlohmann::json made = report_of(on_servers(2, 3, flags), folder);
  EXPECT_TRUE(std::filesystem::exists(folder / "log/ckpt-50"));
  const nlohmann::json read = report_of(on_servers(1, 3, flags), folder);
  EXPECT_EQ(read.at("restarts"), 1);
  EXPECT_EQ(read.at("steps"), 50);
  EXPECT_EQ(read.at("weights_sha256"), made.at("weights_sha256"));
}

// The chief requests a checkpoint while one of its pushes is pending. No task may be lost by it.
TEST(Servers, give_the_chief_checkpoints_while_they_take_its_pushes) {
  const TestFolder folder;
  const std::string report = folder / "report.json";
  const ProgramResult result =
      run_program(served(2, 2,
                         {"--net", "normed", "--batch", "4", "--steps", "400", "--logdir", folder / "log",
                          "--checkpoint-every", "2", "--report", report}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json_of(report).at("restarts"), 0);
  EXPECT_THAT(result.err, Not(HasSubstr("when the lost task has connected again")));
}

TEST(Servers, keep_workers_in_lock_step_where_none_may_be_ahead) {
  const TestFolder folder;
  const std::string report = folder / "report.json";
  const ProgramResult result =
      run_program(served(1, 2, {"--batch", "4", "--steps", "40", "--staleness", "0", "--report", report}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  // If two workers wait for each other, no update is older than the other's.
  const nlohmann::json json = json_of(report);
  int64_t updates = 0;
  for (const auto& [steps, count] : json.at("staleness").items()) {
    EXPECT_LE(std::stoi(steps), 2);
    updates += count.get<int64_t>();
  }
  EXPECT_EQ(updates, 40);
}

TEST(Servers, count_how_old_the_values_of_a_gradient_were_with_overlap_and_without) {
  const TestFolder folder;
  const std::string report = folder / "report.json";
  const Flags flags = {"--batch", "4", "--steps", "40", "--report", report};
  const auto staleness = [&](const Flags& command) {
    const ProgramResult result = run_program(served(2, 1, command));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json_of(report).at("staleness");
  };
  // A worker that overlaps computes the next gradient while its last push is pending.
  EXPECT_EQ(staleness(flags), nlohmann::json({{"0", 1}, {"1", 39}}));
  EXPECT_EQ(staleness(with(flags, {"--no-overlap"})), nlohmann::json({{"0", 40}}));
}

TEST(Servers, do_without_the_last_worker_where_told_so) {
  const TestFolder folder;
  const std::string report = folder / "report.json";
  const ProgramResult result = run_program(served(
      2, 3,
      {"--strategy", "ps-sync", "--backup", "1", "--batch", "4", "--steps", "300", "--report", report}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json_of(report).at("steps"), 300);
  // A worker that falls behind catches up, and does not consider any task lost.
  EXPECT_THAT(result.err, Not(HasSubstr("when the lost task has connected again")));
  EXPECT_EQ(json_of(report).at("reduce"), "tree, of those who were there");
  // An epoch has as many steps as on one worker, since all workers make each step together.
  const Flags epoch = {"--net", "normed", "--lanes", "3", "--batch", "50", "--epochs", "1"};
  const nlohmann::json alone = report_of(on_workers(1, epoch), folder);
  const nlohmann::json together =
      report_of(on_servers(1, 3, with(epoch, {"--strategy", "ps-sync", "--backup", "1"})), folder);
  EXPECT_EQ(together.at("steps"), alone.at("steps"));
}

TEST(Servers, bare_ones_serve_a_program_that_they_have_never_seen) {
  const TestFolder folder;
  const Flags flags = {"--net", "odd", "--lanes", "2", "--batch", "3", "--steps", "10"};
  const std::string alone = hash_of(on_workers(1, flags), folder);
  const Terminals terminals(1, 1);
  RunningProgram server(with({program_path("tutti"), "serve"}, terminals.task("ps", 0)));
  const std::string report = folder / "served.json";
  const auto worker =
      terminals.start("worker", 0, with(flags, {"--strategy", "ps-sync", "--report", report}));
  EXPECT_EQ(worker->wait(), 0) << worker->err();
  EXPECT_EQ(server.wait(), 0) << server.err();
  EXPECT_EQ(json_of(report).at("weights_sha256"), alone);
}

TEST(Servers, end_when_told_to_stop) {
  const Terminals terminals(1, 1);
  RunningProgram server(with({program_path("tutti"), "serve"}, terminals.task("ps", 0)));
  const ProgramResult stop = run_program({program_path("tutti"), "stop", "--cluster_spec", terminals.spec()});
  EXPECT_EQ(stop.exit_code, 0) << stop.err;
  EXPECT_THAT(stop.out, HasSubstr("stopped"));
  EXPECT_EQ(server.wait(), 0) << server.err();
}

TEST(Servers, of_which_one_is_told_to_stop_leave_the_other_at_work) {
  const Terminals terminals(2, 1);
  const auto serve = [&](int index) {
    return with({program_path("tutti"), "serve"}, terminals.task("ps", index));
  };
  const Flags stop = {program_path("tutti"), "stop", "--cluster_spec", terminals.spec()};
  RunningProgram first(serve(0));
  RunningProgram second(serve(1));
  const ProgramResult one = run_program(with(stop, {"--job_name", "ps", "--task_index", "1"}));
  EXPECT_EQ(one.exit_code, 0) << one.err;
  EXPECT_THAT(one.out, Not(HasSubstr("ps/0")));
  EXPECT_EQ(second.wait(), 0) << second.err();
  const ProgramResult none = run_program(with(stop, {"--task_index", "2"}));
  EXPECT_EQ(none.exit_code, exit_code(ErrorKind::InvalidArgument)) << none.err;
  first.wait_for_error("serving at");
  ::kill(first.pid(), SIGTERM);
  EXPECT_EQ(first.wait(), 128 + SIGTERM) << first.err();
  EXPECT_THAT(first.err(), HasSubstr("ps/0 stopped by SIGTERM"));
}

TEST(Servers, train_over_tls_with_those_who_have_certificates_and_the_secret) {
  const TestFolder folder;
  const net::Certificates made;
  const Flags model = {"--net", "odd", "--lanes", "2", "--batch", "3", "--steps", "10"};
  const Flags trusted = {"--tls-ca", made.path("ca.pem"), "--secret", "between us"};
  const auto identity = [&](const std::string& name) {
    return with(trusted, {"--tls-cert", made.path(name + ".pem"), "--tls-key", made.path(name + ".key")});
  };
  const Terminals terminals(1, 2);
  RunningProgram server(
      with(with({program_path("tutti"), "serve"}, identity("server")), terminals.task("ps", 0)));
  const std::string report = folder / "served.json";
  const Flags flags = with(model, {"--strategy", "ps-sync"});
  const auto chief =
      terminals.start("worker", 0, with(with(flags, identity("worker")), {"--report", report}));
  const auto unknown_peer = terminals.start("worker", 1, with(flags, trusted));  // no certificate
  EXPECT_NE(unknown_peer->wait(), 0);
  EXPECT_THAT(unknown_peer->err(), HasSubstr("--tls-cert"));
  const auto worker = terminals.start("worker", 1, with(flags, identity("worker")));
  EXPECT_EQ(worker->wait(), 0) << worker->err();
  EXPECT_EQ(chief->wait(), 0) << chief->err();
  EXPECT_EQ(server.wait(), 0) << server.err();
  EXPECT_EQ(json_of(report).at("weights_sha256"), hash_of(on_workers(1, model), folder));
}

TEST(Servers, say_whom_they_refuse) {
  const Terminals terminals(1, 1);
  RunningProgram server(with({program_path("tutti"), "serve", "--secret", "right"}, terminals.task("ps", 0)));
  const Flags stop = {program_path("tutti"), "stop", "--cluster_spec", terminals.spec()};
  const ProgramResult wrong = run_program(with(stop, {"--secret", "wrong"}));
  EXPECT_EQ(wrong.exit_code, exit_code(ErrorKind::InvalidArgument)) << wrong.err;
  EXPECT_THAT(wrong.err, HasSubstr("TUTTI_SECRET"));
  server.wait_for_error("was refused: the caller and this server have different secrets");
  const ProgramResult right = run_program(with(stop, {"--secret", "right"}));
  EXPECT_EQ(right.exit_code, 0) << right.err;
  EXPECT_EQ(server.wait(), 0) << server.err();
}

TEST(Servers, that_do_not_come_are_named) {
  const Terminals terminals(2, 1);
  const auto server = terminals.start("ps", 1, {});
  server->wait_for_error("serving at");
  const auto worker = terminals.start("worker", 0, {"--steps", "5", "--start-timeout", "5"});
  EXPECT_EQ(worker->wait(), exit_code(ErrorKind::Timeout));
  EXPECT_THAT(worker->err(), HasSubstr("waited in vain for 5 s (--start-timeout) for ps/0 (127.0.0.1:"));
}

TEST(Servers, and_workers_name_a_chief_that_does_not_come) {
  const Terminals terminals(1, 2);
  const Flags flags = {"--steps", "5", "--start-timeout", "12", "--timeout", "1"};
  const auto server = terminals.start("ps", 0, flags);
  const auto worker = terminals.start("worker", 1, flags);
  const std::string chief = "the chief, worker/0 (127.0.0.1:";
  server->wait_for_error("still waiting for " + chief);
  worker->wait_for_error("still waiting for " + chief);
  EXPECT_EQ(worker->wait(), exit_code(ErrorKind::Timeout)) << worker->err();
  EXPECT_THAT(worker->err(), HasSubstr("waited in vain for 12 s (--start-timeout) for " + chief));
}

TEST(Servers, in_lock_step_wait_at_the_start_for_a_worker_and_name_it) {
  const Terminals terminals(1, 2);
  const Flags flags = {"--strategy", "ps-sync", "--steps", "5", "--timeout", "1", "--start-timeout", "4"};
  const auto server = terminals.start("ps", 0, flags);
  const auto chief = terminals.start("worker", 0, flags);
  EXPECT_EQ(chief->wait(), exit_code(ErrorKind::Timeout)) << chief->err();
  EXPECT_THAT(chief->err(), HasSubstr("waited in vain for 4 s (--start-timeout) for worker/1 (127.0.0.1:"));
}

// The other tasks get the error at once, whatever they wait for; the servers stay for the next tasks.
void expect_all_hear_of_a_wrong_worker(const Flags& flags, const Flags& wrong, const std::string& text) {
  const Terminals terminals(2, 2);
  const std::vector<std::unique_ptr<RunningProgram>> servers = [&] {
    std::vector<std::unique_ptr<RunningProgram>> all;
    for (const int index : {0, 1}) all.push_back(terminals.start("ps", index, {}));
    return all;
  }();
  const auto chief = terminals.start("worker", 0, flags);
  const auto other = terminals.start("worker", 1, with(flags, wrong));
  for (const auto* worker : {&chief, &other}) {
    EXPECT_EQ((*worker)->wait(), exit_code(ErrorKind::InvalidArgument)) << (*worker)->err();
    EXPECT_THAT((*worker)->err(), HasSubstr("worker/1")) << wrong[0];
    EXPECT_THAT((*worker)->err(), HasSubstr(text)) << wrong[0];
  }
  for (const auto& server : servers) server->wait_for_error("waiting for the next start of the job");
  const auto again = terminals.start("worker", 0, flags);
  const auto right = terminals.start("worker", 1, flags);
  EXPECT_EQ(right->wait(), 0) << right->err();
  EXPECT_EQ(again->wait(), 0) << again->err();
  for (const auto& server : servers) EXPECT_EQ(server->wait(), 0) << server->err();
}

TEST(Servers, refuse_a_worker_of_another_model_and_tell_all) {
  const Flags flags = {"--strategy", "ps-sync", "--batch", "2", "--lanes", "2", "--steps", "10"};
  expect_all_hear_of_a_wrong_worker(flags, {"--net", "normed"}, "'--net normed'");
}

TEST(Servers, refuse_a_worker_with_another_flag_and_tell_all) {
  for (const char* strategy : {"ps-sync", "ps-async"}) {
    const Flags flags = {"--strategy", strategy, "--batch", "2", "--lanes", "2", "--steps", "10"};
    expect_all_hear_of_a_wrong_worker(flags, {"--clip-norm", "0.5"}, "'--clip-norm 0.5'");
    expect_all_hear_of_a_wrong_worker(with(flags, {"--own-loop"}), {"--steps", "20"}, "'--steps 20'");
  }
}

TEST(Servers, refuse_a_worker_with_other_data_and_tell_all) {
  for (const char* strategy : {"ps-sync", "ps-async"}) {
    const Flags flags = {"--strategy", strategy, "--batch", "2", "--lanes", "2", "--steps", "10"};
    expect_all_hear_of_a_wrong_worker(flags, {"--other-labels"}, "column label");
  }
}

TEST(Servers, refuse_a_worker_that_counts_other_workers_than_the_chief) {
  const Terminals terminals(1, 2);
  const std::string of_three = terminals.spec() + fmt::format(";127.0.0.1:{}", free_ports(1).front());
  const Flags flags = {"--strategy", "ps-sync", "--batch", "2", "--lanes", "6", "--steps", "10"};
  const auto server = terminals.start("ps", 0, {});
  const auto chief = terminals.start("worker", 0, flags);
  RunningProgram wrong(with(with({together_program(), "--threads", "1"}, flags),
                            {"--cluster_spec", of_three, "--job_name", "worker", "--task_index", "1"}));
  for (RunningProgram* worker : {chief.get(), &wrong}) {
    EXPECT_EQ(worker->wait(), exit_code(ErrorKind::InvalidArgument)) << worker->err();
    EXPECT_THAT(worker->err(), ::testing::AllOf(HasSubstr("'2 workers'"), HasSubstr("'3 workers'")));
  }
}

// Under `tutti run`, a server that ends with an error ends the job.
TEST(Servers, end_with_the_name_of_a_worker_that_is_stopped) {
  const Terminals terminals(1, 2);
  // So many that the chief does not make all of them before the other worker has come.
  const Flags flags = {"--strategy", "ps-async", "--batch", "2", "--steps", "10000", "--timeout", "2"};
  // On a slow machine, the connection of the stopped worker is given up before the chief has finished.
  const auto server = terminals.start("ps", 0, with(flags, {"--start-timeout", "20"}));
  const auto worker = terminals.start("worker", 1, flags);
  const auto chief = terminals.start("worker", 0, flags);
  chief->wait_for_output("under way");
  worker->wait_for_output("another worker too");
  ::kill(worker->pid(), SIGSTOP);
  EXPECT_EQ(chief->wait(), 0) << chief->err();
  EXPECT_THAT(chief->err(), HasSubstr("worker/1"));
  EXPECT_EQ(server->wait(), exit_code(ErrorKind::Timeout)) << server->err();
  EXPECT_THAT(server->err(), HasSubstr("worker/1"));
}

TEST(Servers, do_not_keep_a_chief_that_is_told_to_stop_and_waits_for_a_stopped_worker) {
  const Terminals terminals(1, 2);
  const Flags flags = {"--strategy", "ps-sync", "--batch", "2", "--steps", "1000000000", "--timeout", "600"};
  const auto server = terminals.start("ps", 0, flags);
  const auto worker = terminals.start("worker", 1, flags);
  const auto chief = terminals.start("worker", 0, flags);
  chief->wait_for_output("under way");
  ::kill(worker->pid(), SIGSTOP);
  ::kill(chief->pid(), SIGTERM);
  EXPECT_NE(chief->wait(), 0);
  // It waits either for the step, or, if the stopped worker had sent its last gradients, for the end of the
  // fit.
  EXPECT_THAT(chief->err(), AnyOf(HasSubstr("stopped waiting for the answer"),
                                  HasSubstr("continuing without the other workers")));
}

TEST(Servers, refuse_a_second_task_of_one_index) {
  const Terminals terminals(1, 2);
  const Flags flags = {"--strategy", "ps-sync", "--batch", "2", "--steps", "10"};
  const auto server = terminals.start("ps", 0, {});
  const auto chief = terminals.start("worker", 0, flags);
  server->wait_for_error("of parameters at step 0");
  const auto twin = terminals.start("worker", 0, with(flags, {"--start-timeout", "1"}));
  EXPECT_EQ(twin->wait(), exit_code(ErrorKind::InvalidArgument));
  EXPECT_THAT(twin->err(), HasSubstr("two tasks have the same index"));
  const auto worker = terminals.start("worker", 1, flags);
  EXPECT_EQ(worker->wait(), 0) << worker->err();
  EXPECT_EQ(chief->wait(), 0) << chief->err();
  EXPECT_EQ(server->wait(), 0) << server->err();
}

// Every connection is delayed and broken repeatedly. All data of the workers goes through it, since they
// cannot map the server's memory.
TEST(Servers, behind_a_bad_cable_give_the_bits_of_one_worker) {
  const TestFolder folder;
  const Flags model = {"--net", "normed", "--lanes", "4", "--batch", "3", "--steps", "60"};
  const std::string alone = hash_of(on_workers(1, model), folder);
  const std::vector<int> ports = free_ports(3);
  Relay relay(ports[0], std::chrono::milliseconds(5));
  const auto task = [&](int server_port, const char* job, int index) {
    return Flags{
        "--cluster_spec",
        fmt::format("ps|127.0.0.1:{},worker|127.0.0.1:{};127.0.0.1:{}", server_port, ports[1], ports[2]),
        "--job_name",
        job,
        "--task_index",
        std::to_string(index)};
  };
  Flags apart = {"unshare", "--pid", "--fork", "--mount-proc", "--kill-child"};
  if (run_program(with(apart, {"true"})).exit_code != 0) apart = {};  // lacking the permission
  const Flags flags = with({together_program(), "--threads", "1", "--strategy", "ps-sync", "--logdir",
                            folder / "log", "--checkpoint-every", "15"},
                           model);
  const std::string report = folder / "report.json";
  RunningProgram server(with(flags, task(ports[0], "ps", 0)));
  RunningProgram worker(with(with(apart, flags), task(relay.port(), "worker", 1)));
  RunningProgram chief(with(with(apart, flags), with(task(relay.port(), "worker", 0), {"--report", report})));
  for (const char* checkpoint : {"log/ckpt-15", "log/ckpt-30", "log/ckpt-45"}) {
    ASSERT_TRUE(eventually([&] { return std::filesystem::exists(folder / checkpoint); })) << chief.err();
    const int before = relay.broken();
    relay.cut();
    ASSERT_TRUE(eventually([&] { return relay.broken() > before; }));
  }
  EXPECT_EQ(chief.wait(), 0) << chief.err();
  EXPECT_EQ(worker.wait(), 0) << worker.err();
  EXPECT_EQ(server.wait(), 0) << server.err();
  EXPECT_EQ(json_of(report).at("weights_sha256"), alone);
}

// Returns the number of steps that the workers have gone back, according to the log.
int64_t steps_gone_back(const std::string& log) {
  int64_t all = 0;
  static const std::regex kLine("all tasks return from step ([0-9]+) to ([0-9]+)");
  for (std::sregex_iterator it(log.begin(), log.end(), kLine); it != std::sregex_iterator(); ++it)
    all += std::stoll((*it)[1]) - std::stoll((*it)[2]);
  return all;
}

struct Victim {
  const char* job;
  int index;
  int servers;
  bool own_loop = false;
};

class Killed : public ::testing::TestWithParam<Victim> {};
INSTANTIATE_TEST_SUITE_P(Servers, Killed,
                         ::testing::Values(Victim{"worker", 1, 2}, Victim{"worker", 0, 2}, Victim{"ps", 0, 2},
                                           Victim{"ps", 1, 2}, Victim{"ps", 0, 1},
                                           Victim{"worker", 1, 2, true}, Victim{"worker", 0, 2, true},
                                           Victim{"ps", 1, 2, true}),
                         [](const auto& info) {
                           return fmt::format("{}_{}_of_{}_servers{}", info.param.job, info.param.index,
                                              info.param.servers,
                                              info.param.own_loop ? "_in_a_loop_of_the_program" : "");
                         });

TEST_P(Killed, task_comes_back_and_the_bits_stay) {
  const auto [job, index, servers, own_loop] = GetParam();
  const TestFolder folder;
  Flags flags = {"--net", "normed",  "--layout", "contiguous", "--lanes",
                 "4",     "--batch", "50",       "--steps",    "150"};
  static const std::string kAlone = hash_of(on_workers(1, flags), folder);
  if (own_loop) flags = with(flags, {"--own-loop"});
  const std::string report = folder / "killed.json";
  ServedRun job_run(fmt::format("{}{}{}", job, index, own_loop),
                    served(servers, 2,
                           with(flags, {"--strategy", "ps-sync", "--logdir", folder / "log",
                                        "--checkpoint-every", "20", "--report", report}),
                           {"--restarts", "1"}));
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(folder / "log/ckpt-20"); }));
  job_run.kill(job, index);
  EXPECT_EQ(job_run.run().wait(), 0) << job_run.run().err();
  EXPECT_EQ(json_of(report).at("weights_sha256"), kAlone) << job_run.run().err();
  const int64_t lost_steps = steps_gone_back(job_run.run().err());
  EXPECT_EQ(json_of(report).at("lost_steps"), lost_steps);
  if (job == std::string("worker") && index == 1) {
    for (const char* task : {"ps/0", "worker/0"})
      EXPECT_THAT(job_run.run().err(),
                  ::testing::ContainsRegex(fmt::format(".{}. .*worker/1 .* is back", task)));
  }
  EXPECT_TRUE(job == std::string("ps") || lost_steps == 0) << lost_steps;
}

// Returns the step of the newest checkpoint, or 0.
int64_t newest_checkpoint(const std::string& logdir) {
  int64_t newest = 0;
  if (!std::filesystem::exists(logdir)) return newest;
  for (const auto& entry : std::filesystem::directory_iterator(logdir)) {
    const std::string name = entry.path().filename().string();
    const auto number = name.starts_with("ckpt-") ? parse_int(name.substr(5)) : std::nullopt;
    newest = std::max(newest, number.value_or(0));
  }
  return newest;
}

// One server decides which workers take part in a step; the other one is lost meanwhile.
TEST(Servers, that_do_without_the_last_worker_are_waited_for_too) {
  const TestFolder folder;
  const std::string log = folder / "log";
  const std::string report = folder / "report.json";
  ServedRun job("backup", served(2, 3,
                                 {"--net", "normed", "--lanes", "3", "--batch", "20", "--steps", "400",
                                  "--strategy", "ps-sync", "--backup", "1", "--logdir", log,
                                  "--checkpoint-every", "20", "--report", report},
                                 {"--restarts", "3"}));
  for (int kills = 0; kills < 3; ++kills) {
    // The checkpoint after the next one is from a server that has been restarted.
    const int64_t step = newest_checkpoint(log) + 40;
    ASSERT_TRUE(eventually([&] { return newest_checkpoint(log) >= step; })) << job.run().err();
    job.kill("ps", 1);
  }
  EXPECT_EQ(job.run().wait(), 0) << job.run().err();
  EXPECT_EQ(json_of(report).at("steps"), 400);
}

TEST(Servers, have_the_chief_evaluate_whatever_feed_a_worker_has_and_whether_it_lives) {
  const TestFolder folder;
  const Flags flags = {"--net", "odd", "--lanes", "2", "--batch", "4", "--steps", "20", "--evaluate"};
  const auto accuracy = [&](const Flags& command) {
    const ProgramResult result = run_program(with(command, {"--report", folder / "report.json"}));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json_of(folder / "report.json").at("metrics").at("accuracy").get<double>();
  };
  const double alone = accuracy(training(1, flags));
  const Flags killed = with(flags, {"--strategy", "ps-sync", "--die-once", folder / "dead"});
  EXPECT_EQ(accuracy(served(1, 2, killed, {"--restarts", "1"})), alone);
  EXPECT_TRUE(std::filesystem::exists(folder / "dead"));
}

TEST(Servers, choose_their_ports_and_tell_the_chief_also_one_that_comes_back) {
  const TestFolder folder;
  const Flags model = {"--net", "odd", "--lanes", "2", "--batch", "4", "--steps", "3000"};
  const std::string alone = hash_of(on_workers(1, model), folder);
  const Terminals terminals({{"ps", 2}, {"worker", 2}}, "worker/0");
  const std::string log = folder / "log";
  const std::string report = folder / "report.json";
  const Flags flags = with(model, {"--strategy", "ps-sync", "--checkpoint-every", "500", "--logdir", log});
  const auto first = terminals.start("ps", 0, flags);
  auto second = terminals.start("ps", 1, flags);
  const auto worker = terminals.start("worker", 1, flags);
  const auto chief = terminals.start("worker", 0, with(flags, {"--report", report}));
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(log + "/ckpt-500"); })) << chief->err();
  ::kill(second->pid(), SIGKILL);
  second->wait();
  second = terminals.start("ps", 1, flags);  // at another port
  for (RunningProgram* task : {chief.get(), worker.get(), first.get(), second.get()})
    EXPECT_EQ(task->wait(), 0) << task->err();
  EXPECT_EQ(json_of(report).at("weights_sha256"), alone);
  EXPECT_THAT(second->err(), HasSubstr("which is reported to the chief"));
}

TEST(Servers, that_choose_their_ports_are_stopped_where_they_are) {
  const Terminals terminals({{"ps", 1}, {"worker", 1}}, "worker/0");
  const auto server = terminals.start("ps", 0, {});
  const auto chief = terminals.start("worker", 0, {"--steps", "1000000000"});
  chief->wait_for_output("under way");
  const ProgramResult stop = run_program({program_path("tutti"), "stop", "--cluster_spec", terminals.spec()});
  EXPECT_EQ(stop.exit_code, 0) << stop.err;
  EXPECT_EQ(server->wait(), 0) << server->err();
  ::kill(chief->pid(), SIGKILL);
  chief->wait();
}

TEST(Servers, with_a_port_that_nobody_would_know_are_refused) {
  const Flags cluster = {"--cluster_spec", "ps|127.0.0.1:0,worker|127.0.0.1:0", "--task_index", "0"};
  for (const std::string job : {"ps", "worker"}) {
    const ProgramResult result =
        run_program(with({together_program(), "--job_name", job, "--steps", "1"}, cluster));
    EXPECT_EQ(result.exit_code, exit_code(ErrorKind::InvalidArgument)) << job;
    EXPECT_THAT(result.err, HasSubstr("ps/0 has port 0, and so has worker/0"));
    EXPECT_THAT(result.err, HasSubstr("let `tutti run` choose all ports"));
  }
}

TEST(Servers, stop_with_a_checkpoint_and_go_on_from_it) {
  const TestFolder folder;
  const Flags model = {"--net", "odd", "--lanes", "2", "--batch", "4", "--steps", "3000"};
  const std::string alone = hash_of(on_workers(1, model), folder);
  for (const Flags& how : {Flags{}, Flags{"--own-loop"}}) {
    const std::string log = folder / fmt::format("log-{}", how.size());
    const Flags kept = with(with(model, how), {"--strategy", "ps-sync", "--logdir", log});
    RunningProgram first(served(1, 2, kept));
    first.wait_for_output("under way");
    ::kill(first.pid(), SIGTERM);
    EXPECT_EQ(first.wait(), 128 + SIGTERM) << first.err();
    EXPECT_EQ(hash_of(on_servers(2, 2, kept), folder), alone);
  }
}

// The workers are not connected to each other. One worker alone would do, but not the second.
TEST(Servers, refuse_synchronised_batch_norm_with_one_worker_too) {
  for (const int workers : {1, 2}) {
    const ProgramResult result =
        run_program(served(1, workers, {"--strategy", "ps-sync", "--net", "synced", "--steps", "1"}));
    EXPECT_EQ(result.exit_code, exit_code(ErrorKind::InvalidArgument)) << result.err;
    EXPECT_THAT(result.err, HasSubstr("SyncBatchNorm is not supported with parameter servers"));
  }
}

}  // namespace
}  // namespace tutti::testing::servers_test

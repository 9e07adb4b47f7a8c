// Tests `tutti run` on several hosts that TF_CONFIG names; here they are launchers on one machine.
#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <functional>
#include <set>
#include <signal.h>
#include <sstream>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "tests/tool.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/hashes.h"
#include "tutti/base/ports.h"
#include "tutti/base/secret.h"
#include "tutti/rpc/frame.h"
#include "tutti/transport/board/tcp_rendezvous.h"

namespace tutti::testing::run_hosts_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// A client that is not a launcher, or a launcher that violates the protocol.
class UnknownPeer {
 public:
  // Connects as soon as somebody listens.
  explicit UnknownPeer(int port) {
    const SocketAddress address = loopback(port);
    EXPECT_TRUE(eventually([&] {
      socket_ = FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      return connect(socket_.get(), address.get(), address.size) == 0;
    }));
  }
  explicit UnknownPeer(FileDescriptor socket) : socket_(std::move(socket)) {}

  // Returns false if the other end has closed the connection.
  bool say(const std::string& bytes) {
    return send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  void stop_speaking() { shutdown(socket_.get(), SHUT_WR); }
  // Returns the bytes of one line.
  std::string hear_line() {
    std::string line;
    char byte = 0;
    while (!line.ends_with('\n') && recv(socket_.get(), &byte, 1, 0) == 1) line += byte;
    return line;
  }
  // Returns everything received until the other end closes the connection.
  std::string hear() {
    std::string heard;
    std::array<char, 4096> buffer;
    ssize_t count = 0;
    while ((count = recv(socket_.get(), buffer.data(), buffer.size(), 0)) > 0)
      heard.append(buffer.data(), static_cast<size_t>(count));
    return heard;
  }

 private:
  FileDescriptor socket_;
};

// Listens instead of the first launcher.
class StrangeHost {
 public:
  explicit StrangeHost(int port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int yes = 1;
    setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    const SocketAddress address = loopback(port);
    EXPECT_EQ(bind(socket_.get(), address.get(), address.size), 0);
    EXPECT_EQ(listen(socket_.get(), 10), 0);
  }
  UnknownPeer accept() { return UnknownPeer(FileDescriptor(::accept(socket_.get(), nullptr, nullptr))); }

 private:
  FileDescriptor socket_;
};

class RunHosts : public ::testing::Test {
 protected:
  RunHosts() : ports_(free_ports(4)) { unsetenv("NVIDIA_VISIBLE_DEVICES"); }
  ~RunHosts() override {
    programs_.clear();
    EXPECT_TRUE(eventually([this] { return processes_with(mark_).empty(); }));
  }

  std::string address(int host) const {
    return fmt::format("127.0.0.1:{}", ports_[static_cast<size_t>(host)]);
  }
  // A hash of everything that the launchers of these hosts must have in common.
  std::string terms() const {
    Sha256 hash;
    hash.update(as_bytes(fmt::format("worker/0 ({})\nworker/1 ({})\n", address(0), address(1))));
    return "--restarts 0\nhosts " + hash.hex();
  }
  // Returns a cluster of `hosts` workers.
  nlohmann::json cluster_of(int hosts) const {
    nlohmann::json workers = nlohmann::json::array();
    for (int host = 0; host < hosts; ++host) workers.push_back(address(host));
    return {{"worker", workers}};
  }
  struct Start {
    std::string gpus = "";  // CUDA_VISIBLE_DEVICES
    std::vector<std::string> flags = {};
    std::string script = "echo $TUTTI_TASK_INDEX $TUTTI_CLUSTER_SPEC";
    std::string secret = "";
  };
  RunningProgram& start(const nlohmann::json& cluster, const std::string& job, int index, const Start& how) {
    const nlohmann::json config = {{"cluster", cluster}, {"task", {{"type", job}, {"index", index}}}};
    std::vector<std::string> command = {program_path("tutti"), "run"};
    command.insert(command.end(), how.flags.begin(), how.flags.end());
    command.insert(command.end(), {"--", "sh", "-c", how.script});
    programs_.push_back(std::make_unique<RunningProgram>(
        command,
        std::vector<std::string>{mark_, "TF_CONFIG=" + config.dump(), "CUDA_VISIBLE_DEVICES=" + how.gpus,
                                 "TUTTI_SECRET=" + how.secret, "TUTTI_LOG_LEVEL=debug"}));
    return *programs_.back();
  }
  // Starts a launcher of `hosts` nodes.
  RunningProgram& start_node(int hosts, int rank, const Start& how) {
    std::vector<std::string> command = {program_path("tutti"), "run",         "--nnodes",
                                        std::to_string(hosts), "--node-rank", std::to_string(rank),
                                        "--rendezvous",        address(0)};
    command.insert(command.end(), how.flags.begin(), how.flags.end());
    command.insert(command.end(), {"--", "sh", "-c", how.script});
    programs_.push_back(std::make_unique<RunningProgram>(
        command, std::vector<std::string>{mark_, "CUDA_VISIBLE_DEVICES=" + how.gpus,
                                          "TUTTI_SECRET=" + how.secret, "TUTTI_LOG_LEVEL=debug"}));
    return *programs_.back();
  }
  RunningProgram& start(int hosts, int index, const Start& how) {
    return start(cluster_of(hosts), "worker", index, how);
  }
  RunningProgram& start(int hosts, int index) { return start(hosts, index, Start{}); }

  const TestFolder folder_;
  const std::string mark_ = "MARK_OF_THIS_TEST=" + folder_.path();
  const std::vector<int> ports_;
  std::vector<std::unique_ptr<RunningProgram>> programs_;
};

TEST_F(RunHosts, each_adds_its_own_devices) {
  const Start two{.gpus = "0,1"};
  const Start none{.gpus = ""};
  const Start one{.gpus = "7"};
  // Starts the first launcher last, for which the others wait.
  RunningProgram& third = start(3, 2, one);
  RunningProgram& second = start(3, 1, none);
  RunningProgram& first = start(3, 0, two);
  for (RunningProgram* program : {&first, &second, &third}) EXPECT_EQ(program->wait(), 0) << program->err();
  // The second worker of the first host gets the next port that is not taken.
  const std::vector<std::string> lines = lines_of(first.out());
  ASSERT_EQ(lines.size(), 2U) << first.out();
  const std::string cluster = lines[0].substr(lines[0].rfind(' '));
  EXPECT_THAT(cluster, ::testing::StartsWith(" worker|" + address(0) + ";127.0.0.1:"));
  EXPECT_THAT(cluster, ::testing::EndsWith(";" + address(1) + ";" + address(2)));
  EXPECT_THAT(lines, UnorderedElementsAre("[worker/0] 0" + cluster, "[worker/1] 1" + cluster));
  EXPECT_EQ(second.out(), "2" + cluster + "\n");
  EXPECT_EQ(third.out(), "3" + cluster + "\n");
}

TEST_F(RunHosts, show_each_worker_its_own_GPU_and_TF_CONFIG) {
  const std::string script = "echo \"$CUDA_VISIBLE_DEVICES $TF_CONFIG\"";
  RunningProgram& first = start(2, 0, {.gpus = "5", .script = script});
  RunningProgram& second = start(2, 1, {.gpus = "3,2", .script = script});
  EXPECT_EQ(first.wait(), 0);
  EXPECT_EQ(second.wait(), 0);
  std::map<std::string, nlohmann::json> config;  // by GPU
  for (const std::string& line : lines_of(second.out())) {
    const size_t brace = line.find('{');
    config[line.substr(0, brace)] = nlohmann::json::parse(line.substr(brace));
  }
  ASSERT_EQ(config.size(), 2U) << second.out();
  EXPECT_EQ(config.at("[worker/1] 3 ").at("task"), nlohmann::json({{"type", "worker"}, {"index", 1}}));
  EXPECT_EQ(config.at("[worker/2] 2 ").at("task"), nlohmann::json({{"type", "worker"}, {"index", 2}}));
  const nlohmann::json of_first = nlohmann::json::parse(first.out().substr(2));
  EXPECT_EQ(of_first.at("cluster").at("worker").size(), 3U);
  EXPECT_EQ(of_first.at("cluster"), config.at("[worker/2] 2 ").at("cluster"));
}

TEST_F(RunHosts, start_as_many_as_n_says) {
  RunningProgram& first = start(2, 0, {.gpus = "0,1,2", .flags = {"-n", "1"}});
  RunningProgram& second = start(2, 1, {.gpus = "", .flags = {"-n", "2"}});
  EXPECT_EQ(first.wait(), 0);
  EXPECT_EQ(second.wait(), 0);
  EXPECT_EQ(lines_of(first.out()).size(), 1U);
  EXPECT_EQ(lines_of(second.out()).size(), 2U);
}

TEST_F(RunHosts, one_host_alone_waits_for_nobody) {
  RunningProgram& only = start(1, 0, {.gpus = "0,1", .flags = {"--start-timeout", "0.001"}});
  EXPECT_EQ(only.wait(), 0) << only.err();
  EXPECT_EQ(lines_of(only.out()).size(), 2U);
  EXPECT_THAT(only.out(), HasSubstr("worker|" + address(0) + ";127.0.0.1:"));
}

TEST_F(RunHosts, servers_are_one_process_and_evaluators_wait_for_nobody) {
  const nlohmann::json cluster = {{"chief", {address(0)}}, {"ps", {address(1)}}};
  const Start how{.gpus = "0,1", .script = "echo $TUTTI_JOB_NAME $CUDA_VISIBLE_DEVICES $TUTTI_CLUSTER_SPEC"};
  RunningProgram& evaluator = start(cluster, "evaluator", 0, how);
  EXPECT_EQ(evaluator.wait(), 0) << evaluator.err();
  EXPECT_EQ(evaluator.out(), "0,1\n");
  RunningProgram& server = start(cluster, "ps", 0, how);
  RunningProgram& chief = start(cluster, "chief", 0, how);
  EXPECT_EQ(server.wait(), 0) << server.err();
  EXPECT_EQ(chief.wait(), 0) << chief.err();
  EXPECT_THAT(server.out(), ::testing::StartsWith("ps 0,1 chief|" + address(0) + ",worker|127.0.0.1:"));
  EXPECT_THAT(chief.out(), HasSubstr("[chief/0] chief 0 "));
  EXPECT_THAT(chief.out(), HasSubstr("[worker/0] worker 1 "));
  for (const char* job : {"ps", "evaluator"}) {
    RunningProgram& crowd = start(cluster, job, 0, {.flags = {"-n", "2"}});
    EXPECT_EQ(crowd.wait(), 2);
    EXPECT_THAT(crowd.err(), HasSubstr("-n 2 is not possible: TF_CONFIG makes this host"));
  }
}

TEST_F(RunHosts, a_launcher_that_never_comes_is_named_by_all) {
  const Start how{.flags = {"--start-timeout", "5"}, .script = "echo never"};
  RunningProgram& first = start(4, 0, how);
  first.wait_for_error("waits up to 5 s");  // otherwise the third might time out first and be gone
  RunningProgram& third = start(4, 2, how);
  for (RunningProgram* program : {&first, &third}) {
    EXPECT_EQ(program->wait(), 11);
    EXPECT_THAT(program->err(), HasSubstr(fmt::format("missing: worker/1 ({}), worker/3 ({}). Start",
                                                      address(1), address(3))));
    EXPECT_THAT(program->err(), HasSubstr("--start-timeout"));
    EXPECT_EQ(program->out(), "");
  }
}

TEST_F(RunHosts, a_first_launcher_that_never_comes_is_named) {
  RunningProgram& second = start(2, 1, {.flags = {"--start-timeout", "0.5"}});
  EXPECT_EQ(second.wait(), 11);
  EXPECT_THAT(second.err(), HasSubstr("worker/0 (" + address(0) + ")"));
  EXPECT_THAT(second.err(), HasSubstr("Connection refused"));
}

TEST_F(RunHosts, one_whose_time_is_up_sooner_hears_who_is_late) {
  start(3, 0);
  RunningProgram& second = start(3, 1, {.flags = {"--start-timeout", "5"}});
  EXPECT_EQ(second.wait(), 11);
  EXPECT_THAT(second.err(), HasSubstr("missing: worker/2 (" + address(2) + ")"));
}

TEST_F(RunHosts, a_launcher_that_is_killed_may_come_again) {
  RunningProgram& first = start(3, 0);
  RunningProgram& second = start(3, 1);
  first.wait_for_error("worker/1 (" + address(1) + ") connected from");
  kill(second.pid(), SIGKILL);
  EXPECT_EQ(second.wait(), 137);
  RunningProgram& third = start(3, 2);
  first.wait_for_error("worker/2 (" + address(2) + ") connected from");
  RunningProgram& again = start(3, 1, {.gpus = "0,1"});
  for (RunningProgram* program : {&first, &again, &third}) EXPECT_EQ(program->wait(), 0) << program->err();
  EXPECT_EQ(lines_of(again.out()).size(), 2U);
}

TEST_F(RunHosts, the_first_launcher_may_come_again_too) {
  RunningProgram& former = start(2, 0, {.gpus = "0,1,2"});
  const std::string script = "echo $TUTTI_TASK_INDEX";
  RunningProgram& strange = start(3, 1);  // nobody expects it: it is refused
  former.wait_for_error("refused the launcher");
  EXPECT_EQ(strange.wait(), 2);
  kill(former.pid(), SIGKILL);
  EXPECT_EQ(former.wait(), 137);
  RunningProgram& second = start(2, 1, {.script = script});
  RunningProgram& first = start(2, 0, {.script = script});
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_EQ(second.wait(), 0) << second.err();
  EXPECT_EQ(second.out(), "1\n");
}

TEST_F(RunHosts, other_launchers_outlive_the_first_ones_sudden_death) {
  RunningProgram& former = start(3, 0);
  RunningProgram& second = start(3, 1);
  former.wait_for_error("worker/1 (" + address(1) + ") connected from");
  kill(former.pid(), SIGKILL);
  EXPECT_EQ(former.wait(), 137);
  RunningProgram& first = start(3, 0);
  RunningProgram& third = start(3, 2);
  for (RunningProgram* program : {&first, &second, &third}) EXPECT_EQ(program->wait(), 0) << program->err();
}

TEST_F(RunHosts, a_signal_ends_the_wait) {
  RunningProgram& first = start(3, 0);
  RunningProgram& second = start(3, 1);
  RunningProgram& alone = start(nlohmann::json{{"worker", {address(3), address(2)}}}, "worker", 1, {});
  alone.wait_for_error("waits up to");
  kill(alone.pid(), SIGTERM);
  EXPECT_EQ(alone.wait(), 143);
  first.wait_for_error("worker/1 (" + address(1) + ") connected from");
  kill(second.pid(), SIGINT);
  EXPECT_EQ(second.wait(), 130);
  kill(first.pid(), SIGINT);
  EXPECT_EQ(first.wait(), 130);
  EXPECT_EQ(first.out() + second.out() + alone.out(), "");
}

TEST_F(RunHosts, two_with_one_index_are_told_so) {
  RunningProgram& first = start(3, 0);
  RunningProgram& second = start(3, 1);
  first.wait_for_error("worker/1 (" + address(1) + ") connected from");
  RunningProgram& twin = start(3, 1);
  EXPECT_EQ(twin.wait(), 2);
  EXPECT_THAT(twin.err(), HasSubstr("worker/1 (" + address(1) + ") is already running"));
  EXPECT_EQ(twin.out(), "");
  RunningProgram& third = start(3, 2);
  for (RunningProgram* program : {&first, &second, &third}) EXPECT_EQ(program->wait(), 0) << program->err();
}

TEST_F(RunHosts, two_with_index_0_on_one_machine_are_told_so) {
  RunningProgram& first = start(2, 0);
  first.wait_for_error("waits up to");
  const UnknownPeer listens(ports_[0]);
  RunningProgram& twin = start(2, 0);
  EXPECT_EQ(twin.wait(), 13);
  EXPECT_THAT(twin.err(), HasSubstr(fmt::format("port {} is in use by pid {}", ports_[0], first.pid())));
  RunningProgram& second = start(2, 1);
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_EQ(second.wait(), 0) << second.err();
}

TEST_F(RunHosts, one_of_another_cluster_is_sent_away) {
  RunningProgram& first = start(2, 0);
  RunningProgram& other = start(nlohmann::json{{"worker", {address(0), address(2)}}}, "worker", 1, {});
  EXPECT_EQ(other.wait(), 2);
  EXPECT_THAT(other.err(), HasSubstr("its TF_CONFIG lists different hosts than the one of worker/0"));
  RunningProgram& second = start(2, 1);
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_EQ(second.wait(), 0) << second.err();
}

TEST_F(RunHosts, unknown_peers_at_the_port_keep_nobody_from_meeting) {
  RunningProgram& first = start(2, 0);
  std::vector<std::unique_ptr<UnknownPeer>> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(std::make_unique<UnknownPeer>(ports_[0]));
  // Each of these is refused.
  for (const std::string& bytes :
       std::vector<std::string>{"GET / HTTP/1.1\r\n\r\n", std::string(3, '\0') + "\n",
                                "1 2 3 " + std::string(64, 'a') + "\n", std::string(1'000'000, 'x')}) {
    UnknownPeer unknown_peer(ports_[0]);
    unknown_peer.hear_line();
    unknown_peer.say(bytes);
    EXPECT_THAT(unknown_peer.hear(), AllOf(HasSubstr("not one of Tutti"), Not(HasSubstr(terms()))));
  }
  UnknownPeer does_not_know(ports_[0]);
  rpc::Frame proof;
  proof.kind = rpc::FrameKind::Proof;
  proof.head = std::string(kNonceSize + kProofSize, '0');
  does_not_know.say(does_not_know.hear_line() + rpc::encode(proof));
  EXPECT_THAT(does_not_know.hear(), AllOf(HasSubstr("has a secret"), Not(HasSubstr(terms()))));
  UnknownPeer cut_off(ports_[0]);
  cut_off.say("0123456789abcdef");
  RunningProgram& second = start(2, 1);
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_EQ(second.wait(), 0) << second.err();
}

TEST_F(RunHosts, more_unknown_peers_at_once_than_a_process_may_have_files_keep_nobody_from_meeting) {
  RunningProgram& first = start(2, 0);
  const UnknownPeer listens(ports_[0]);
  const rlimit few{200, 200};
  ASSERT_EQ(prlimit(first.pid(), RLIMIT_NOFILE, &few, nullptr), 0);
  kill(first.pid(), SIGSTOP);
  std::vector<std::unique_ptr<UnknownPeer>> silent;
  for (int i = 0; i < 400; ++i) silent.push_back(std::make_unique<UnknownPeer>(ports_[0]));
  kill(first.pid(), SIGCONT);
  RunningProgram& second = start(2, 1);
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_EQ(second.wait(), 0) << second.err();
}

// The workers of a host that has its answer may be faster than those of the first host.
TEST_F(RunHosts, the_meeting_place_is_free_before_anybody_hears_that_all_are_there) {
  const int port = ports_[0];
  RunningProgram& first = start(2, 0, {.script = "sleep 0.1"});
  first.wait_for_error("waits up to");
  auto second = comm::find_tcp_rendezvous(
                    {.hosts = {"127.0.0.1"}, .port = static_cast<uint16_t>(port), .purpose = "launchers"})
                    .board;
  const nlohmann::json word = {
      {"offer",
       {{"address", ""}, {"ports", {1}}, {"workers", 1}, {"members_port", 0}, {"launcher", "its token"}}},
      {"from", "b"}};
  EXPECT_EQ(second->hold("offer/1", word.dump()), word.dump());
  EXPECT_THAT(second->get("answer", std::chrono::minutes(1)), HasSubstr("offers"));
  const FileDescriptor worker(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const SocketAddress address = loopback(port);
  EXPECT_NE(connect(worker.get(), address.get(), address.size), 0);
  EXPECT_EQ(errno, ECONNREFUSED);
  second.reset();
  EXPECT_EQ(first.wait(), 0) << first.err();
}

TEST_F(RunHosts, all_have_the_key_of_this_launch_and_of_no_other) {
  const Start how{.flags = {"-n", "2"}, .script = "echo $_TUTTI_LAUNCH"};
  std::set<std::string> keys;
  for (const size_t launches : {1U, 2U}) {
    RunningProgram& first = start(2, 0, how);
    RunningProgram& second = start(2, 1, how);
    for (RunningProgram* program : {&first, &second}) {
      EXPECT_EQ(program->wait(), 0) << program->err();
      for (const std::string& line : lines_of(program->out())) keys.insert(line.substr(line.find(' ')));
    }
    EXPECT_EQ(keys.size(), launches);
  }
}

TEST_F(RunHosts, quote_an_unknown_peer_when_a_launcher_is_missing) {
  RunningProgram& first = start(2, 0, {.flags = {"--start-timeout", "2"}});
  UnknownPeer unknown_peer(ports_[0]);
  unknown_peer.say("HELO\x1b[2J\n");
  EXPECT_EQ(first.wait(), 11);
  EXPECT_THAT(first.err(), HasSubstr("it sent 'HELO?[2J"));
}

TEST_F(RunHosts, a_host_that_lies_is_not_believed) {
  const Start how{.gpus = "0,1", .flags = {"--start-timeout", "0.5"}, .script = "echo never"};
  const auto lie = [&](const std::function<void(UnknownPeer&)>& speak) {
    auto host = std::make_unique<StrangeHost>(ports_[0]);
    RunningProgram& second = start(2, 1, how);
    UnknownPeer candidate = host->accept();
    host.reset();
    speak(candidate);
    candidate.stop_speaking();
    EXPECT_EQ(second.wait(), 11) << second.err();
    EXPECT_THAT(second.err(), HasSubstr("worker/0 (" + address(0) + ")"));
    EXPECT_EQ(second.out(), "");
  };
  for (const std::string& challenge :
       std::vector<std::string>{"HTTP/1.1 400\r\n", "tutti-rpc 4 1 ranks either\n", "tutti-rpc 2 1\n",
                                std::string(2'000'000, 'x'), ""})
    lie([&](UnknownPeer& candidate) { candidate.say(challenge); });
  const auto served = comm::serve_tcp_rendezvous({.port = static_cast<uint16_t>(ports_[0]),
                                                  .purpose = "launchers",
                                                  .farewell = std::chrono::seconds(0)});
  served.board->set("terms", terms());
  const std::string one = R"({"address": "", "ports": [], "workers": 1})";
  const std::string none = R"({"address": "", "ports": [], "workers": 0})";
  for (const std::string& answer :
       {std::string("yes"), std::string("{}"), std::string(R"({"launch": 1, "offers": []})"),
        fmt::format(R"({{"launch": "a", "offers": [{}]}})", one),
        fmt::format(R"({{"launch": "a", "offers": [{}, {}]}})", none, one),
        fmt::format(R"({{"launch": "a", "offers": [{0}, {0}, {0}]}})", one)}) {
    served.board->set("answer", answer);
    RunningProgram& second = start(2, 1, how);
    EXPECT_EQ(second.wait(), exit_code(ErrorKind::DataLoss)) << answer << second.err();
    EXPECT_EQ(second.out(), "");
  }
}

TEST_F(RunHosts, prove_to_each_other_that_they_have_the_same_secret) {
  RunningProgram& first = start(2, 0, {.secret = "one"});
  RunningProgram& other = start(2, 1, {.secret = "another"});
  EXPECT_EQ(other.wait(), 2);
  EXPECT_THAT(other.err(), HasSubstr("the launcher of worker/0 (" + address(0) + ") has another secret"));
  RunningProgram& without = start(2, 1);
  EXPECT_EQ(without.wait(), 2);
  EXPECT_THAT(without.err(), HasSubstr("TUTTI_SECRET"));
  RunningProgram& second = start(2, 1, {.secret = "one"});
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_EQ(second.wait(), 0) << second.err();
  EXPECT_THAT(first.err(), HasSubstr("different secrets"));
}

// Others could not know a secret that one of the launchers makes.
TEST_F(RunHosts, make_no_secret_for_their_tasks) {
  const Start how{.script = "echo \"[$_TUTTI_SECRET]$TUTTI_SECRET\"", .secret = "ours"};
  RunningProgram& first = start(2, 0, how);
  RunningProgram& second = start(2, 1, how);
  for (RunningProgram* program : {&first, &second}) {
    EXPECT_EQ(program->wait(), 0) << program->err();
    EXPECT_EQ(program->out(), "[]ours\n");
  }
}

TEST_F(RunHosts, on_a_network_need_a_secret_or_the_word_of_the_user) {
  const nlohmann::json cluster = {{"worker", {"192.0.2.1:2222", "192.0.2.2:2222"}}};
  for (const int host : {0, 1}) {
    RunningProgram& refused = start(cluster, "worker", host, {});
    EXPECT_EQ(refused.wait(), 2);
    EXPECT_THAT(refused.err(), HasSubstr("no task may listen at 192.0.2.1 without a secret"));
    EXPECT_EQ(lines_of(refused.err()).size(), 1U) << refused.err();
  }
  const std::vector<std::string> soon = {"--start-timeout", "0.2"};
  for (const Start& how :
       {Start{.flags = soon, .secret = "x"}, Start{.flags = {"--insecure", "--start-timeout", "0.2"}}})
    EXPECT_EQ(start(cluster, "worker", 1, how).wait(), 11);
}

TEST_F(RunHosts, a_host_that_says_nothing_is_not_waited_for_any_longer) {
  StrangeHost host(ports_[0]);
  RunningProgram& second = start(2, 1, {.flags = {"--start-timeout", "0.5"}});
  UnknownPeer candidate = host.accept();
  EXPECT_EQ(second.wait(), 11);
  EXPECT_THAT(second.err(), HasSubstr("a program listens there, but does not answer"));
}

TEST_F(RunHosts, meet_again_for_a_restart) {
  // On each host the first start fails, and its remains must be gone when the second begins.
  const std::string counter = folder_ / "starts-$TUTTI_TASK_INDEX";
  const Start how{.flags = {"--restarts", "1"},
                  .script = "echo x >>" + counter + "; [ $(wc -l <" + counter + ") = 2 ] && echo fine"};
  RunningProgram& first = start(2, 0, how);
  RunningProgram& second = start(2, 1, how);
  for (RunningProgram* program : {&first, &second}) {
    EXPECT_EQ(program->wait(), 0) << program->err();
    EXPECT_EQ(program->out(), "fine\n");
    EXPECT_THAT(program->err(), HasSubstr("restart 1 of 1"));
  }
}

TEST_F(RunHosts, nodes_add_their_own_devices_and_need_no_port_but_that_of_the_meeting) {
  const std::string script = "echo $TUTTI_TASK_INDEX $CUDA_VISIBLE_DEVICES $TUTTI_CLUSTER_SPEC";
  RunningProgram& second = start_node(2, 1, {.gpus = "7", .script = script});
  RunningProgram& first = start_node(2, 0, {.gpus = "0,1", .script = script});
  for (RunningProgram* program : {&first, &second}) EXPECT_EQ(program->wait(), 0) << program->err();
  const std::string of_second = lines_of(second.out()).at(0);
  const std::string cluster = of_second.substr(of_second.rfind(' '));
  EXPECT_EQ(std::count(cluster.begin(), cluster.end(), ';'), 2) << cluster;
  EXPECT_THAT(cluster, ::testing::StartsWith(" worker|127.0.0.1:"));
  EXPECT_THAT(cluster, ::testing::Not(HasSubstr(address(0))));
  EXPECT_EQ(of_second, "2 7" + cluster);
  EXPECT_THAT(lines_of(first.out()),
              UnorderedElementsAre("[worker/0] 0 0" + cluster, "[worker/1] 1 1" + cluster));
}

TEST_F(RunHosts, the_first_node_has_the_servers_and_the_evaluator) {
  const Start how{.flags = {"--ps", "1", "--evaluator"},
                  .script = "echo $TUTTI_JOB_NAME $TUTTI_CLUSTER_SPEC"};
  RunningProgram& second = start_node(2, 1, how);
  RunningProgram& first = start_node(2, 0, how);
  for (RunningProgram* program : {&first, &second}) EXPECT_EQ(program->wait(), 0) << program->err();
  EXPECT_THAT(second.out(), ::testing::StartsWith("worker ps|127.0.0.1:"));
  const std::string cluster = second.out().substr(second.out().rfind(' '));
  EXPECT_THAT(lines_of(first.out()),
              UnorderedElementsAre(HasSubstr("[ps/0] ps"), HasSubstr("[worker/0] worker"),
                                   HasSubstr("[evaluator/0] evaluator")));
  EXPECT_THAT(first.out(), HasSubstr(cluster));
}

TEST_F(RunHosts, nodes_that_do_not_belong_together_are_told_so) {
  RunningProgram& first = start_node(2, 0, {});
  RunningProgram& other = start_node(2, 1, {.flags = {"--ps", "1"}});
  EXPECT_EQ(other.wait(), 2);
  EXPECT_THAT(other.err(), HasSubstr("node 0 has '--ps 0', node 1 has '--ps 1'"));
  first.wait_for_error("refused the launcher at");
  RunningProgram& restarted = start_node(2, 1, {.flags = {"--restarts", "1"}});
  EXPECT_EQ(restarted.wait(), 2);
  EXPECT_THAT(restarted.err(), HasSubstr("the same --nnodes, --rendezvous (or TF_CONFIG), --ps, --evaluator, "
                                         "--restarts, --min and PROGRAM"));
  RunningProgram& late = start_node(3, 0, {.flags = {"--start-timeout", "0.1"}});
  EXPECT_EQ(late.wait(), 13);
  EXPECT_THAT(late.err(), HasSubstr("give each launcher its own --node-rank"));
  RunningProgram& second = start_node(2, 1, {});
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_EQ(second.wait(), 0) << second.err();
  RunningProgram& alone = start_node(3, 0, {.flags = {"--start-timeout", "0.1"}});
  EXPECT_EQ(alone.wait(), 11);
  EXPECT_THAT(alone.err(), HasSubstr("missing: node 1, node 2. Start"));
}

TEST_F(RunHosts, nodes_that_make_no_sense_are_refused_at_once) {
  const auto refused = [&](const Words& flags, const std::string& text, const Words& variables = {}) {
    const auto result = run_program(Words{program_path("tutti"), "run"} + flags + Words{"--", "true"},
                                    Words{mark_} + variables);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr(text));
  };
  refused({"--nnodes", "2"}, "--nnodes 2 needs --rendezvous HOST:PORT");
  refused({"--nnodes", "2", "--rendezvous", "a"}, "'a'");
  refused({"--nnodes", "2", "--rendezvous", "a:0"}, "needs a port other than 0");
  refused({"--nnodes", "2", "--rendezvous", "a:1", "--node-rank", "2"},
          "--node-rank 2 is not one of the 2 nodes");
  refused({"--nnodes", "2", "--rendezvous", "a:1", "-H", "a,b"},
          "-H and --discover start the launchers of all hosts");
  refused({"--nnodes", "2", "--rendezvous", "192.0.2.1:1"},
          "no task may listen at 192.0.2.1 without a secret");
  const nlohmann::json config = {{"cluster", cluster_of(2)}, {"task", {{"type", "worker"}, {"index", 0}}}};
  refused({"--nnodes", "2", "--rendezvous", address(0)}, "--nnodes cannot be combined with TF_CONFIG",
          {"TF_CONFIG=" + config.dump()});
  const auto alone = run_program({program_path("tutti"), "run", "--nnodes", "1", "--", "true"}, {mark_});
  EXPECT_EQ(alone.exit_code, 0) << alone.err;
}

TEST_F(RunHosts, that_do_not_fit_are_refused_at_once) {
  const auto refused = [&](const nlohmann::json& cluster, const std::string& text) {
    RunningProgram& program = start(cluster, "worker", 0, {});
    EXPECT_EQ(program.wait(), 2);
    EXPECT_THAT(program.err(), HasSubstr("TF_CONFIG"));
    EXPECT_THAT(program.err(), HasSubstr(text));
    EXPECT_EQ(lines_of(program.err()).size(), 1U) << program.err();
  };
  refused({{"worker", {"a:0", "b:1"}}}, "'a:0', needs a port");
  refused({{"worker", {"a"}}}, "'a'");
  refused({{"worker", {"a:1", "a:1"}}}, "'a:1'");
  refused({{"worker", {{"0", "a:1"}, {"2", "b:1"}}}}, "lacks worker/1");
}

}  // namespace
}  // namespace tutti::testing::run_hosts_test

// Launchers of several nodes, all on this machine, for tests of `tutti run --nnodes N --min M`. Their workers
// are those of members_program.cc.
#pragma once

#include <map>
#include <memory>
#include <signal.h>
#include <string>
#include <sys/types.h>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/run_job.h"
#include "tutti/base/file.h"
#include "tutti/base/ports.h"
#include "tutti/transport/board/follow.h"
#include "tutti/transport/job_board.h"

namespace tutti::testing {

inline constexpr int kWorkers = 2;  // of each host

// Two nodes: workers 0 and 1 are on node 0, the others on node 1.
class RunMinOnNodes : public Run {
 protected:
  explicit RunMinOnNodes(int count = 2) : count_(count) {}

  // The begin of the command, and variables, that tell a launcher its node.
  virtual Words begin_of(int node) const {
    return launcher_of_node(node, fmt::format("127.0.0.1:{}", port_), count_);
  }
  virtual Words variables_of(int /*node*/) const { return {}; }
  Words launcher(int node, const Words& flags) const {
    return begin_of(node) + Words{"-n", std::to_string(slots_)} + flags +
           Words{"--", program_path("../test/members_program"), folder_.path()} + arguments_;
  }
  void start_node(int node) {
    nodes_[node] = std::make_unique<RunningProgram>(
        launcher(node, flags_),
        variables_of(node) + Words{mark_, "TUTTI_SECRET=" + secret_, "TUTTI_TIMEOUT=" + timeout_});
  }
  void start(const Words& flags) {
    flags_ = flags;
    for (int node = count_ - 1; node >= 0; --node) start_node(node);
    wait_for_all();
  }
  void wait_for_all() {
    for (int worker = 0; worker < count_ * kWorkers; ++worker) wait_for(worker, 0, worker, count_ * kWorkers);
  }
  RunningProgram& node_of(int worker) { return *nodes_.at(worker / kWorkers); }
  // Waits until the worker says that it has this life, this rank and as many workers.
  void wait_for(int worker, int life, int rank, int workers) {
    node_of(worker).wait_for_output(said_by_member(worker, life, rank, workers));
  }
  void kill_worker(int worker, int life = 0) {
    if (const pid_t pid = pid_of_member(node_of(worker).out(), worker, life); pid > 0) kill(pid, SIGKILL);
  }
  // Waits until the launcher of this node knows that this epoch has begun, and looks for that on the board
  // that this worker uses.
  void wait_for_vote(int node, int epoch, int worker) {
    const std::string variables =
        read_system_file(fmt::format("/proc/{}/environ", pid_of_member(node_of(worker).out(), worker, 0)));
    const auto variable = [&](const std::string& name) {
      const size_t at = variables.find(name + "=") + name.size() + 1;
      return variables.substr(at, variables.find('\0', at) - at);
    };
    const auto board =
        comm::follow_members_board({.address = variable("_TUTTI_MEMBERS"),
                                    .secret = comm::members_secret(variable("_TUTTI_LAUNCH"), "ours")});
    EXPECT_TRUE(eventually([&] {
      const auto text = board->peek(fmt::format("vote/{}", node));
      if (!text) return false;
      const auto chosen = nlohmann::json::parse(*text).at("chosen").at("members").get<std::string>();
      return nlohmann::json::parse(chosen).at("epoch") == epoch;
    }));
  }
  void finish() { folder_.write("finish", ""); }
  void expect_end(int node, int exit_code) {
    EXPECT_EQ(nodes_.at(node)->wait(), exit_code) << nodes_[node]->out() << nodes_[node]->err();
  }
  void expect_ends(int first, int second) {
    expect_end(0, first);
    expect_end(1, second);
    EXPECT_TRUE(nobody_is_left());
  }
  const std::string& err(int node) const { return nodes_.at(node)->err(); }

  const int count_;  // of the nodes
  std::string timeout_ = "60";
  std::string secret_ = "ours";
  int slots_ = kWorkers;
  Words flags_;
  Words arguments_;  // further ones of the program: what all must have the same
  const int port_ = free_ports(1).front();
  std::map<int, std::unique_ptr<RunningProgram>> nodes_;
};

// Three nodes with two workers each: any of them may be lost, the first included.
class RunMinOnThreeNodes : public RunMinOnNodes {
 protected:
  RunMinOnThreeNodes() : RunMinOnNodes(3) {}
  void expect_end_on(const std::map<int, int>& codes) {
    for (const auto& [node, code] : codes) expect_end(node, code);
    EXPECT_TRUE(nobody_is_left());
  }
};

// Three nodes whose launchers know the addresses of all.
class RunMinWithAddresses : public RunMinOnThreeNodes {
 protected:
  RunMinWithAddresses() {
    for (const int port : free_ports(3)) addresses_.push_back(fmt::format("127.0.0.1:{}", port));
  }
  void kill_node(int node) {
    kill(nodes_[node]->pid(), SIGKILL);
    expect_end(node, 128 + SIGKILL);
  }
  // Returns the newest epoch in which this worker was.
  int epoch_of(int worker) {
    node_of(worker).read_what_is_there();
    const std::string& out = node_of(worker).out();
    const size_t at = out.find(", epoch ", out.rfind(fmt::format(", worker {}, life", worker)));
    return std::stoi(out.substr(at + std::string(", epoch ").size()));
  }
  void finish_on_all() {
    finish();
    expect_end_on({{0, 0}, {1, 0}, {2, 0}});
  }
  std::vector<std::string> addresses_;
};

// As Kubernetes starts the pods of an indexed job.
class RunMinInPods : public RunMinWithAddresses {
 protected:
  Words begin_of(int /*node*/) const override {
    return {program_path("tutti"),
            "run",
            "--nnodes",
            "3",
            "--rendezvous",
            fmt::format("{}", fmt::join(addresses_, ","))};
  }
  Words variables_of(int node) const override { return {fmt::format("JOB_COMPLETION_INDEX={}", node)}; }
};

}  // namespace tutti::testing

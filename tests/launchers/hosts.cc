#include "tests/launchers/hosts.h"

#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "tests/launchers/training.h"

namespace tutti::testing {
namespace {

constexpr const char* kCable = "cable";
constexpr const char* kHub = "hub";

std::string address_at_switch(size_t index) { return fmt::format("10.77.1.{}", index + 1); }

// It ignores SIGCHLD, so that the kernel removes orphans that have ended: Slurm waits for a job until they
// are gone.
std::vector<std::string> first_process(const std::string& name) {
  const std::string script = fmt::format(
      "hostname {} && ip link set lo up && echo ready && exec env --ignore-signal=CHLD sleep infinity", name);
  return {"setpriv", "--pdeathsig", "KILL",         "unshare", "--net", "--pid", "--mount-proc",
          "--uts",   "--fork",      "--kill-child", "sh",      "-c",    script};
}

}  // namespace

Host::Host(const std::string& name)
    : mark_(fmt::format("HOST_OF_TEST={}/{}", name, getpid())), holder_(first_process(name), {mark_}) {
  holder_.wait_for_output("ready\n");
  // During its exec from a shell to sleep, its environment is not visible.
  EXPECT_TRUE(eventually([&] {
    for (const pid_t pid : processes_with(mark_)) {
      if (pid != holder_.pid()) first_process_ = pid;
    }
    return first_process_ > 0;
  }));
}

std::vector<std::string> Host::here() const {
  return {"nsenter", "--target", std::to_string(first_process_), "--net", "--uts", "--pid", "--mount", "--"};
}

std::vector<std::string> Host::network_here() const {
  return {"nsenter", "--target", std::to_string(first_process_), "--net", "--uts", "--"};
}

void Host::run(const std::vector<std::string>& command) const {
  std::vector<std::string> words = here();
  words.insert(words.end(), command.begin(), command.end());
  const ProgramResult result = run_program(words);
  EXPECT_EQ(result.exit_code, 0) << fmt::format("{}", fmt::join(command, " ")) << ": " << result.err;
}

void Host::unplug() const { run({"ip", "link", "set", kCable, "down"}); }
void Host::plug() const { run({"ip", "link", "set", kCable, "up"}); }

TwoHosts::TwoHosts(const std::string& rate) {
  std::vector<std::string> lay = east_.network_here();
  lay.insert(lay.end(), {"ip", "link", "add", kCable, "type", "veth", "peer", "name", kCable, "netns",
                         std::to_string(west_.pid())});
  const ProgramResult laid = run_program(lay);
  EXPECT_EQ(laid.exit_code, 0) << laid.err;
  for (const Host* host : {&east_, &west_}) {
    const char* address = host == &east_ ? kEastAddress : kWestAddress;
    host->run({"ip", "addr", "add", fmt::format("{}/24", address), "dev", kCable});
    host->plug();
    host->run({"tc", "qdisc", "add", "dev", kCable, "root", "tbf", "rate", rate, "burst", "1mb", "latency",
               "50ms"});
  }
}

std::string TwoHosts::why_not() {
  if (geteuid() != 0) return "this needs root";
  for (const char* program : {"ip", "tc"}) {
    if (!is_installed(program)) return fmt::format("there is no {} (apt-get install iproute2)", program);
  }
  for (const char* program : {"unshare", "nsenter", "setpriv"}) {
    if (!is_installed(program)) return fmt::format("there is no {} (apt-get install util-linux)", program);
  }
  const ProgramResult trial = run_program({"unshare", "--net", "--pid", "--fork", "--mount-proc", "true"});
  return trial.exit_code == 0 ? "" : "namespaces are not allowed here: " + trial.err;
}

NamedHosts::NamedHosts(const std::vector<Names>& names) {
  switch_.run({"ip", "link", "add", "name", kHub, "type", "bridge"});
  switch_.run({"ip", "link", "set", kHub, "up"});
  std::string lines = "127.0.0.1 localhost\n";
  for (size_t index = 0; index < names.size(); ++index) {
    hosts_.push_back(std::make_unique<Host>(names[index].host));
    connect(index);
    lines += fmt::format("{} {} {}\n", address_at_switch(index), names[index].host,
                         fmt::join(names[index].others, " "));
  }
  const std::string file = folder_.write("hosts", lines);
  for (const auto& host : hosts_) host->run({"mount", "--bind", file, "/etc/hosts"});
}

void NamedHosts::connect(size_t index) const {
  const std::string port = fmt::format("port{}", index);
  const ProgramResult laid =
      run_program(switch_.network_here() + Words{"ip", "link", "add", port, "type", "veth", "peer", "name",
                                                 kCable, "netns", std::to_string(hosts_[index]->pid())});
  EXPECT_EQ(laid.exit_code, 0) << laid.err;
  switch_.run({"ip", "link", "set", port, "master", kHub, "up"});
  hosts_[index]->run({"ip", "addr", "add", address_at_switch(index) + "/24", "dev", kCable});
  hosts_[index]->plug();
}

}  // namespace tutti::testing

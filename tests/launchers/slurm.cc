#include "tests/launchers/slurm.h"

#include <array>
#include <csignal>
#include <filesystem>
#include <random>
#include <unistd.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/launchers/training.h"
#include "tutti/base/ports.h"
#include "tutti/base/text.h"

namespace tutti::testing {
namespace {

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

// Returns 22 for "slurm-wlm 22.05.8"; 0 if the version is unknown.
int64_t version_of_slurm() {
  const std::string version = run_program({"slurmd", "-V"}).out;
  return parse_int(version.substr(0, version.find('.')).substr(version.find(' ') + 1)).value_or(0);
}

}  // namespace

// Ends its program as an administrator would, and waits for the end.
class Slurm::Daemon {
 public:
  Daemon(const Words& command, const Words& environment) : program_(command, environment) {}
  ~Daemon() {
    kill(program_.pid(), SIGTERM);
    program_.wait();
  }
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

 private:
  RunningProgram program_;
};

Slurm::Slurm(Nodes nodes) {
  if (nodes == Nodes::TwoHosts) hosts_ = std::make_unique<TwoHosts>();
  // munged requires a key of its own and a socket that everybody can reach.
  std::filesystem::permissions(folder_.path(), std::filesystem::perms(0755));
  std::random_device random;
  std::string key;
  while (key.size() < 128) key += static_cast<char>(random());
  std::filesystem::permissions(folder_.write("munge.key", key), std::filesystem::perms(0400));
  for (const char* name : {"state", "spool"}) std::filesystem::create_directory(folder_ / name);
  folder_.write("slurm.conf", configuration());
  // Without control groups, newer versions do not start without this setting, and older ones not with it.
  if (version_of_slurm() >= 23) folder_.write("cgroup.conf", "CgroupPlugin=disabled\n");
  // The devices only have to exist.
  if (hosts_) folder_.write("gres.conf", "Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n");

  const std::string munge = folder_ / "munge";
  start({},
        {"munged", "--foreground", "--key-file=" + munge + ".key", "--socket=" + munge + ".socket",
         "--log-file=" + munge + ".log", "--pid-file=" + munge + ".pid", "--seed-file=" + munge + ".seed"});
  EXPECT_TRUE(eventually([&] { return std::filesystem::exists(munge + ".socket"); }));
  start(hosts_ ? hosts_->east().network_here() : Words{}, {"slurmctld", "-D", "-i"});
  if (hosts_) {
    start_nodes_on_hosts();
  } else {
    start({}, {"slurmd", "-D"});
  }
}

void Slurm::start_nodes_on_hosts() {
  const std::string names = folder_.write(
      "hosts",
      fmt::format("127.0.0.1 localhost\n{} east\n{} west\n", TwoHosts::kEastAddress, TwoHosts::kWestAddress));
  for (const Host* host : {&hosts_->east(), &hosts_->west()}) {
    host->run({"mount", "--bind", names, "/etc/hosts"});
    start(host->here(), {"slurmd", "-D"});
  }
}

// The daemons that run inside of hosts end with these, so that nothing writes into the folder any more.
Slurm::~Slurm() {
  hosts_.reset();
  while (!daemons_.empty()) daemons_.pop_back();
}

std::string Slurm::configuration() const {
  const std::vector<int> ports = free_ports(2);
  std::string text = "ClusterName=tutti\nSlurmUser=root\nSlurmdUser=root\n";
  text += fmt::format("SlurmctldHost={}\n", hosts_ ? fmt::format("east({})", TwoHosts::kEastAddress)
                                                   : fmt::format("{}(127.0.0.1)", host_name()));
  text += fmt::format("SlurmctldPort={}\nSlurmdPort={}\n", ports[0], ports[1]);
  // The second value is the time for which a requeued job has to wait: by default two minutes.
  text += fmt::format("AuthType=auth/munge\nAuthInfo=socket={},cred_expire=5\n", folder_ / "munge.socket");
  text += "SchedulerType=sched/builtin\nSchedulerParameters=sched_interval=2\n";
  text += "ProctrackType=proctrack/pgid\nTaskPlugin=task/none\n";
  text += "SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\n";
  text += "SwitchType=switch/none\nJobAcctGatherType=jobacct_gather/none\n";
  text += fmt::format("StateSaveLocation={}\nSlurmdSpoolDir={}/%n\n", folder_ / "state", folder_ / "spool");
  text += fmt::format("SlurmctldPidFile={}\nSlurmdPidFile={}.%n\n", folder_ / "c.pid", folder_ / "d.pid");
  // The port at which workers meet depends on the job's number: two clusters on one machine should not both
  // begin with 1.
  text += fmt::format("FirstJobId={}\n", getpid() % 60000 + 1);
  // Uses 4 CPUs on any machine.
  text += "SlurmdParameters=config_overrides\n" + nodes();
  return text + "PartitionName=all Nodes=ALL Default=YES State=UP\n";
}

std::string Slurm::nodes() const {
  if (!hosts_) return fmt::format("NodeName={} NodeAddr=127.0.0.1 CPUs=4\n", host_name());
  return fmt::format(
      "GresTypes=gpu\nNodeName=east NodeAddr={} CPUs=4 Gres=gpu:2\n"
      "NodeName=west NodeAddr={} CPUs=4 Gres=gpu:2\n",
      TwoHosts::kEastAddress, TwoHosts::kWestAddress);
}

// The daemon's log goes into a file, since nobody reads a pipe while the tests run.
void Slurm::start(const Words& where, const Words& command) {
  const std::string log = folder_ / fmt::format("{}-{}.log", command.front(), daemons_.size());
  const Words logged = {"sh", "-c", fmt::format("exec \"$@\" >{} 2>&1", log), "sh"};
  daemons_.push_back(std::make_unique<Daemon>(where + logged + command, Words{environment()}));
}

ProgramResult Slurm::run(const Words& command, const Words& environment) const {
  return run_program(here() + command, environment + Words{this->environment()});
}

bool Slurm::comes_up() const {
  const std::string all_are_idle = hosts_ ? "idle\nidle\n" : "idle\n";
  return eventually([&] {
    return run({"sinfo", "--noheader", "--Node", "--format=%T"}).out == all_are_idle;
  });
}

std::string Slurm::why_not(Nodes nodes) {
  if (geteuid() != 0) return "this needs root";
  for (const char* program : {"srun", "sbatch", "slurmctld", "slurmd", "munged"}) {
    if (!is_installed(program))
      return fmt::format("there is no {} (apt-get install slurm-wlm munge)", program);
  }
  return nodes == Nodes::TwoHosts ? TwoHosts::why_not() : "";
}

}  // namespace tutti::testing

#include "tests/chaos/job.h"

#include <fstream>
#include <unistd.h>

#include <fmt/format.h>

#include "tutti/base/ports.h"

namespace tutti::testing {
namespace {

// The launchers meet at this port if each is on a host of its own, where all ports are free.
constexpr int kPortOfHosts = 4000;

pid_t child_of(pid_t parent) {
  pid_t child = 0;
  std::ifstream(fmt::format("/proc/{0}/task/{0}/children", parent)) >> child;
  return child;
}

}  // namespace

ChaosJob::ChaosJob(JobSetting setting, const std::string& name)
    : setting_(std::move(setting)),
      mark_(fmt::format("TUTTI_TEST_MARK={}-chaos-{}", getpid(), name)),
      port_(free_ports(1).front()),
      launchers_(setting_.nodes) {
  for (size_t node = setting_.nodes; node > 0; --node) start(node - 1);
}

ChaosJob::~ChaosJob() {
  eventually([this] {
    kill_all();
    return processes().empty();
  });
}

void ChaosJob::start(size_t node) {
  if (!has_ended(node)) return;
  Words command = {program_path("tutti"), "run"};
  if (setting_.nodes > 1) {
    const std::string rendezvous = setting_.hosts != nullptr
                                       ? fmt::format("{}:{}", TwoHosts::kEastAddress, kPortOfHosts)
                                       : fmt::format("127.0.0.1:{}", port_);
    command = command + Words{"--nnodes",     std::to_string(setting_.nodes),
                              "--node-rank",  std::to_string(node),
                              "--rendezvous", rendezvous};
  }
  command = command + setting_.launch + Words{"--"} + setting_.program;
  if (setting_.hosts != nullptr)
    command = (node == 0 ? setting_.hosts->east() : setting_.hosts->west()).here() + command;
  if (setting_.disk != nullptr) command = setting_.disk->here() + command;
  launchers_[node] = std::make_unique<RunningProgram>(
      command, setting_.environment + Words{mark_, "CUDA_VISIBLE_DEVICES=", "TUTTI_SECRET=ours",
                                            "TUTTI_TIMEOUT=" + setting_.timeout});
}

void ChaosJob::read() {
  for (const auto& launcher : launchers_) {
    if (launcher) launcher->read_what_is_there();
  }
}

bool ChaosJob::has_ended(size_t node) const {
  if (!launchers_[node]) return true;
  const char state = state_of(launchers_[node]->pid());
  return state == 'Z' || state == '?';
}

int ChaosJob::wait(size_t node) { return launchers_.at(node)->wait(); }

// On a host, the process that was started has entered the host and waits for the launcher there.
pid_t ChaosJob::launcher(size_t node) const {
  if (has_ended(node)) return 0;
  const pid_t pid = launchers_[node]->pid();
  return setting_.hosts != nullptr ? child_of(pid) : pid;
}

std::vector<pid_t> ChaosJob::tasks(const std::string& kind) const {
  return processes_with(Words{mark_, "TUTTI_JOB_NAME=" + kind});
}

std::vector<pid_t> ChaosJob::tasks(const std::string& kind, int index) const {
  return processes_with(Words{mark_, "TUTTI_JOB_NAME=" + kind, fmt::format("TUTTI_TASK_INDEX={}", index)});
}

bool ChaosJob::strike(pid_t pid, int signal) { return pid > 0 && kill(pid, signal) == 0; }

// On a host, the process that waits for the launcher has stopped with it.
void ChaosJob::continue_stopped() {
  for (const pid_t pid : processes()) kill(pid, SIGCONT);
}

void ChaosJob::kill_all() {
  for (const pid_t pid : processes()) kill(pid, SIGKILL);
}

}  // namespace tutti::testing

#include "tools/launch/job_watch.h"

#include <algorithm>
#include <map>
#include <signal.h>
#include <sys/prctl.h>
#include <thread>
#include <unistd.h>

#include <fmt/core.h>

namespace tutti {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kZombie = 'Z';
constexpr char kDead = 'X';
constexpr std::chrono::milliseconds kBetweenKills{10};

bool contains(const std::vector<pid_t>& pids, pid_t pid) {
  return std::find(pids.begin(), pids.end(), pid) != pids.end();
}

// The time makes the value unique, since process numbers are reused. The name is unique too, so that the
// processes of a nested job, such as `tutti run` in a sweep, keep the marks of both jobs.
std::string new_mark() {
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  return fmt::format("_TUTTI_JOB_{}_{}=1", getpid(), now);
}

// Returns the present children of this process, which becomes a subreaper.
std::vector<pid_t> become_subreaper() {
  std::vector<pid_t> children;
  for (const ProcessState& process : all_processes()) {
    if (process.parent == getpid()) children.push_back(process.pid);
  }
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  return children;
}

// If the guardian cannot be started, nobody else removes the group.
Guardian start_guardian(const GuardedJob& job, int keep, std::vector<std::string> program) {
  try {
    return Guardian(job, keep, std::move(program));
  } catch (...) {
    if (!job.group.empty()) ControlGroup(job.group).remove();
    throw;
  }
}

}  // namespace

JobWatch::JobWatch(int keep, std::vector<std::string> guardian)
    : mark_(new_mark()),
      left_out_(become_subreaper()),
      group_(ControlGroup::make()),
      guardian_(start_guardian({mark_, group_ ? group_->path() : ""}, keep, std::move(guardian))) {}

JobWatch::~JobWatch() {
  if (group_ && !group_->remove()) guardian_.end_job();
}

void JobWatch::enrol(ChildOptions& child) const {
  child.environment.push_back(mark_);
  if (group_) child.group = group_->entrance();
}

// A process may be missed while it gets a new parent: therefore looks a second time if it finds none.
std::vector<ProcessState> JobWatch::living(const std::vector<pid_t>& but) const {
  constexpr useconds_t kSecondLook = 2000;
  std::vector<ProcessState> found = seen(but);
  if (!found.empty()) return found;
  usleep(kSecondLook);
  return seen(but);
}

std::vector<ProcessState> JobWatch::seen(const std::vector<pid_t>& but) const {
  std::multimap<pid_t, ProcessState> by_parent;
  for (ProcessState& process : all_processes()) {
    const bool other = contains(left_out_, process.pid) || process.pid == guardian_.pid();
    if (!other) by_parent.emplace(process.parent, std::move(process));
  }
  std::vector<ProcessState> living;
  std::vector<pid_t> parents = {getpid()};
  while (!parents.empty()) {
    const auto [begin, end] = by_parent.equal_range(parents.back());
    parents.pop_back();
    for (auto child = begin; child != end; ++child) {
      const ProcessState& process = child->second;
      parents.push_back(process.pid);
      const bool has_ended = process.state == kZombie || process.state == kDead;
      if (!has_ended && !contains(but, process.pid)) living.push_back(process);
    }
  }
  return living;
}

// Kills processes one by one as well: host launchers are in separate groups.
void JobWatch::kill_all(const std::vector<pid_t>& but) const {
  if (group_) group_->kill_all();
  for (const ProcessState& process : living(but)) send_signal(process, SIGKILL);
}

void JobWatch::end_all(std::chrono::milliseconds patience, const std::vector<pid_t>& but) const {
  const auto limit = Clock::now() + patience;
  while (!living(but).empty() && Clock::now() < limit) {
    kill_all(but);
    std::this_thread::sleep_for(kBetweenKills);
  }
}

void JobWatch::continue_guardian() const { ::kill(guardian_.pid(), SIGCONT); }

}  // namespace tutti

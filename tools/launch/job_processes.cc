#include "tools/launch/job_processes.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>
#include <sys/prctl.h>
#include <unistd.h>

#include <fmt/core.h>

#include "tutti/base/file.h"
#include "tutti/base/text.h"

namespace tutti {
namespace {

constexpr char kZombie = 'Z';
constexpr char kDead = 'X';

bool contains(const std::vector<pid_t>& pids, pid_t pid) {
  return std::find(pids.begin(), pids.end(), pid) != pids.end();
}

}  // namespace

std::optional<ProcessState> process_state(pid_t pid) {
  const std::string text = read_system_file(fmt::format("/proc/{}/stat", pid));
  // The format is "12 (name) S 1 ..."; the name may itself contain spaces and brackets.
  const size_t open = text.find('(');
  const size_t close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open) return std::nullopt;
  ProcessState process{.pid = pid, .name = text.substr(open + 1, close - open - 1)};
  std::istringstream rest(text.substr(close + 1));
  if (!(rest >> process.state >> process.parent)) return std::nullopt;
  return process;
}

std::vector<ProcessState> all_processes() {
  std::vector<ProcessState> all;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::optional<int64_t> pid = parse_int(entry.path().filename().string());
    if (!pid) continue;
    if (auto process = process_state(static_cast<pid_t>(*pid))) all.push_back(*std::move(process));
  }
  return all;
}

std::string wait_channel(pid_t pid) {
  const std::string name = read_system_file(fmt::format("/proc/{}/wchan", pid));
  return name.empty() || name == "0" ? "" : " in " + name;
}

JobProcesses::JobProcesses() {
  for (const ProcessState& process : all_processes()) {
    if (process.parent == getpid()) leave_out(process.pid);
  }
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

// A process may be missed while it is handed over to another parent: therefore looks a second time if it
// finds none.
std::vector<ProcessState> JobProcesses::living() const {
  constexpr useconds_t kSecondLook = 2000;
  std::vector<ProcessState> found = seen();
  if (!found.empty()) return found;
  usleep(kSecondLook);
  return seen();
}

std::vector<ProcessState> JobProcesses::seen() const {
  std::multimap<pid_t, ProcessState> by_parent;
  for (ProcessState& process : all_processes()) {
    if (!contains(left_out_, process.pid)) by_parent.emplace(process.parent, std::move(process));
  }
  std::vector<ProcessState> living;
  std::vector<pid_t> parents = {getpid()};
  while (!parents.empty()) {
    const auto [begin, end] = by_parent.equal_range(parents.back());
    parents.pop_back();
    for (auto child = begin; child != end; ++child) {
      parents.push_back(child->second.pid);
      if (child->second.state != kZombie && child->second.state != kDead) living.push_back(child->second);
    }
  }
  return living;
}

}  // namespace tutti

#include "tutti/cluster/cluster_spec.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "tutti/base/address.h"
#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/text.h"

namespace tutti {
namespace {

// Far larger than any cluster. Without a limit, a mistyped index would mean a million missing tasks.
constexpr int kMaxIndex = 999'999;

bool is_job_name(std::string_view name) {
  return !name.empty() && std::isalpha(static_cast<unsigned char>(name[0])) != 0 &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
}

void check_job(const std::string& job, const ClusterSpec::Tasks& tasks) {
  if (!is_job_name(job)) {
    fail(ErrorKind::InvalidArgument,
         "cluster: '{}' is not a job name: it must begin with a letter, followed by "
         "letters, digits and underscores",
         job);
  }
  if (tasks.empty()) fail(ErrorKind::InvalidArgument, "cluster: job '{}' has no tasks", job);
  for (const int index : {tasks.begin()->first, tasks.rbegin()->first}) {
    if (index < 0 || index > kMaxIndex) {
      fail(ErrorKind::InvalidArgument, "cluster: job '{}': {} is not a task index (0 to {})", job, index,
           kMaxIndex);
    }
  }
}

// The owners of the addresses seen so far. Addresses are normalised: 'H:2222' and 'h:02222' are the same.
class AddressBook {
 public:
  void add(const std::string& job, int index, const std::string& text) {
    const Address address = parse_address(text);
    if (address.port == 0) return;
    const std::string task = fmt::format("/job:{}/task:{}", job, index);
    const auto [place, added] = owners_.emplace(tutti::to_string(address), task);
    if (!added) {
      fail(ErrorKind::InvalidArgument, "cluster: {} and {} have the same address, '{}'", place->second, task,
           text);
    }
  }

 private:
  std::map<std::string, std::string> owners_;
};

std::pair<std::string, ClusterSpec::Tasks> parse_job(const std::string& piece) {
  const auto bar = piece.find('|');
  if (bar == std::string::npos || piece.find('|', bar + 1) != std::string::npos) {
    fail(ErrorKind::InvalidArgument, "cluster: '{}' is not JOB|HOST:PORT;HOST:PORT;..., with one '|'", piece);
  }
  const std::string job = piece.substr(0, bar);
  ClusterSpec::Tasks tasks;
  const std::string addresses = piece.substr(bar + 1);
  if (addresses.empty()) return {job, tasks};
  for (const std::string& address : split(addresses, ';')) {
    const int index = static_cast<int>(tasks.size());
    if (address.empty()) {
      fail(ErrorKind::InvalidArgument, "cluster: the address of task {} in '{}' is empty", index, piece);
    }
    tasks.emplace(index, address);
  }
  return {job, tasks};
}

std::string address_text(const Json& value, const std::string& job) {
  if (value.is_string()) return value.get<std::string>();
  fail(ErrorKind::InvalidArgument, "cluster: job '{}': {} is not an address; write \"HOST:PORT\"", job,
       value.dump());
}

int task_index(const std::string& text, const std::string& job) {
  const auto index = parse_int(text);
  if (!index || *index < 0 || *index > kMaxIndex) {
    fail(ErrorKind::InvalidArgument, "cluster: job '{}': '{}' is not a task index (0 to {})", job, text,
         kMaxIndex);
  }
  return static_cast<int>(*index);
}

ClusterSpec::Tasks tasks_of(const Json& value, const std::string& job) {
  ClusterSpec::Tasks tasks;
  if (value.is_array()) {
    for (const Json& address : value) tasks.emplace(tasks.size(), address_text(address, job));
  } else if (value.is_object()) {
    for (const auto& [key, address] : value.items()) {
      const int index = task_index(key, job);
      if (!tasks.emplace(index, address_text(address, job)).second) {
        fail(ErrorKind::InvalidArgument, "cluster: job '{}' has task {} twice", job, key);
      }
    }
  } else {
    fail(ErrorKind::InvalidArgument,
         "cluster: job '{}' is {}; expected a list of addresses, or an object with an address for each index",
         job, json_type_name(value));
  }
  return tasks;
}

bool is_dense(const ClusterSpec::Tasks& tasks) {
  return tasks.rbegin()->first + 1 == static_cast<int>(tasks.size());
}

}  // namespace

ClusterSpec::ClusterSpec(Jobs jobs) : jobs_(std::move(jobs)) {
  AddressBook addresses;
  for (auto job = jobs_.begin(); job != jobs_.end(); ++job) {
    check_job(job->first, job->second);
    if (std::any_of(jobs_.begin(), job, [&](const auto& other) { return other.first == job->first; })) {
      fail(ErrorKind::InvalidArgument, "cluster: job '{}' is named twice", job->first);
    }
    for (const auto& [index, address] : job->second) addresses.add(job->first, index, address);
  }
}

ClusterSpec ClusterSpec::parse(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  const bool json = first != std::string_view::npos && text[first] == '{';
  return json ? from_json(text) : from_text(text);
}

ClusterSpec ClusterSpec::from_text(std::string_view text) {
  Jobs jobs;
  if (text.empty()) return ClusterSpec();
  for (const std::string& piece : split(text, ',')) jobs.push_back(parse_job(piece));
  return ClusterSpec(std::move(jobs));
}

ClusterSpec ClusterSpec::from_json(std::string_view text) {
  const Json root = parse_json(text, "cluster");
  if (!root.is_object()) {
    fail(ErrorKind::InvalidArgument, "cluster: {} is {}; expected an object of jobs", text,
         json_type_name(root));
  }
  Jobs jobs;
  for (const auto& [job, value] : root.items()) jobs.emplace_back(job, tasks_of(value, job));
  return ClusterSpec(std::move(jobs));
}

std::vector<std::string> ClusterSpec::jobs() const {
  std::vector<std::string> names;
  for (const auto& [job, tasks] : jobs_) names.push_back(job);
  return names;
}

const ClusterSpec::Tasks* ClusterSpec::find(std::string_view job) const {
  const auto found =
      std::find_if(jobs_.begin(), jobs_.end(), [job](const auto& entry) { return entry.first == job; });
  return found == jobs_.end() ? nullptr : &found->second;
}

const ClusterSpec::Tasks& ClusterSpec::tasks(std::string_view job) const {
  const Tasks* tasks = find(job);
  if (tasks == nullptr) {
    fail(ErrorKind::InvalidArgument, "cluster: there is no job '{}'; known jobs: {}{}", job,
         empty() ? "none" : fmt::format("{}", fmt::join(jobs(), ", ")), did_you_mean(job, jobs()));
  }
  return *tasks;
}

std::vector<int> ClusterSpec::task_indices(std::string_view job) const {
  std::vector<int> indices;
  for (const auto& [index, address] : tasks(job)) indices.push_back(index);
  return indices;
}

const std::string& ClusterSpec::address(std::string_view job, int index) const {
  const Tasks& all = tasks(job);
  const auto found = all.find(index);
  if (found == all.end()) {
    fail(ErrorKind::InvalidArgument, "cluster: job '{}' has no task {}; it has {}", job, index,
         is_dense(all) ? fmt::format("tasks 0 to {}", all.size() - 1)
                       : fmt::format("{}", fmt::join(task_indices(job), ", ")));
  }
  return found->second;
}

ClusterSpec ClusterSpec::without(std::string_view job) const {
  ClusterSpec rest = *this;
  std::erase_if(rest.jobs_, [job](const auto& entry) { return entry.first == job; });
  return rest;
}

std::string ClusterSpec::to_string() const {
  std::vector<std::string> pieces;
  for (const auto& [job, tasks] : jobs_) {
    if (!is_dense(tasks)) return to_json();
    std::vector<std::string> addresses;
    for (const auto& [index, address] : tasks) addresses.push_back(address);
    pieces.push_back(fmt::format("{}|{}", job, fmt::join(addresses, ";")));
  }
  return fmt::format("{}", fmt::join(pieces, ","));
}

std::string ClusterSpec::to_json() const {
  Json root = Json::object();
  for (const auto& [job, tasks] : jobs_) {
    Json value = is_dense(tasks) ? Json::array() : Json::object();
    for (const auto& [index, address] : tasks) {
      if (value.is_array()) {
        value.push_back(address);
      } else {
        value[std::to_string(index)] = address;
      }
    }
    root[job] = std::move(value);
  }
  return root.dump();
}

}  // namespace tutti

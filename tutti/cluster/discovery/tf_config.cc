#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <climits>
#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/text.h"
#include "tutti/cluster/discovery/discovery.h"
#include "tutti/cluster/roles.h"

namespace tutti::discovery {
namespace {

constexpr const char* kTfConfig = "TF_CONFIG";
// The keys that TensorFlow and the orchestrators that start it write.
const std::set<std::string> kKnownKeys = {"cluster",   "task",    "environment",    "job",
                                          "model_dir", "service", "session_master", "eval_session_master",
                                          "rpc_layer"};
// The jobs that a task without a cluster may have.
const std::vector<std::string> kJobsAlone = {"worker", "chief", "master", "evaluator"};

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) {
  fail(ErrorKind::InvalidArgument, "{}: {}", kTfConfig, fmt::format(text, std::forward<Args>(args)...));
}

// Returns the object under `key`, or an empty one if there is none.
Json object_at(const Json& root, const char* key) {
  const auto found = root.find(key);
  if (found == root.end() || found->is_null()) return Json::object();
  if (!found->is_object())
    refuse("\"{}\" is {}; expected an object: {}", key, json_type_name(*found), found->dump());
  return *found;
}

ClusterSpec cluster_in(const Json& root) {
  try {
    return ClusterSpec::from_json(object_at(root, "cluster").dump());
  } catch (const Error& error) {
    refuse("{}", error.what());
  }
}

// An unknown key may be a misspelt form of a missing one.
void require_known_keys(const Json& root, const char* fact) {
  for (const auto& [key, value] : root.items()) {
    if (kKnownKeys.contains(key)) continue;
    refuse("{}, but an unknown key \"{}\"{}", fact, key,
           did_you_mean(key, std::vector<std::string>{"cluster", "task"}));
  }
}

int index_in(const Json& task) {
  const auto found = task.find("index");
  if (found == task.end()) refuse("\"task\" has no \"index\": {}", task.dump());
  // Some operators write the index as a string.
  const auto index = parse_int(found->is_string() ? found->get<std::string>() : found->dump());
  if (!index || *index < 0 || *index > INT_MAX) refuse("\"index\" {} is not a task index", found->dump());
  return static_cast<int>(*index);
}

Task task_in(const Json& root) {
  const Json task = object_at(root, "task");
  const auto type = task.find("type");
  if (type == task.end()) {
    require_known_keys(root, "there is a \"cluster\"");
    refuse("there is a \"cluster\", but \"task\" has no \"type\": {}", task.dump());
  }
  if (!type->is_string()) refuse("\"type\" {} is not a job name", type->dump());
  return {.job = type->get<std::string>(), .index = index_in(task)};
}

void check_chief(const ClusterSpec& cluster) {
  if (cluster.has_job("chief") && cluster.has_job("master")) {
    refuse(
        "\"cluster\" has both a chief and a master, which is the older name of the chief: keep one of them");
  }
  for (const char* job : {"chief", "master"}) {
    if (cluster.has_job(job) && cluster.num_tasks(job) != 1) {
      refuse("\"cluster\" has {} tasks in the job '{}', but there can be only one", cluster.num_tasks(job),
             job);
    }
  }
}

// Without a cluster there is only one process. If the cluster is missing only because a key or a job is
// misspelt, this process would train alone although it is one of several.
std::optional<Identity> alone(const Json& root) {
  require_known_keys(root, "there is no \"cluster\"");
  if (object_at(root, "task").empty()) return std::nullopt;
  const Task task = task_in(root);
  if (task.job == "evaluator") return identity_in(ClusterSpec(), task, kTfConfig);
  if (task.index != 0 || is_server_job(task.job)) {
    refuse("this is task {}, but there is no \"cluster\" with the addresses of the other tasks",
           task.short_name());
  }
  if (std::find(kJobsAlone.begin(), kJobsAlone.end(), task.job) == kJobsAlone.end())
    refuse("there is no \"cluster\" with a job '{}'{}", task.job, did_you_mean(task.job, kJobsAlone));
  Identity identity;
  identity.task = task;
  identity.source = kTfConfig;
  return identity;
}

}  // namespace

std::optional<Identity> from_tf_config(const std::string& text) {
  if (text.empty()) return std::nullopt;
  const Json root = parse_json(text, kTfConfig);
  if (!root.is_object()) refuse("is {}; expected an object: {}", json_type_name(root), text);
  const ClusterSpec cluster = cluster_in(root);
  if (cluster.empty()) return alone(root);
  check_chief(cluster);
  try {
    return identity_in(cluster, task_in(root), kTfConfig);
  } catch (const Error& error) {
    if (std::string_view(error.what()).starts_with(kTfConfig)) throw;
    refuse("{}", error.what());
  }
}

}  // namespace tutti::discovery

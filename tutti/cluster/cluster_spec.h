#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tutti {

// The tasks of a cluster: the names of the jobs, and per job the addresses by task index. A value type; may
// be empty. All errors are InvalidArgument and quote the invalid part.
//   job      [A-Za-z][A-Za-z0-9_]*, unique, with at least one task
//   address  HOST:PORT or [IPv6]:PORT, unique; port 0 means that the task chooses its port, and may repeat
// Indices may have gaps if a task needs to know only some of its peers.
class ClusterSpec {
 public:
  using Tasks = std::map<int, std::string>;  // address by index
  using Jobs = std::vector<std::pair<std::string, Tasks>>;

  ClusterSpec() = default;
  explicit ClusterSpec(Jobs jobs);

  // Calls from_json() if the first character is '{', else from_text().
  static ClusterSpec parse(std::string_view text);
  // "ps|h:2222,worker|h:2223;h:2224".
  static ClusterSpec from_text(std::string_view text);
  // Parses {"ps": ["h:2222"], "worker": {"1": "h:2224"}}: a list of all tasks, or an object with some of
  // them.
  static ClusterSpec from_json(std::string_view text);

  bool empty() const { return jobs_.empty(); }
  // Returns the names in the order of the specification.
  std::vector<std::string> jobs() const;
  bool has_job(std::string_view job) const { return find(job) != nullptr; }

  // Throws an error that lists the known ones if the job or the index is unknown.
  int num_tasks(std::string_view job) const { return static_cast<int>(tasks(job).size()); }
  std::vector<int> task_indices(std::string_view job) const;
  const std::string& address(std::string_view job, int index) const;
  const Tasks& tasks(std::string_view job) const;

  // Returns a copy without that job, which need not exist.
  ClusterSpec without(std::string_view job) const;

  // Returns text that parse() reads back, or JSON if indices have gaps, which the text format cannot express.
  std::string to_string() const;
  std::string to_json() const;

  bool operator==(const ClusterSpec&) const = default;

 private:
  const Tasks* find(std::string_view job) const;

  Jobs jobs_;
};

}  // namespace tutti

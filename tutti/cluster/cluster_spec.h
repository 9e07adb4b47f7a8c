#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tutti {

// Which tasks there are and where: job names, and per job the addresses by task index. A value; may be empty.
// Every error is an InvalidArgument that quotes the bad piece.
//   job      [A-Za-z][A-Za-z0-9_]*, each once, with one task or more
//   address  HOST:PORT or [IPv6]:PORT, each once; port 0 is one that the task chooses later, and may repeat
// Indices may have gaps where a task needs to know some of its peers only.
class ClusterSpec {
 public:
  using Tasks = std::map<int, std::string>;  // address by index
  using Jobs = std::vector<std::pair<std::string, Tasks>>;

  ClusterSpec() = default;
  explicit ClusterSpec(Jobs jobs);

  // Either of the two below: JSON where the first character is '{'.
  static ClusterSpec parse(std::string_view text);
  // "ps|h:2222,worker|h:2223;h:2224".
  static ClusterSpec from_text(std::string_view text);
  // {"ps": ["h:2222"], "worker": {"1": "h:2224"}}: a list of all, or an object of some.
  static ClusterSpec from_json(std::string_view text);

  bool empty() const { return jobs_.empty(); }
  // In the order in which they were named.
  std::vector<std::string> jobs() const;
  bool has_job(std::string_view job) const { return find(job) != nullptr; }

  // An unknown job or index is an error that lists those that are there.
  int num_tasks(std::string_view job) const { return static_cast<int>(tasks(job).size()); }
  std::vector<int> task_indices(std::string_view job) const;
  const std::string& address(std::string_view job, int index) const;
  const Tasks& tasks(std::string_view job) const;

  // The same without one job, if it is there.
  ClusterSpec without(std::string_view job) const;

  // What parse() reads back: the text, or JSON where indices have gaps, which the text has no words for.
  std::string to_string() const;
  std::string to_json() const;

  bool operator==(const ClusterSpec&) const = default;

 private:
  const Tasks* find(std::string_view job) const;

  Jobs jobs_;
};

}  // namespace tutti

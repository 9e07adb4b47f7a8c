#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::discovery {

// Expands Slurm's short form of a list of host names: "node[01-03,7],gpu[1-2]x" gives node01, node02, node03,
// node7, gpu1x, gpu2x. Numbers keep the leading zeros of the first in the range. If a name has several
// brackets, the last one varies fastest. Throws an InvalidArgument that quotes the invalid part, also for a
// list of more than a million hosts.
std::vector<std::string> expand_host_list(std::string_view text);

// `nodes` consecutive nodes with `tasks` tasks each.
struct TasksPerNode {
  int tasks = 0;
  int nodes = 1;

  bool operator==(const TasksPerNode&) const = default;
};

// Parses "2(x3),1": three nodes with two tasks, then one node with one. Returns nullopt for invalid text.
std::optional<std::vector<TasksPerNode>> parse_tasks_per_node(std::string_view text);

}  // namespace tutti::discovery

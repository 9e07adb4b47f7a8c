#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::discovery {

// Slurm's short form of many host names, in order: "node[01-03,7],gpu[1-2]x" is node01, node02, node03,
// node7, gpu1x, gpu2x. Numbers keep the zeros of the range's first; a name may have several brackets, the
// last counting fastest. InvalidArgument that quotes the bad piece, also for a list that names more than a
// million hosts.
std::vector<std::string> expand_host_list(std::string_view text);

// `nodes` nodes in a row with `tasks` tasks each.
struct TasksPerNode {
  int tasks = 0;
  int nodes = 1;

  bool operator==(const TasksPerNode&) const = default;
};

// "2(x3),1": three nodes with two tasks, then one with one. Nothing where the text is no such list.
std::optional<std::vector<TasksPerNode>> parse_tasks_per_node(std::string_view text);

}  // namespace tutti::discovery

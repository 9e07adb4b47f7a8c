#include "tutti/lanes/lane_tree.h"

namespace tutti {
namespace {

// A memory for a tree whose lanes have no values, since only the places of its sums are asked for.
struct NoMemory {
  struct Values {};

  static Values own() { return {}; }
  static Values room(size_t) { return {}; }
  static bool is_own(const Values&) { return true; }
  static void copy(const Values&, const Values&) {}
  static void add(const Values&, const Values&) {}
};

}  // namespace

std::vector<comm::TreeNode> subtrees_of(const LaneRange& range, int64_t lanes) {
  LaneTree<NoMemory> tree({}, range, lanes);
  for (int64_t lane = range.begin; lane < range.end; ++lane) tree.skip();
  std::vector<comm::TreeNode> places;
  for (const auto& subtree : tree.finish()) places.push_back(subtree.place);
  return places;
}

}  // namespace tutti

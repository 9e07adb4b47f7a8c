#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/simulation/world.h"

namespace tutti::simulation {

// Knows which changes of a folder, and of all that is in it, are safe on a device. Each change of names and
// bytes is told after it was made in the real folder, which shows what processes see; a change is safe on the
// device only after its file or folder was synced. When the power fails, a folder has all its changes of
// names up to a moment that is drawn, at the latest what was synced last; a file has any of its writes, also
// in parts. A change in two folders (a rename) is in both or in none. Not thread-safe.
class Disk {
 public:
  // `folder` is empty.
  explicit Disk(std::string folder);
  ~Disk();
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;

  // Returns true if this path is in the folder, or is the folder.
  bool has(const std::string& path) const;
  // The path that an open file or folder of this disk has now; "" for other descriptors, and if it has none
  // any more.
  std::string path_of(int descriptor) const;

  void opened(const std::string& path, int flags, int descriptor);
  void closed(int descriptor) { open_.erase(descriptor); }
  void wrote(int descriptor, std::span<const std::byte> bytes);
  void wrote_at(int descriptor, uint64_t offset, std::span<const std::byte> bytes);
  void truncated(int descriptor, uint64_t bytes);
  void synced(int descriptor);
  void made_folder(const std::string& path);
  void made_link(const std::string& path, const std::string& target);
  void removed(const std::string& path);
  void renamed(const std::string& from, const std::string& to);
  void exchanged(const std::string& a, const std::string& b);

  // No process runs any more. The folder then has what the device had.
  void lose_power(Random& random);

 private:
  struct Node;
  struct Place;
  struct Change;

  Place place_of(const std::string& path) const;
  std::shared_ptr<Node> node_at(const std::string& path) const;
  void change(std::vector<Place> places, const std::vector<std::shared_ptr<Node>>& nodes);
  void sync_names(const Node* folder);
  std::vector<bool> drawn_changes(Random& random) const;
  void keep(const std::vector<bool>& kept);
  static void write(Node& node, uint64_t offset, std::span<const std::byte> bytes);

  const std::string folder_;
  std::shared_ptr<Node> root_;
  std::vector<Change> changes_;                // of names, that are not safe yet
  std::map<int, std::shared_ptr<Node>> open_;  // by descriptor
};

}  // namespace tutti::simulation

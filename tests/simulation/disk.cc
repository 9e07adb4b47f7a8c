#include "tests/simulation/disk.h"

#include <algorithm>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <set>
#include <utility>

#include "tutti/base/check.h"
#include "tutti/base/text.h"

namespace tutti::simulation {
namespace {

namespace fs = std::filesystem;

using Bytes = std::vector<std::byte>;

void write_into(Bytes& all, uint64_t offset, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  all.resize(std::max<size_t>(all.size(), offset + bytes.size()));
  std::memcpy(all.data() + offset, bytes.data(), bytes.size());
}

}  // namespace

struct Disk::Node {
  enum class Kind { Folder, File, Link };
  using Names = std::map<std::string, std::shared_ptr<Node>>;
  // A file's bytes at an offset, or its new size if there are none.
  struct Write {
    uint64_t offset = 0;
    Bytes bytes;
  };

  Kind kind = Kind::File;
  std::string target;  // of a link
  // As processes see it, and as the device has it.
  Names names;
  Names safe_names;
  Bytes bytes;
  Bytes safe_bytes;
  std::vector<Write> writes;  // that are not safe yet
  uint64_t offset = 0;        // of the next write: one process at a time writes a file

  // The path that a node has below this one, whose path is known; "" if it has no name any more.
  std::string path_of(const Node* node, const std::string& own) const;
  // Loses what is not safe, here and below, except for writes that the device has made by chance.
  void lose_power(Random& random);
  // Makes it in the real folder.
  void make(const std::string& path) const;
};

// A name in a folder.
struct Disk::Place {
  std::shared_ptr<Node> folder;
  std::string name;
};

// Each place has the node from now on, or nothing.
struct Disk::Change {
  std::vector<Place> places;
  std::vector<std::shared_ptr<Node>> nodes;
};

std::string Disk::Node::path_of(const Node* node, const std::string& own) const {
  if (node == this) return own;
  for (const auto& [name, below] : names) {
    if (std::string path = below->path_of(node, own + "/" + name); !path.empty()) return path;
  }
  return "";
}

void Disk::Node::lose_power(Random& random) {
  for (const Write& write : std::exchange(writes, {})) {
    constexpr double kWritten = 0.5;
    constexpr double kTorn = 0.3;
    if (!random.chance(kWritten)) continue;
    if (write.bytes.empty()) safe_bytes.resize(write.offset);
    const auto most = static_cast<int64_t>(write.bytes.size());
    const auto part = random.chance(kTorn) ? static_cast<size_t>(random.draw(0, most)) : write.bytes.size();
    write_into(safe_bytes, write.offset, std::span(write.bytes).first(part));
  }
  bytes = safe_bytes;
  names = safe_names;
  for (const auto& [name, node] : names) node->lose_power(random);
}

void Disk::Node::make(const std::string& path) const {
  if (kind == Kind::Link) fs::create_symlink(target, path);
  if (kind == Kind::File)
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (kind == Kind::Folder) fs::create_directories(path);
  for (const auto& [name, node] : names) node->make(path + "/" + name);
}

Disk::Disk(std::string folder) : folder_(std::move(folder)), root_(std::make_shared<Node>()) {
  root_->kind = Node::Kind::Folder;
}

Disk::~Disk() = default;

bool Disk::has(const std::string& path) const { return path == folder_ || path.starts_with(folder_ + "/"); }

std::string Disk::path_of(int descriptor) const {
  const auto found = open_.find(descriptor);
  return found == open_.end() ? "" : root_->path_of(found->second.get(), folder_);
}

Disk::Place Disk::place_of(const std::string& path) const {
  Place place{.folder = nullptr, .name = ""};
  std::shared_ptr<Node> at = root_;
  for (const std::string& name : split(path.substr(folder_.size()), '/')) {
    if (name.empty()) continue;
    TUTTI_CHECK(at != nullptr, "a name in a folder that is not there");
    place = {.folder = at, .name = name};
    const auto found = at->names.find(name);
    at = found == at->names.end() ? nullptr : found->second;
  }
  return place;
}

std::shared_ptr<Disk::Node> Disk::node_at(const std::string& path) const {
  const Place place = place_of(path);
  if (place.folder == nullptr) return root_;
  const auto found = place.folder->names.find(place.name);
  return found == place.folder->names.end() ? nullptr : found->second;
}

void Disk::change(std::vector<Place> places, const std::vector<std::shared_ptr<Node>>& nodes) {
  for (size_t i = 0; i < places.size(); ++i) {
    if (nodes[i] == nullptr)
      places[i].folder->names.erase(places[i].name);
    else
      places[i].folder->names[places[i].name] = nodes[i];
  }
  changes_.push_back({std::move(places), nodes});
}

void Disk::opened(const std::string& path, int flags, int descriptor) {
  std::shared_ptr<Node> node = node_at(path);
  if (node == nullptr) {
    node = std::make_shared<Node>();
    change({place_of(path)}, {node});
  }
  open_[descriptor] = node;
  node->offset = 0;
  if ((flags & O_TRUNC) != 0) truncated(descriptor, 0);
}

void Disk::write(Node& node, uint64_t offset, std::span<const std::byte> bytes) {
  write_into(node.bytes, offset, bytes);
  node.writes.push_back({.offset = offset, .bytes = {bytes.begin(), bytes.end()}});
}

void Disk::wrote(int descriptor, std::span<const std::byte> bytes) {
  Node& node = *open_.at(descriptor);
  write(node, node.offset, bytes);
  node.offset += bytes.size();
}

void Disk::wrote_at(int descriptor, uint64_t offset, std::span<const std::byte> bytes) {
  write(*open_.at(descriptor), offset, bytes);
}

void Disk::truncated(int descriptor, uint64_t bytes) {
  Node& node = *open_.at(descriptor);
  if (node.bytes.size() == bytes) return;
  node.bytes.resize(bytes);
  node.writes.push_back({.offset = bytes, .bytes = {}});
}

void Disk::synced(int descriptor) {
  const std::shared_ptr<Node> node = open_.at(descriptor);
  if (node->kind == Node::Kind::Folder) return sync_names(node.get());
  node->safe_bytes = node->bytes;
  node->writes.clear();
}

void Disk::made_folder(const std::string& path) {
  const auto node = std::make_shared<Node>();
  node->kind = Node::Kind::Folder;
  change({place_of(path)}, {node});
}

void Disk::made_link(const std::string& path, const std::string& target) {
  const auto node = std::make_shared<Node>();
  node->kind = Node::Kind::Link;
  node->target = target;
  change({place_of(path)}, {node});
}

void Disk::removed(const std::string& path) { change({place_of(path)}, {nullptr}); }

void Disk::renamed(const std::string& from, const std::string& to) {
  const auto node = node_at(from);
  change({place_of(from), place_of(to)}, {nullptr, node});
}

void Disk::exchanged(const std::string& a, const std::string& b) {
  const auto at_a = node_at(a);
  const auto at_b = node_at(b);
  change({place_of(a), place_of(b)}, {at_b, at_a});
}

// All changes in this folder become safe, with those in other folders that come before one of them.
void Disk::sync_names(const Node* folder) {
  std::vector<bool> kept(changes_.size());
  std::set<const Node*> folders = {folder};
  for (size_t i = changes_.size(); i-- > 0;) {
    for (const Place& place : changes_[i].places) kept[i] = kept[i] || folders.contains(place.folder.get());
    if (!kept[i]) continue;
    for (const Place& place : changes_[i].places) folders.insert(place.folder.get());
  }
  keep(kept);
}

// Draws a moment for each folder. A change is kept if it comes before the moment of each folder that it
// concerns.
std::vector<bool> Disk::drawn_changes(Random& random) const {
  std::map<const Node*, size_t> moments;
  std::vector<const Node*> folders;  // in an order that is always the same
  for (const Change& change : changes_) {
    for (const Place& place : change.places) {
      if (moments.insert({place.folder.get(), 0}).second) folders.push_back(place.folder.get());
    }
  }
  for (const Node* folder : folders)
    moments[folder] = static_cast<size_t>(random.draw(0, static_cast<int64_t>(changes_.size())));
  std::vector<bool> kept(changes_.size());
  for (bool shrinks = true; shrinks;) {
    shrinks = false;
    for (size_t i = 0; i < changes_.size(); ++i) {
      kept[i] = std::all_of(changes_[i].places.begin(), changes_[i].places.end(),
                            [&](const Place& place) { return i < moments[place.folder.get()]; });
      if (kept[i]) continue;
      for (const Place& place : changes_[i].places) {
        size_t& moment = moments[place.folder.get()];
        shrinks = shrinks || i < moment;
        moment = std::min(moment, i);
      }
    }
  }
  return kept;
}

void Disk::keep(const std::vector<bool>& kept) {
  std::vector<Change> rest;
  for (size_t i = 0; i < changes_.size(); ++i) {
    if (!kept[i]) {
      rest.push_back(std::move(changes_[i]));
      continue;
    }
    for (size_t place = 0; place < changes_[i].places.size(); ++place) {
      const auto& [folder, name] = changes_[i].places[place];
      if (changes_[i].nodes[place] == nullptr)
        folder->safe_names.erase(name);
      else
        folder->safe_names[name] = changes_[i].nodes[place];
    }
  }
  changes_ = std::move(rest);
}

void Disk::lose_power(Random& random) {
  keep(drawn_changes(random));
  changes_.clear();
  open_.clear();
  root_->lose_power(random);
  for (const auto& entry : fs::directory_iterator(folder_)) fs::remove_all(entry.path());
  root_->make(folder_);
}

}  // namespace tutti::simulation

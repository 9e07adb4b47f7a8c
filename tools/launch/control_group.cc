#include "tools/launch/control_group.h"

#include <chrono>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include <fmt/core.h>

#include "tutti/base/text.h"

namespace tutti {
namespace {

// Returns the folder of the control group of this process; "" if there is none of version 2.
std::string own_group() {
  std::string path;  // as seen from the root of the hierarchy
  for (const std::string& line : split(read_system_file("/proc/self/cgroup"), '\n')) {
    if (line.starts_with("0::")) path = line.substr(3);
  }
  if (path.empty()) return "";
  for (const std::string& line : split(read_system_file("/proc/self/mountinfo"), '\n')) {
    // "41 31 0:38 ROOT MOUNT_POINT rw,relatime ... - cgroup2 cgroup2 rw"
    if (line.find(" - cgroup2 ") == std::string::npos) continue;
    const std::vector<std::string> words = split(line, ' ');
    const std::string root = words[3] == "/" ? "" : words[3];
    if (path.starts_with(root)) return words[4] + path.substr(root.size());
  }
  return "";
}

}  // namespace

std::optional<ControlGroup> ControlGroup::make() {
  const std::string parent = own_group();
  // Only a user who may write to the common parent of both groups may move a process.
  if (parent.empty() || access((parent + "/cgroup.procs").c_str(), W_OK) != 0) return std::nullopt;
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  const std::string path = fmt::format("{}/tutti-{}-{}", parent, getpid(), now);
  if (mkdir(path.c_str(), 0755) != 0) return std::nullopt;
  const bool usable = access((path + "/cgroup.kill").c_str(), W_OK) == 0 &&
                      read_system_file(path + "/cgroup.type") == "domain\n";
  if (usable) return ControlGroup(path);
  rmdir(path.c_str());
  return std::nullopt;
}

FileDescriptor ControlGroup::entrance() const {
  return FileDescriptor(open((path_ + "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC));
}

void ControlGroup::kill_all() const {
  const FileDescriptor file(open((path_ + "/cgroup.kill").c_str(), O_WRONLY | O_CLOEXEC));
  static_cast<void>(write(file.get(), "1", 1));
}

bool ControlGroup::remove() const {
  namespace fs = std::filesystem;
  std::error_code error;
  for (fs::directory_iterator entry(path_, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->is_directory(error)) ControlGroup(entry->path()).remove();
  }
  return rmdir(path_.c_str()) == 0 || errno == ENOENT;
}

}  // namespace tutti

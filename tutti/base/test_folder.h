#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <unistd.h>

#include "tutti/base/error.h"

namespace tutti {

// For tests: a fresh folder that is removed with everything in it.
class TestFolder {
 public:
  // In memory (where the system has a place for that) a test that writes very often does not wait for the
  // disk.
  enum class Place { Disk, Memory };
  explicit TestFolder(Place place = Place::Disk) : path_(parent_of(place) + "/tutti-test-XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr)
      fail(ErrorKind::InvalidArgument, "no folder for a test: {}", path_);
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  static std::string parent() {
    const bool memory = ::access("/dev/shm", W_OK | X_OK) == 0;
    return memory ? "/dev/shm" : std::filesystem::temp_directory_path().string();
  }

  std::string path_;
};

}  // namespace tutti

#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>

#include "tutti/base/error.h"

namespace tutti {

// For tests: a new folder that is removed with all its contents. It is in memory if the system offers that:
// syncing files thousands of times would take minutes on a disk.
class TestFolder {
 public:
  TestFolder() : path_(parent() + "/tutti-test-XXXXXX") {
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

  // Writes a file into the folder and returns its path.
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(*this / name, std::ios::binary) << bytes;
    return *this / name;
  }

 private:
  static std::string parent() {
    const bool memory = ::access("/dev/shm", W_OK | X_OK) == 0;
    return memory ? "/dev/shm" : std::filesystem::temp_directory_path().string();
  }

  std::string path_;
};

}  // namespace tutti

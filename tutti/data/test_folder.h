#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tutti/base/error.h"

namespace tutti::data {

// For tests: a fresh folder that goes away with this object.
class TestFolder {
 public:
  TestFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "tutti-data-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) fail(ErrorKind::Overloaded, "no folder for tests at {}", pattern);
    path_ = pattern;
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  std::string path() const { return path_.string(); }

  // Writes a file into the folder and returns its path.
  std::string write(const std::string& name, const std::string& bytes) const {
    const auto path = (path_ / name).string();
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace tutti::data

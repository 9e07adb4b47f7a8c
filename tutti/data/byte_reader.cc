#include "tutti/data/byte_reader.h"

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "tutti/base/error.h"
#include "tutti/data/gzip.h"

namespace tutti::data {
namespace {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

class PlainReader final : public ByteReader {
 public:
  explicit PlainReader(const std::string& path) : path_(path) {
    std::error_code missing;
    if (!std::filesystem::is_regular_file(path, missing)) {
      fail(ErrorKind::InvalidArgument, "{}: {}", path,
           missing ? missing.message() : std::string("not a regular file"));
    }
    file_.reset(std::fopen(path.c_str(), "rb"));
    if (file_ == nullptr) fail_errno(errno, "opening " + path);
    size_ = std::filesystem::file_size(path);
  }

  size_t read(char* to, size_t size) override {
    const size_t count = std::fread(to, 1, size, file_.get());
    if (count < size && std::ferror(file_.get()) != 0) {
      fail(ErrorKind::DataLoss, "{}: reading the file failed: {}", path_, errno_text(errno));
    }
    return count;
  }

  uint64_t most_bytes() const override { return size_; }

  bool starts_with_gzip_magic() {
    unsigned char magic[2] = {0, 0};
    const size_t count = read(reinterpret_cast<char*>(magic), sizeof magic);
    std::rewind(file_.get());
    return count == 2 && magic[0] == 0x1f && magic[1] == 0x8b;
  }

 private:
  const std::string path_;
  std::unique_ptr<std::FILE, CloseFile> file_;
  uint64_t size_ = 0;
};

}  // namespace

std::unique_ptr<ByteReader> open_bytes(const std::string& path) {
  auto plain = std::make_unique<PlainReader>(path);
  if (!plain->starts_with_gzip_magic()) return plain;
  return gunzip(std::move(plain), path);
}

}  // namespace tutti::data

#include "tutti/base/file.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "tutti/base/crc32c.h"
#include "tutti/base/error.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

void sync_file(const FileDescriptor& fd, const std::string& path) {
  if (::fsync(fd.get()) != 0) fail_errno(errno, fmt::format("syncing {} to the disk", path));
}

// Removes the temporary file where writing it went wrong.
class Removal {
 public:
  explicit Removal(std::string path) : path_(std::move(path)) {}
  ~Removal() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  Removal(const Removal&) = delete;
  Removal& operator=(const Removal&) = delete;
  void cancel() { path_.clear(); }

 private:
  std::string path_;
};

}  // namespace

FileDescriptor::FileDescriptor(const std::string& path, int flags) {
  constexpr mode_t kReadWriteForAll = 0666;
  do {
    fd_ = ::open(path.c_str(), flags | O_CLOEXEC, kReadWriteForAll);
  } while (fd_ < 0 && errno == EINTR);
  if (fd_ < 0) fail_errno(errno, fmt::format("opening {}", path));
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

void FileDescriptor::close(const std::string& path) {
  // Linux has let go of the descriptor even where it reports an error, EINTR included.
  const int fd = std::exchange(fd_, -1);
  if (fd >= 0 && ::close(fd) != 0 && errno != EINTR) fail_errno(errno, fmt::format("closing {}", path));
}

FileWriter::FileWriter(std::string path) : path_(std::move(path)), fd_(path_, O_WRONLY | O_CREAT | O_TRUNC) {}

void FileWriter::write(std::span<const std::byte> bytes) {
  auto rest = bytes;
  while (!rest.empty()) {
    const ssize_t taken = ::write(fd_.get(), rest.data(), rest.size());
    if (taken < 0 && errno == EINTR) continue;
    if (taken < 0) fail_errno(errno, fmt::format("writing {} at byte {}", path_, bytes_));
    checksum_ = crc32c(rest.first(static_cast<size_t>(taken)), checksum_);
    bytes_ += static_cast<uint64_t>(taken);
    rest = rest.subspan(static_cast<size_t>(taken));
  }
}

void FileWriter::write(std::string_view text) { write(as_bytes(text)); }

void FileWriter::finish() {
  sync_file(fd_, path_);
  fd_.close(path_);
}

// O_NONBLOCK, so that a pipe in the place of a file is an error and no endless wait.
FileReader::FileReader(std::string path) : path_(std::move(path)), fd_(path_, O_RDONLY | O_NONBLOCK) {
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) fail_errno(errno, fmt::format("asking for the size of {}", path_));
  if (!S_ISREG(status.st_mode)) fail(ErrorKind::InvalidArgument, "{} is not a regular file", path_);
  size_ = static_cast<uint64_t>(status.st_size);
}

void FileReader::read_at(uint64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t got = ::pread(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno(errno, fmt::format("reading {} at byte {}", path_, offset));
    if (got == 0) {
      fail(ErrorKind::DataLoss, "{}: ends at byte {}, {} bytes too early", path_, offset, bytes.size());
    }
    offset += static_cast<uint64_t>(got);
    bytes = bytes.subspan(static_cast<size_t>(got));
  }
}

void write_at(const FileDescriptor& fd, const std::string& path, uint64_t offset,
              std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t taken = ::pwrite(fd.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (taken < 0 && errno == EINTR) continue;
    if (taken < 0) fail_errno(errno, fmt::format("writing {} at byte {}", path, offset));
    offset += static_cast<uint64_t>(taken);
    bytes = bytes.subspan(static_cast<size_t>(taken));
  }
}

std::string read_file(const std::string& path) {
  const FileReader file(path);
  std::string text(file.size(), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

uint32_t checksum_of_file(const FileReader& file) {
  constexpr uint64_t kPiece = 1 << 20;
  std::vector<std::byte> buffer(std::min(file.size(), kPiece));
  uint32_t checksum = 0;
  for (uint64_t at = 0; at < file.size(); at += kPiece) {
    const auto piece = std::span(buffer).first(std::min(file.size() - at, kPiece));
    file.read_at(at, piece);
    checksum = crc32c(piece, checksum);
  }
  return checksum;
}

void replace_file(const std::string& path, std::string_view text) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    // A pipe, /dev/stdout, /dev/null: must stay what it is.
    FileWriter(path).write(text);
    return;
  }
  const std::string target =
      fs::is_symlink(path, ignored) ? fs::weakly_canonical(path, ignored).string() : path;
  const std::string temporary = fmt::format("{}.tmp.{}", target, ::getpid());
  FileWriter writer(temporary);
  Removal removal(temporary);
  writer.write(text);
  writer.finish();
  rename_path(temporary, target);
  removal.cancel();
  sync_directory(fs::path(target).parent_path().string());
}

bool path_exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

void make_directories(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail_errno(error.value(), fmt::format("making the directory {}", path));
  if (!fs::is_directory(path, error)) {
    fail(ErrorKind::InvalidArgument, "{} is not a directory: remove it or choose another", path);
  }
}

void sync_directory(const std::string& path) {
  const std::string folder = path.empty() ? "." : path;
  const FileDescriptor fd(folder, O_RDONLY | O_DIRECTORY);
  // EINVAL: a file system that has no such thing as syncing a directory.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) {
    fail_errno(errno, fmt::format("syncing the directory {} to the disk", folder));
  }
}

void rename_path(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail_errno(errno, fmt::format("renaming {} to {}", from, to));
}

}  // namespace tutti

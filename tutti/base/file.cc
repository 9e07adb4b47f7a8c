#include "tutti/base/file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/base/hashes.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

// Returns what to do if a place cannot be written, or "" for other errors.
std::string_view remedy_of(int error_number) {
  switch (error_number) {
    case EACCES:
    case EPERM:
      return "; choose a place where this user may write, or change its permissions";
    case EROFS:
      return "; choose a place on another file system";
    case ENOTDIR:
    case EEXIST:
      return "; a part of this path is a file and not a folder: choose another place, or remove the file";
    case ENOENT:
      return "; the folder does not exist: make it, or choose another place";
    default:
      return "";
  }
}

// Throws the Error of fail_errno() for an operation that would have written to this path.
[[noreturn]] void fail_to_write(int error_number, std::string_view what) {
  try {
    fail_errno(error_number, what);
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}{}", error.what(), remedy_of(error_number)));
  }
}

// Some file systems cannot sync directories, or nothing at all.
bool cannot_sync(int error) { return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP; }

void sync_file(const FileDescriptor& fd, const std::string& path) {
  if (::fsync(fd.get()) != 0 && !cannot_sync(errno))
    fail_errno(errno, fmt::format("syncing {} to the disk", path));
}

// Removes the temporary file if writing it failed.
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

// Opening a named pipe blocks until a reader opens it, which may never happen. The pipes of /dev/stdout and
// of a shell's >(command) have no name in a file system and are open already.
bool is_named_pipe(const fs::file_status& status, const std::string& path) {
  struct statfs system {};
  return fs::is_fifo(status) && ::statfs(path.c_str(), &system) == 0 && system.f_type != PIPEFS_MAGIC;
}

// Returns true for devices and pipes, which must not be replaced by a file.
bool is_written_in_place(const std::string& path) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (!fs::exists(status) || fs::is_regular_file(status)) return false;
  if (fs::is_directory(status))
    fail(ErrorKind::InvalidArgument, "{} is a directory: name a file in it", path);
  if (is_named_pipe(status, path)) {
    fail(ErrorKind::InvalidArgument,
         "{} is a named pipe, and writing to it would wait for a reader: name a file, or /dev/stdout", path);
  }
  return true;
}

// Makes an empty file with which `path`, whose link leads to `target`, will be replaced. Errors name `path`.
std::string make_temporary(const std::string& path, const std::string& target) {
  std::string temporary = fmt::format("{}.tmp.{}", target, ::getpid());
  constexpr mode_t kReadWriteForAll = 0666;
  const FileDescriptor made(
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kReadWriteForAll));
  if (made.get() < 0) fail_to_write(errno, fmt::format("writing {}", path));
  return temporary;
}

}  // namespace

FileDescriptor::FileDescriptor(const std::string& path, int flags) {
  constexpr mode_t kReadWriteForAll = 0666;
  do {
    fd_ = ::open(path.c_str(), flags | O_CLOEXEC, kReadWriteForAll);
  } while (fd_ < 0 && errno == EINTR);
  if (fd_ >= 0) return;
  const int error = errno;
  const std::string what = fmt::format("opening {}", path.empty() ? "a file without a name" : path);
  (flags & O_CREAT) != 0 ? fail_to_write(error, what) : fail_errno(error, what);
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

void FileDescriptor::close(const std::string& path) {
  // Linux releases the descriptor even if close() reports an error, including EINTR.
  const int fd = std::exchange(fd_, -1);
  if (fd >= 0 && ::close(fd) != 0 && errno != EINTR) fail_errno(errno, fmt::format("closing {}", path));
}

FileWriter::FileWriter(std::string path) : path_(std::move(path)), fd_(path_, O_WRONLY | O_CREAT | O_TRUNC) {}

// Writes in pieces, whose checksum is computed while they are in the processor's cache.
void FileWriter::write(std::span<const std::byte> bytes) {
  constexpr size_t kPiece = 1 << 20;
  auto rest = bytes;
  while (!rest.empty()) {
    const ssize_t taken = ::write(fd_.get(), rest.data(), std::min(rest.size(), kPiece));
    if (taken < 0 && errno == EINTR) continue;
    if (taken < 0) fail_errno(errno, fmt::format("writing {} at byte {}", path_, bytes_));
    checksum_ = crc32c(rest.first(static_cast<size_t>(taken)), checksum_);
    bytes_ += static_cast<uint64_t>(taken);
    rest = rest.subspan(static_cast<size_t>(taken));
    start_writing_back();
  }
}

// Asks the kernel to write cached data to the device now, so that finish() does not have to wait for all of
// it. Errors are ignored: some file systems do not support this.
void FileWriter::start_writing_back() {
  constexpr uint64_t kEvery = 16 << 20;
  if (bytes_ - written_back_ < kEvery) return;
  static_cast<void>(::sync_file_range(fd_.get(), static_cast<off64_t>(written_back_),
                                      static_cast<off64_t>(bytes_ - written_back_), SYNC_FILE_RANGE_WRITE));
  written_back_ = bytes_;
}

void FileWriter::write(std::string_view text) { write(as_bytes(text)); }

void FileWriter::finish() {
  sync_file(fd_, path_);
  fd_.close(path_);
}

// Opens with O_NONBLOCK, so that a pipe at this path leads to an error and not to an endless wait.
FileReader::FileReader(std::string path) : path_(std::move(path)), fd_(path_, O_RDONLY | O_NONBLOCK) {
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) fail_errno(errno, fmt::format("reading the size of {}", path_));
  if (!S_ISREG(status.st_mode)) fail(ErrorKind::InvalidArgument, "{} is not a regular file", path_);
  size_ = static_cast<uint64_t>(status.st_size);
}

void FileReader::read_at(uint64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t got = ::pread(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno(errno, fmt::format("reading {} at byte {}", path_, offset));
    if (got == 0) {
      fail(ErrorKind::DataLoss, "{}: the file ends at byte {}, {} bytes too early", path_, offset,
           bytes.size());
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

void require_descriptors(int count, std::string_view what) {
  std::vector<FileDescriptor> descriptors;
  for (int i = 0; i < count; ++i) {
    descriptors.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (descriptors.back().get() < 0)
      fail_errno(errno, fmt::format("{}: opening {} files (ulimit -n)", what, count));
  }
}

std::string read_system_file(const std::string& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  std::array<char, 4096> piece{};
  for (;;) {
    const ssize_t length = ::read(file.get(), piece.data(), piece.size());
    if (length == 0) return text;
    if (length > 0) text.append(piece.data(), static_cast<size_t>(length));
    if (length < 0 && errno != EINTR) return "";
  }
}

std::string link_target_of(const std::string& path) {
  constexpr int kMostLinks = 40;  // as in Linux
  fs::path target = path;
  std::error_code error;
  for (int links = 0; fs::is_symlink(target, error); ++links) {
    if (links == kMostLinks) fail_errno(ELOOP, fmt::format("following the link {}", path));
    const fs::path next = fs::read_symlink(target, error);
    if (error) fail_errno(error.value(), fmt::format("following the link {}", path));
    target = target.parent_path() / next;
  }
  return target.string();
}

void replace_file(const std::string& path, std::string_view text) {
  if (is_written_in_place(path)) {
    FileWriter(path).write(text);
    return;
  }
  const std::string target = link_target_of(path);
  const std::string temporary = make_temporary(path, target);
  Removal removal(temporary);
  FileWriter writer(temporary);
  writer.write(text);
  writer.finish();
  rename_path(temporary, target);
  removal.cancel();
  sync_directory(fs::path(target).parent_path().string());
}

void require_replaceable(const std::string& path) {
  if (is_written_in_place(path)) {
    const FileDescriptor opens(path, O_WRONLY | O_NOCTTY | O_NONBLOCK);
    return;
  }
  const Removal removal(make_temporary(path, link_target_of(path)));
}

bool path_exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

void make_directories(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail_to_write(error.value(), fmt::format("making the directory {}", path));
  if (!fs::is_directory(path, error)) {
    fail(ErrorKind::InvalidArgument, "{} is not a directory: remove it or choose another", path);
  }
}

void make_folder_for(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  if (!folder.empty() && !path_exists(folder)) make_directories(folder);
}

void sync_directory(const std::string& path) {
  const std::string folder = path.empty() ? "." : path;
  const FileDescriptor fd(folder, O_RDONLY | O_DIRECTORY);
  if (::fsync(fd.get()) != 0 && !cannot_sync(errno))
    fail_errno(errno, fmt::format("syncing the directory {} to the disk", folder));
}

void sync_names_of(const std::string& path) {
  std::error_code ignored;
  for (fs::path folder = fs::absolute(path, ignored); folder.has_relative_path();) {
    folder = folder.parent_path();
    if (::access(folder.c_str(), R_OK) == 0) sync_directory(folder.string());
  }
}

void rename_path(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail_errno(errno, fmt::format("renaming {} to {}", from, to));
}

LockResult try_to_lock(const FileDescriptor& file, const std::string& path) {
  while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno == EWOULDBLOCK) return LockResult::Taken;
    if (errno == ENOLCK || errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL)
      return LockResult::Unsupported;
    fail_errno(errno, "locking " + path);
  }
  return LockResult::Locked;
}

}  // namespace tutti

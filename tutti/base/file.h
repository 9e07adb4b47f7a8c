#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace tutti {

// A file descriptor that closes itself. Every failure below is an Error that names the path: Overloaded if
// the disk is full, DataLoss if the device fails, InvalidArgument if the path cannot be used as requested.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  // Takes ownership of a descriptor opened by pipe2(2), socket(2) or the like; -1 means none.
  explicit FileDescriptor(int fd) : fd_(fd) {}
  // Calls open(2) with O_CLOEXEC added. A new file gets the mode 0666 less the umask.
  FileDescriptor(const std::string& path, int flags);
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;

  int get() const { return fd_; }
  // Closes the descriptor and throws if that fails: some file systems report a full disk only on close.
  void close(const std::string& path);

 private:
  int fd_ = -1;
};

// Throws Overloaded unless this process may have `count` more descriptors open at the same time; `what` is
// their purpose for the message. For libraries that do not report that they have run out of them.
void require_descriptors(int count, std::string_view what);

// Writes a file sequentially. The bytes are safe on the device once finish() has returned.
class FileWriter {
 public:
  // Creates the file, or truncates an existing one.
  explicit FileWriter(std::string path);

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  // Syncs and closes the file. Without this call, the data that was written may be lost.
  void finish();

  const std::string& path() const { return path_; }
  uint64_t bytes() const { return bytes_; }
  // The CRC-32C of everything written so far.
  uint32_t checksum() const { return checksum_; }

 private:
  void start_writing_back();

  std::string path_;
  FileDescriptor fd_;
  uint64_t bytes_ = 0;
  uint64_t written_back_ = 0;  // bytes that the device has been asked to write
  uint32_t checksum_ = 0;
};

// Reads at any offset of a regular file. Thread-safe. Does not map the file: if it shrinks meanwhile or the
// device fails, reading throws DataLoss instead of raising SIGBUS.
class FileReader {
 public:
  explicit FileReader(std::string path);

  void read_at(uint64_t offset, std::span<std::byte> bytes) const;

  const std::string& path() const { return path_; }
  // The size at the time the file was opened.
  uint64_t size() const { return size_; }

 private:
  std::string path_;
  FileDescriptor fd_;
  uint64_t size_ = 0;
};

// Writes all of `bytes` at `offset`; continues if a signal interrupts it.
void write_at(const FileDescriptor& fd, const std::string& path, uint64_t offset,
              std::span<const std::byte> bytes);

std::string read_file(const std::string& path);

// Reads a file of /proc or /sys, whose size is not known in advance. Returns "" if it cannot be read: it may
// belong to another user, or to a process that has ended, even since it was opened.
std::string read_system_file(const std::string& path);

// Returns the path to which a symbolic link leads, whether or not there is a file; any other path as it is.
std::string link_target_of(const std::string& path);

// Replaces the file atomically: a reader of `path` sees either the old text or the new one, even after a
// crash. A device, or a pipe that this process has already open (/dev/stdout), is written to directly; a
// directory or a named pipe is an InvalidArgument.
void replace_file(const std::string& path, std::string_view text);

// Throws the Error that replace_file(path) would throw now, for programs that write the file only after hours
// of work. Leaves no file behind.
void require_replaceable(const std::string& path);

// Returns false also if the path cannot be examined.
bool path_exists(const std::string& path);

// Creates the folder and its parents. Does nothing if it exists already.
void make_directories(const std::string& path);

// Creates the folder in which a file with this path would be.
void make_folder_for(const std::string& path);

// Makes sure that names added to or removed from a folder survive a loss of power.
void sync_directory(const std::string& path);

// Makes the names of a folder and of its parents, as far as they can be read, survive a loss of power.
void sync_names_of(const std::string& path);

// Calls rename(2); an error names both paths.
void rename_path(const std::string& from, const std::string& to);

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// The result of try_to_lock().
enum class LockResult {
  Locked,       // until the descriptor is closed, or the process ends
  Taken,        // another process has it
  Unsupported,  // the file system has no locks
};

// Tries to lock a file for this process alone, by flock(2). `path` is for messages.
LockResult try_to_lock(const FileDescriptor& file, const std::string& path);

}  // namespace tutti

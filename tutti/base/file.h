#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace tutti {

// A file descriptor that closes itself. Every failure below is an Error that names the path: Overloaded where
// the disk is full, DataLoss where the device fails, InvalidArgument where the path cannot be used as asked.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  // Takes over what pipe2(2), socket(2) and the like have opened; -1 for nothing.
  explicit FileDescriptor(int fd) : fd_(fd) {}
  // open(2) with O_CLOEXEC added and, where the file is made, the mode 0666 less the umask.
  FileDescriptor(const std::string& path, int flags);
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;

  int get() const { return fd_; }
  // Closes now and says so where that fails: some file systems report a full disk only here.
  void close(const std::string& path);

 private:
  int fd_ = -1;
};

// Writes a file from its first byte to its last. The bytes are safe on the device once finish() has returned.
class FileWriter {
 public:
  // Makes the file, or empties the one that is there.
  explicit FileWriter(std::string path);

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  // fsync and close. Without it, what has been written may or may not be there.
  void finish();

  const std::string& path() const { return path_; }
  uint64_t bytes() const { return bytes_; }
  // CRC-32C of everything written.
  uint32_t checksum() const { return checksum_; }

 private:
  std::string path_;
  FileDescriptor fd_;
  uint64_t bytes_ = 0;
  uint32_t checksum_ = 0;
};

// Reads anywhere in a regular file. Safe to use from several threads. Not a mapping: a file that shrinks
// meanwhile, or a device that fails, is a DataLoss and no SIGBUS.
class FileReader {
 public:
  explicit FileReader(std::string path);

  void read_at(uint64_t offset, std::span<std::byte> bytes) const;

  const std::string& path() const { return path_; }
  // As it was when the file was opened.
  uint64_t size() const { return size_; }

 private:
  std::string path_;
  FileDescriptor fd_;
  uint64_t size_ = 0;
};

// All of `bytes` at `offset`, again where a signal interrupts.
void write_at(const FileDescriptor& fd, const std::string& path, uint64_t offset,
              std::span<const std::byte> bytes);

std::string read_file(const std::string& path);

// CRC-32C of a whole file.
uint32_t checksum_of_file(const FileReader& file);

// A reader of `path` sees the old text or the new one, also after a crash, never a part.
void replace_file(const std::string& path, std::string_view text);

// False also where the path cannot be looked at.
bool path_exists(const std::string& path);

// Makes the folder and those above it; one that exists is fine.
void make_directories(const std::string& path);

// Makes names that were added to or removed from a folder last through a loss of power.
void sync_directory(const std::string& path);

// rename(2), with both paths in the error.
void rename_path(const std::string& from, const std::string& to);

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace tutti

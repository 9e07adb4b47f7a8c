#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "tutti/base/file.h"

namespace tutti::store {

// The CRC-32 of ZIP archives.
uint32_t crc32(std::span<const std::byte> bytes);

// Reads a ZIP archive whose files are not compressed, such as torch.save() writes. Throws a DataLoss that
// names the archive if anything is wrong, including a checksum, and Unimplemented if a compressed file is
// read. May be read from several threads.
class ZipFile {
 public:
  explicit ZipFile(const std::string& path);

  // The sizes of the files in the archive by name, without the folder that all of them are in.
  const std::map<std::string, uint64_t>& sizes() const { return sizes_; }
  bool has(const std::string& name) const { return sizes_.contains(name); }
  // `bytes` is as long as the file, which is in the archive.
  void read(const std::string& name, std::span<std::byte> bytes) const;

 private:
  struct Entry {
    uint64_t header = 0;  // offset of the header that precedes the bytes
    uint32_t checksum = 0;
    bool is_compressed = false;
  };

  [[noreturn]] void fail_damaged(const std::string& why) const;
  std::string bytes_at(uint64_t offset, uint64_t count) const;
  void read_directory(const std::string& directory, uint64_t count);

  const FileReader file_;
  std::map<std::string, uint64_t> sizes_;
  std::map<std::string, Entry> entries_;
};

}  // namespace tutti::store

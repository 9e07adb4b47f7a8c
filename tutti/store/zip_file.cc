#include "tutti/store/zip_file.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

#include "tutti/base/error.h"

namespace tutti::store {
namespace {

// Offsets are from PKWARE's APPNOTE.TXT, sections 4.3.7 to 4.3.16.
constexpr std::string_view kEndMark = "PK\x05\x06";
constexpr std::string_view kWideEndMark = "PK\x06\x06";
constexpr std::string_view kWideLocatorMark = "PK\x06\x07";
constexpr std::string_view kEntryMark = "PK\x01\x02";
constexpr std::string_view kHeaderMark = "PK\x03\x04";
constexpr uint64_t kEndBytes = 22;
constexpr uint64_t kWideEndBytes = 56;
constexpr uint64_t kLocatorBytes = 20;
constexpr uint64_t kEntryBytes = 46;
constexpr uint64_t kHeaderBytes = 30;
constexpr uint64_t kLongestComment = 0xffff;
// This 32-bit value says that the actual value is in a wide extra field.
constexpr uint64_t kIsWide = 0xffffffff;
constexpr uint64_t kWideField = 1;

// Returns a little-endian number; the text is long enough.
uint64_t number_at(std::string_view text, size_t at, int bytes) {
  uint64_t value = 0;
  for (int i = bytes; i-- > 0;)
    value = value << 8 | static_cast<unsigned char>(text[at + static_cast<size_t>(i)]);
  return value;
}

std::array<uint32_t, 256> crc32_table() {
  constexpr uint32_t kPolynomial = 0xedb88320;
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < table.size(); ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value & 1) != 0 ? value >> 1 ^ kPolynomial : value >> 1;
    table[i] = value;
  }
  return table;
}

// Replaces the values that did not fit into 32 bits by the values of the wide extra field, which has them in
// this order. Returns false if one is missing.
bool read_wide_field(std::string_view extra, std::array<uint64_t*, 3> values) {
  while (extra.size() >= 4) {
    const uint64_t id = number_at(extra, 0, 2);
    std::string_view field = extra.substr(4, number_at(extra, 2, 2));
    extra.remove_prefix(std::min(extra.size(), 4 + number_at(extra, 2, 2)));
    if (id != kWideField) continue;
    for (uint64_t* value : values) {
      if (*value != kIsWide) continue;
      if (field.size() < 8) return false;
      *value = number_at(field, 0, 8);
      field.remove_prefix(8);
    }
    return true;
  }
  return std::all_of(values.begin(), values.end(), [](const uint64_t* value) { return *value != kIsWide; });
}

}  // namespace

uint32_t crc32(std::span<const std::byte> bytes) {
  static const std::array<uint32_t, 256> kTable = crc32_table();
  uint32_t value = 0xffffffff;
  for (const std::byte byte : bytes)
    value = value >> 8 ^ kTable[(value ^ static_cast<uint32_t>(byte)) & 0xff];
  return ~value;
}

ZipFile::ZipFile(const std::string& path) : file_(path) {
  const uint64_t tail_bytes = std::min(file_.size(), kEndBytes + kLongestComment);
  const std::string tail = bytes_at(file_.size() - tail_bytes, tail_bytes);
  const size_t end =
      tail.size() < kEndBytes ? std::string::npos : tail.rfind(kEndMark, tail.size() - kEndBytes);
  if (end == std::string::npos) fail_damaged("its end is missing");
  uint64_t count = number_at(tail, end + 10, 2);
  uint64_t size = number_at(tail, end + 12, 4);
  uint64_t begin = number_at(tail, end + 16, 4);
  if (end >= kLocatorBytes && tail.compare(end - kLocatorBytes, 4, kWideLocatorMark) == 0) {
    const std::string wide = bytes_at(number_at(tail, end - kLocatorBytes + 8, 8), kWideEndBytes);
    if (!wide.starts_with(kWideEndMark)) fail_damaged("its end is missing");
    count = number_at(wide, 32, 8);
    size = number_at(wide, 40, 8);
    begin = number_at(wide, 48, 8);
  }
  read_directory(bytes_at(begin, size), count);
}

void ZipFile::read_directory(const std::string& directory, uint64_t count) {
  std::string_view rest = directory;
  uint64_t all_stored = 0;
  for (uint64_t i = 0; i < count; ++i) {
    if (rest.size() < kEntryBytes || !rest.starts_with(kEntryMark)) fail_damaged("its directory is cut off");
    const uint64_t name_bytes = number_at(rest, 28, 2);
    const uint64_t extra_bytes = number_at(rest, 30, 2);
    const uint64_t all_bytes = kEntryBytes + name_bytes + extra_bytes + number_at(rest, 32, 2);
    if (rest.size() < all_bytes) fail_damaged("its directory is cut off");
    const std::string name(rest.substr(kEntryBytes, name_bytes));
    uint64_t size = number_at(rest, 24, 4);
    uint64_t stored = number_at(rest, 20, 4);
    Entry entry{.header = number_at(rest, 42, 4), .checksum = static_cast<uint32_t>(number_at(rest, 16, 4))};
    if (!read_wide_field(rest.substr(kEntryBytes + name_bytes, extra_bytes), {&size, &stored, &entry.header}))
      fail_damaged(fmt::format("the size of '{}' is missing", name));
    entry.is_compressed = number_at(rest, 10, 2) != 0;
    if (!entry.is_compressed && size != stored) fail_damaged(fmt::format("the size of '{}' is wrong", name));
    // Entries that overlap could ask for much more memory than the file has.
    if (stored > file_.size() - all_stored) fail_damaged(fmt::format("the size of '{}' is wrong", name));
    all_stored += stored;
    const std::string own_name = name.substr(name.find('/') + 1);
    if (!sizes_.emplace(own_name, stored).second) fail_damaged(fmt::format("it has '{}' twice", own_name));
    entries_.emplace(own_name, entry);
    rest.remove_prefix(all_bytes);
  }
}

void ZipFile::read(const std::string& name, std::span<std::byte> bytes) const {
  const Entry& entry = entries_.at(name);
  if (entry.is_compressed)
    fail(ErrorKind::Unimplemented,
         "{}: '{}' in this ZIP archive is compressed, which torch.save() never does", file_.path(), name);
  const std::string header = bytes_at(entry.header, kHeaderBytes);
  if (!header.starts_with(kHeaderMark)) fail_damaged(fmt::format("'{}' is not where it should be", name));
  const uint64_t begin = entry.header + kHeaderBytes + number_at(header, 26, 2) + number_at(header, 28, 2);
  if (begin > file_.size() || bytes.size() > file_.size() - begin)
    fail_damaged(fmt::format("'{}' is cut off", name));
  file_.read_at(begin, bytes);
  if (crc32(bytes) != entry.checksum) fail_damaged(fmt::format("the checksum of '{}' is wrong", name));
}

void ZipFile::fail_damaged(const std::string& why) const {
  fail(ErrorKind::DataLoss, "{}: the file is damaged or incomplete: {}", file_.path(), why);
}

std::string ZipFile::bytes_at(uint64_t offset, uint64_t count) const {
  if (offset > file_.size() || count > file_.size() - offset) fail_damaged("it ends too early");
  std::string bytes(count, '\0');
  file_.read_at(offset, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

}  // namespace tutti::store

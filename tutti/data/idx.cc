#include "tutti/data/idx.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <vector>

#include <ATen/Functions.h>

#include "tutti/base/error.h"
#include "tutti/data/byte_reader.h"

namespace tutti::data {
namespace {

// More than any tensor has in practice; a header with more dimensions is not an IDX header.
constexpr int kMostDimensions = 16;

struct Header {
  torch::ScalarType type;
  std::vector<int64_t> shape;
  uint64_t bytes;          // of the header itself
  uint64_t payload_bytes;  // bytes of the elements, according to the header
};

std::optional<torch::ScalarType> type_of(unsigned char code) {
  switch (code) {
    case 0x08:
      return torch::kUInt8;
    case 0x09:
      return torch::kInt8;
    case 0x0B:
      return torch::kInt16;
    case 0x0C:
      return torch::kInt32;
    case 0x0D:
      return torch::kFloat32;
    case 0x0E:
      return torch::kFloat64;
    default:
      return std::nullopt;
  }
}

uint32_t big_endian(const unsigned char* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | uint32_t{bytes[3]};
}

void read_header_bytes(ByteReader& reader, const std::string& path, uint64_t offset, unsigned char* to,
                       size_t size) {
  const size_t count = reader.read(reinterpret_cast<char*>(to), size);
  if (count < size) {
    fail(ErrorKind::DataLoss, "{}: the IDX header is truncated at byte {}", path, offset + count);
  }
}

// Returns the number of bytes that the shape requires. Counts empty dimensions as one, so that the product of
// the others is checked for overflow too.
uint64_t promised_bytes(const std::string& path, const Header& header) {
  uint64_t elements = 1;
  bool empty = false;
  for (const int64_t extent : header.shape) {
    empty = empty || extent == 0;
    const auto factor = static_cast<uint64_t>(std::max<int64_t>(extent, 1));
    if (__builtin_mul_overflow(elements, factor, &elements) || elements > (uint64_t{1} << 59)) {
      fail(ErrorKind::DataLoss, "{}: the IDX header (bytes 4 to {}) declares more elements than are possible",
           path, header.bytes - 1);
    }
  }
  return empty ? 0 : elements * c10::elementSize(header.type);
}

Header read_header(ByteReader& reader, const std::string& path) {
  unsigned char magic[4] = {};
  read_header_bytes(reader, path, 0, magic, sizeof magic);
  if (magic[0] != 0 || magic[1] != 0) {
    fail(ErrorKind::DataLoss, "{}: not an IDX file: bytes 0 and 1 are {:02x} {:02x}, expected 00 00", path,
         magic[0], magic[1]);
  }
  const auto type = type_of(magic[2]);
  if (!type)
    fail(ErrorKind::DataLoss, "{}: byte 2 is {:02x}, which is not an element type of IDX files", path,
         magic[2]);
  if (magic[3] < 1 || magic[3] > kMostDimensions) {
    fail(ErrorKind::DataLoss, "{}: byte 3 declares {} dimensions; expected 1 to {}", path, magic[3],
         kMostDimensions);
  }
  Header header{*type, {}, sizeof magic, 0};
  for (int i = 0; i < magic[3]; ++i) {
    unsigned char extent[4] = {};
    read_header_bytes(reader, path, header.bytes, extent, sizeof extent);
    header.shape.push_back(big_endian(extent));
    header.bytes += sizeof extent;
  }
  header.payload_bytes = promised_bytes(path, header);
  return header;
}

void check_promise(const ByteReader& reader, const std::string& path, const Header& header) {
  if (header.payload_bytes <= reader.most_bytes()) return;
  fail(ErrorKind::DataLoss,
       "{}: the file is truncated: the header declares {} bytes from byte {}, but the file "
       "can contain at most {}",
       path, header.payload_bytes, header.bytes, reader.most_bytes());
}

void read_payload(ByteReader& reader, const std::string& path, const Header& header, char* to) {
  const size_t count = reader.read(to, header.payload_bytes);
  if (count < header.payload_bytes) {
    fail(ErrorKind::DataLoss,
         "{}: the file is truncated at byte {}: the header declares {} bytes from byte "
         "{}, but only {} follow",
         path, header.bytes + count, header.payload_bytes, header.bytes, count);
  }
  char beyond = 0;
  if (reader.read(&beyond, 1) != 0) {
    fail(ErrorKind::DataLoss,
         "{}: the file continues at byte {}, where it should end according to the header", path,
         header.bytes + header.payload_bytes);
  }
}

void to_native_order(char* bytes, size_t size, size_t element) {
  if (std::endian::native == std::endian::big || element == 1) return;
  for (char* at = bytes; at < bytes + size; at += element) std::reverse(at, at + element);
}

}  // namespace

torch::Tensor read_idx(const std::string& path) {
  const auto reader = open_bytes(path);
  const Header header = read_header(*reader, path);
  check_promise(*reader, path, header);
  torch::Tensor tensor = at::empty(header.shape, header.type);
  auto* data = static_cast<char*>(tensor.data_ptr());
  read_payload(*reader, path, header, data);
  to_native_order(data, header.payload_bytes, c10::elementSize(header.type));
  return tensor;
}

}  // namespace tutti::data

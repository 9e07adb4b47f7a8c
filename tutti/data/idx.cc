#include "tutti/data/idx.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <vector>

#include <ATen/Functions.h>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/type_name.h"

namespace tutti::data {
namespace {

class PlainReader final : public ByteReader {
 public:
  explicit PlainReader(const std::string& path) : file_(path) {}

  size_t read(char* to, size_t size) override {
    const size_t count = std::min<uint64_t>(size, file_.size() - at_);
    file_.read_at(at_, std::as_writable_bytes(std::span(to, count)));
    at_ += count;
    return count;
  }

  uint64_t most_bytes() const override { return file_.size(); }

  bool starts_with_gzip_magic() {
    char magic[2] = {0, 0};
    const size_t count = read(magic, sizeof magic);
    at_ = 0;
    return std::string_view(magic, count) == "\x1f\x8b";
  }

 private:
  const FileReader file_;
  uint64_t at_ = 0;  // the next byte
};

// Opens a plain or gzip-compressed file; its first bytes determine which. Throws InvalidArgument if it is
// missing, not a regular file, or not readable.
std::unique_ptr<ByteReader> open_bytes(const std::string& path) {
  auto plain = std::make_unique<PlainReader>(path);
  if (!plain->starts_with_gzip_magic()) return plain;
  return gunzip(std::move(plain), path);
}

// More than any tensor has in practice; a header with more dimensions is not an IDX header.
constexpr int kMostDimensions = 16;

struct Header {
  torch::ScalarType type;
  std::vector<int64_t> shape;
  uint64_t bytes;          // of the header itself
  uint64_t payload_bytes;  // bytes of the elements, according to the header
};

std::optional<torch::ScalarType> type_of(unsigned char code) {
  constexpr std::pair<unsigned char, torch::ScalarType> kTypes[] = {
      {0x08, torch::kUInt8}, {0x09, torch::kInt8},    {0x0B, torch::kInt16},
      {0x0C, torch::kInt32}, {0x0D, torch::kFloat32}, {0x0E, torch::kFloat64}};
  for (const auto& [own, type] : kTypes) {
    if (own == code) return type;
  }
  return std::nullopt;
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
  if (header.payload_bytes > reader->most_bytes())
    fail(ErrorKind::DataLoss,
         "{}: the file is truncated: the header declares {} bytes from byte {}, but the file "
         "can contain at most {}",
         path, header.payload_bytes, header.bytes, reader->most_bytes());
  torch::Tensor tensor = at::empty(header.shape, header.type);
  auto* data = static_cast<char*>(tensor.data_ptr());
  read_payload(*reader, path, header, data);
  to_native_order(data, header.payload_bytes, c10::elementSize(header.type));
  return tensor;
}

namespace {

constexpr int kDigitSide = 28;
constexpr size_t kDigitSize = size_t{kDigitSide} * kDigitSide;
constexpr uint8_t kMostLabel = 9;

// Digits stored as bytes, which take a quarter of the memory of floats.
class ByteDigits final : public Source {
 public:
  ByteDigits(torch::Tensor images, torch::Tensor labels)
      : images_(std::move(images)), labels_(std::move(labels)) {}

  int64_t size() const override { return labels_.size(0); }

  Batch read(std::span<const int64_t> examples) const override {
    check_examples(examples, size(), "digits");
    const auto count = static_cast<int64_t>(examples.size());
    const torch::Tensor images = at::empty({count, 1, kDigitSide, kDigitSide}, at::kFloat);
    const torch::Tensor labels = at::empty({count}, at::kLong);
    auto* pixel = images.data_ptr<float>();
    auto* label = labels.data_ptr<int64_t>();
    for (const int64_t example : examples) {
      const uint8_t* own = images_.data_ptr<uint8_t>() + static_cast<size_t>(example) * kDigitSize;
      pixel = std::transform(own, own + kDigitSize, pixel,
                             [](uint8_t byte) { return static_cast<float>(byte) / 255.0F; });
      *label++ = labels_.data_ptr<uint8_t>()[example];
    }
    return Batch({{"image", images}, {"label", labels}});
  }

 private:
  const torch::Tensor images_;
  const torch::Tensor labels_;
};

// Returns the file that exists for "train-images" and "idx3": train-images-idx3-ubyte,
// train-images.idx3-ubyte, or either of them with .gz.
std::string find_file(const std::string& dir, const std::string& name, const std::string& format) {
  for (const char* separator : {"-", "."}) {
    for (const char* ending : {"", ".gz"}) {
      const auto path = std::filesystem::path(dir) / (name + separator + format + "-ubyte" + ending);
      std::error_code ignored;
      if (std::filesystem::exists(path, ignored)) return path.string();
    }
  }
  fail(ErrorKind::InvalidArgument,
       "{}: there is no {}-{}-ubyte or {}-{}-ubyte.gz. Put the four MNIST files there", dir, name, format,
       name, format);
}

torch::Tensor read_images(const std::string& path) {
  torch::Tensor images = read_idx(path);
  if (images.scalar_type() != torch::kUInt8 || images.dim() != 3) {
    fail(ErrorKind::DataLoss,
         "{}: bytes 2 and 3 declare {} dimensions of {}; images need 3 dimensions of unsigned bytes", path,
         images.dim(), type_name(images.scalar_type()));
  }
  if (images.size(1) != kDigitSide || images.size(2) != kDigitSide) {
    fail(ErrorKind::DataLoss, "{}: bytes 8 to 15 declare images of {}x{} pixels; expected {}x{}", path,
         images.size(1), images.size(2), kDigitSide, kDigitSide);
  }
  return images;
}

torch::Tensor read_labels(const std::string& path) {
  torch::Tensor labels = read_idx(path);
  if (labels.scalar_type() != torch::kUInt8 || labels.dim() != 1) {
    fail(ErrorKind::DataLoss,
         "{}: bytes 2 and 3 declare {} dimensions of {}; labels need 1 dimension of unsigned bytes", path,
         labels.dim(), type_name(labels.scalar_type()));
  }
  constexpr int64_t kHeaderBytes = 8;
  const auto* values = static_cast<const uint8_t*>(labels.data_ptr());
  for (int64_t record = 0; record < labels.size(0); ++record) {
    if (values[record] > kMostLabel) {
      fail(ErrorKind::DataLoss, "{}: the label of record {} (byte {}) is {}; expected a digit from 0 to 9",
           path, record, kHeaderBytes + record, values[record]);
    }
  }
  return labels;
}

Feed read_digits(const std::string& dir, const std::string& name) {
  const std::string image_path = find_file(dir, name + "-images", "idx3");
  const std::string label_path = find_file(dir, name + "-labels", "idx1");
  torch::Tensor images = read_images(image_path);
  torch::Tensor labels = read_labels(label_path);
  if (images.size(0) != labels.size(0)) {
    fail(ErrorKind::DataLoss, "{} has {} images, but {} has {} labels: they do not belong together",
         image_path, images.size(0), label_path, labels.size(0));
  }
  return Feed(std::make_shared<ByteDigits>(std::move(images), std::move(labels)));
}

}  // namespace

Digits mnist(const std::string& dir) {
  if (dir.empty()) fail(ErrorKind::InvalidArgument, "mnist: give the folder with the four IDX files: --data");
  return {read_digits(dir, "train"), read_digits(dir, "t10k")};
}

}  // namespace tutti::data

#include "tutti/store/png.h"

#include <array>
#include <limits>
#include <string_view>

#include <zlib.h>

#include "tutti/base/check.h"

namespace tutti::store {
namespace {

using namespace std::string_view_literals;

// Colour types of the header, by the number of channels.
constexpr std::array<char, 5> kColourTypes = {0, /*grey*/ 0, /*grey and alpha*/ 4, /*RGB*/ 2, /*RGBA*/ 6};
constexpr char kSubFilter = 1;  // each byte is stored as the difference from the pixel on its left

void append_big_endian(std::string& bytes, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(value >> shift & 0xff));
}

// Length, type, data, and the CRC-32 of type and data.
void append_chunk(std::string& png, std::string_view type, std::string_view data) {
  append_big_endian(png, static_cast<uint32_t>(data.size()));
  const size_t begin = png.size();
  png.append(type).append(data);
  const auto* checked = reinterpret_cast<const Bytef*>(png.data() + begin);
  append_big_endian(png, static_cast<uint32_t>(crc32_z(0, checked, png.size() - begin)));
}

std::string filtered(std::span<const std::byte> pixels, size_t rows, size_t row_bytes, size_t pixel_bytes) {
  std::string lines;
  lines.reserve(rows * (row_bytes + 1));
  for (size_t row = 0; row < rows; ++row) {
    const std::span<const std::byte> line = pixels.subspan(row * row_bytes, row_bytes);
    lines.push_back(kSubFilter);
    for (size_t i = 0; i < row_bytes; ++i) {
      const auto left = i < pixel_bytes ? 0 : std::to_integer<int>(line[i - pixel_bytes]);
      lines.push_back(static_cast<char>(std::to_integer<int>(line[i]) - left));
    }
  }
  return lines;
}

std::string compressed(const std::string& bytes) {
  uLongf size = compressBound(bytes.size());
  std::string out(size, '\0');
  const int code = compress(reinterpret_cast<Bytef*>(out.data()), &size,
                            reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
  if (code != Z_OK)
    fail(ErrorKind::Overloaded, "zlib cannot compress an image of {} bytes (code {})", bytes.size(), code);
  out.resize(size);
  return out;
}

}  // namespace

std::string encode_png(std::span<const std::byte> pixels, int64_t height, int64_t width, int64_t channels) {
  TUTTI_CHECK(height > 0 && width > 0 && channels > 0 &&
                  channels < static_cast<int64_t>(kColourTypes.size()) &&
                  pixels.size() == static_cast<size_t>(height * width * channels),
              "an image of {}x{}x{} with {} bytes", height, width, channels, pixels.size());
  std::string header;
  append_big_endian(header, static_cast<uint32_t>(width));
  append_big_endian(header, static_cast<uint32_t>(height));
  header.push_back(8);  // bits per channel
  header.push_back(kColourTypes[static_cast<size_t>(channels)]);
  header.append("\0\0\0"sv);  // deflate, the five filters, not interlaced
  const std::string data =
      compressed(filtered(pixels, static_cast<size_t>(height), static_cast<size_t>(width * channels),
                          static_cast<size_t>(channels)));
  if (data.size() > std::numeric_limits<int32_t>::max())
    fail(ErrorKind::InvalidArgument, "an image of {}x{} pixels does not fit into one chunk of a PNG file",
         height, width);
  std::string png("\x89PNG\r\n\x1a\n");
  append_chunk(png, "IHDR", header);
  append_chunk(png, "IDAT", data);
  append_chunk(png, "IEND", "");
  return png;
}

}  // namespace tutti::store

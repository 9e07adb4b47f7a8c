#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace tutti::store {

// Encodes an image as PNG (ISO/IEC 15948), without interlacing. `pixels` has height * width * channels bytes,
// row by row, the channels of a pixel side by side: 1 (grey), 2 (grey and alpha), 3 (RGB) or 4 (RGBA).
// Requires 1 to 2^31 - 1 pixels in each direction. Throws Unimplemented if this build has no zlib.
std::string encode_png(std::span<const std::byte> pixels, int64_t height, int64_t width, int64_t channels);

}  // namespace tutti::store

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tutti {

// Returns the CRC-32C (Castagnoli), as used by iSCSI and TensorBoard's event files. Continues from `before`,
// so that crc32c(b, crc32c(a)) is the checksum of a followed by b.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);

// Like crc32c(), but without the CPU's instruction. Only tests call it directly.
uint32_t crc32c_portable(std::span<const std::byte> bytes, uint32_t before = 0);

}  // namespace tutti

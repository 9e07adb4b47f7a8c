#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tutti {

// CRC-32C (Castagnoli), as in iSCSI and TensorBoard's event files. Goes on from `before`, so that
// crc32c(b, crc32c(a)) is the checksum of a and b in a row.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);

// The same without the CPU's instruction. Only tests call it by name.
uint32_t crc32c_portable(std::span<const std::byte> bytes, uint32_t before = 0);

}  // namespace tutti

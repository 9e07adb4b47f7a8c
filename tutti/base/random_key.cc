#include "tutti/base/random_key.h"

#include <array>
#include <cerrno>
#include <sys/random.h>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/base/file.h"

namespace tutti {

std::string random_key() {
  std::array<unsigned char, 16> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    fail_errno(errno, "generating random bytes");
  std::string digits;
  for (const unsigned char byte : bytes) digits += fmt::format("{:02x}", byte);
  return digits;
}

}  // namespace tutti

#include "tutti/base/random_key.h"

#include <random>

#include <fmt/format.h>

namespace tutti {

std::string random_key() {
  std::random_device device;  // the system's source of randomness
  std::string key;
  for (int i = 0; i < 4; ++i) key += fmt::format("{:08x}", device());
  return key;
}

}  // namespace tutti

#include "tests/few_digits.h"

#include <cstdint>
#include <initializer_list>
#include <memory>

namespace tutti::testing {
namespace {

std::string big_endian(std::initializer_list<uint32_t> numbers) {
  std::string bytes;
  for (const uint32_t number : numbers) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(number >> shift & 0xff);
  }
  return bytes;
}

void write_digits(const TestFolder& folder, const std::string& name, uint32_t count) {
  constexpr uint32_t kSide = 28;
  std::string images = big_endian({2051, count, kSide, kSide});
  std::string labels = big_endian({2049, count});
  uint32_t noise = 1;
  for (uint32_t i = 0; i < count; ++i) {
    labels += static_cast<char>(i % 10);
    for (uint32_t pixel = 0; pixel < kSide * kSide; ++pixel) {
      noise = noise * 1664525 + 1013904223;
      images += static_cast<char>(noise >> 24);
    }
  }
  folder.write(name + "-images-idx3-ubyte", images);
  folder.write(name + "-labels-idx1-ubyte", labels);
}

}  // namespace

void write_few_digits(const TestFolder& folder) {
  write_digits(folder, "train", 200);
  write_digits(folder, "t10k", 100);
}

std::string few_digits() {
  static const auto kFolder = [] {
    auto folder = std::make_unique<TestFolder>();
    write_few_digits(*folder);
    return folder;
  }();
  return kFolder->path();
}

}  // namespace tutti::testing

#pragma once

#include <cstddef>
#include <memory>

namespace tutti::comm {

// A buffer that is reused, and reallocated when it is too small.
class ScratchBuffer {
 public:
  std::byte* at_least(size_t size) {
    if (size > size_ || !bytes_) {
      bytes_ = std::make_unique_for_overwrite<std::byte[]>(size);
      size_ = size;
    }
    return bytes_.get();
  }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  size_t size_ = 0;
};

}  // namespace tutti::comm

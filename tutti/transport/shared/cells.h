#pragma once

#include <algorithm>
#include <cstring>
#include <span>

#include "tutti/base/check.h"
#include "tutti/transport/array.h"

namespace tutti::comm {

// How a rank divides half of its staging buffer: into one cell for each receiver, or into one for all. A cell
// has the size of the whole message, and a chunk of each of its parts, which are equally long.
class Cells {
 public:
  Cells(size_t half, size_t cells, size_t parts = 1)
      : stride_(half / cells / 64 * 64), room_((stride_ - kHead) / parts / 64 * 64) {
    TUTTI_CHECK(stride_ > kHead && room_ > 0, "{} cells with {} parts", cells, parts);
  }

  size_t room() const { return room_; }  // bytes of a chunk
  std::byte* at(std::byte* half, size_t cell, size_t part) const {
    return half + cell * stride_ + kHead + part * room_;
  }
  // Returns the chunk of a message that begins with its byte number `done`.
  template <class Message>
  Message part(Message message, size_t done) const {
    const size_t begin = std::min(done, message.size());
    return message.subspan(begin, std::min(room_, message.size() - begin));
  }

  void put(std::byte* half, size_t cell, std::span<const ConstBytes> parts, size_t done) const {
    size_t size = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      const ConstBytes chunk = part(parts[i], done);
      if (!chunk.empty()) std::memcpy(at(half, cell, i), chunk.data(), chunk.size());
      size += parts[i].size();
    }
    std::memcpy(half + cell * stride_, &size, sizeof(size));
  }
  // Returns the size of the whole message, of which a chunk was put into the cell.
  size_t size(const std::byte* half, size_t cell) const {
    size_t size = 0;
    std::memcpy(&size, half + cell * stride_, sizeof(size));
    return size;
  }

 private:
  static constexpr size_t kHead = 64;

  size_t stride_;
  size_t room_;
};

}  // namespace tutti::comm

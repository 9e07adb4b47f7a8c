#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace tutti::rpc {

// The arena of another process, as it is seen from here. Thread-safe.
class Mapping {
 public:
  // By its name (Arena::name()). Null where it cannot be reached: it is on another machine, of another user,
  // or gone.
  static std::shared_ptr<const Mapping> of(const std::string& name);

  Mapping(std::byte* base, size_t size) : base_(base), size_(size) {}
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  // A range that the other process has allocated; any other is a DataLoss.
  std::span<std::byte> at(uint64_t offset, uint64_t bytes) const;

 private:
  std::byte* const base_;
  const size_t size_;
};

}  // namespace tutti::rpc

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace tutti::rpc {

// The arena of another process, mapped into this one. Thread-safe.
class Mapping {
 public:
  // Maps an arena by Arena::name(). Returns null if it is not accessible: it is on another machine, belongs
  // to another user, or no longer exists.
  static std::shared_ptr<const Mapping> of(const std::string& name);

  Mapping(std::byte* base, size_t size) : base_(base), size_(size) {}
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  // Returns a range that the other process has allocated; throws DataLoss for any other.
  std::span<std::byte> at(uint64_t offset, uint64_t bytes) const;

 private:
  std::byte* const base_;
  const size_t size_;
};

}  // namespace tutti::rpc

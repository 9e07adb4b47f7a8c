#pragma once

#include <cstddef>

// A board serves these methods. A request has two pieces, the key and the value ("" for peek). The answer is
// the value that the key has afterwards, or no piece if it has none.
namespace tutti::comm::board {

inline constexpr const char* kSet = "set";
inline constexpr const char* kPeek = "peek";
inline constexpr const char* kSetOnce = "set_once";
inline constexpr const char* kHold = "hold";

inline constexpr size_t kLongestKey = size_t{64} << 10;
inline constexpr size_t kLongestValue = size_t{16} << 20;

}  // namespace tutti::comm::board

#include "tutti/rpc/wire.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "tutti/base/file.h"

namespace tutti::rpc {
namespace {

// Longer frames take memory from the budget.
constexpr size_t kShort = size_t{16} << 10;

// Cuts bytes into chunks and writes them.
class Cutter {
 public:
  Cutter(Stream& stream, const TimeLimits& time) : stream_(stream), time_(time) {}

  void add(ConstBytes bytes) {
    while (!bytes.empty()) {
      const auto taken = bytes.first(std::min(bytes.size(), kLargestChunk - size_));
      parts_.push_back(taken);
      size_ += taken.size();
      bytes = bytes.subspan(taken.size());
      if (size_ == kLargestChunk) send();
    }
  }
  void finish() {
    if (size_ > 0) send();
    stream_.flush(time_.next());
  }

 private:
  void send() {
    stream_.write(parts_, time_.next());
    parts_.clear();
    size_ = 0;
  }

  Stream& stream_;
  const TimeLimits& time_;
  std::vector<ConstBytes> parts_;
  size_t size_ = 0;
};

}  // namespace

Clock::time_point TimeLimits::next() const {
  const auto now = Clock::now();
  return deadline - now > each ? now + each : deadline;
}

void Wire::send(std::string_view frame, std::span<const ConstBytes> following, const TimeLimits& time) {
  Cutter cutter(stream_, time);
  cutter.add(as_bytes(frame));
  for (const ConstBytes piece : following) cutter.add(piece);
  cutter.finish();
}

Frame Wire::receive(const FrameLimits& limits, const Allocate& allocate, Clock::time_point begin,
                    const TimeLimits& time) {
  next_chunk(begin);
  std::array<std::byte, kPrefixSize> prefix_bytes{};
  receive(prefix_bytes, time);
  const FramePrefix prefix = decode_prefix(prefix_bytes, limits);
  std::array<std::byte, kShort> here;
  std::shared_ptr<std::byte> there;
  if (prefix.rest() > kShort) there = allocate(prefix.rest());
  const Bytes rest(there != nullptr ? there.get() : here.data(), prefix.rest());
  receive(rest, time);
  return decode_rest(prefix, rest);
}

void Wire::next_chunk(Clock::time_point deadline) {
  chunk_ = stream_.read(deadline);
  part_ = 0;
  received_ = 0;
  if (chunk_.parts.empty()) fail(ErrorKind::DataLoss, "received an empty chunk");
}

void Wire::receive(Bytes bytes, const TimeLimits& time) {
  while (!bytes.empty()) {
    if (part_ == chunk_.parts.size()) next_chunk(time.next());
    const ConstBytes left = chunk_.parts[part_].subspan(received_);
    const size_t taken = std::min(left.size(), bytes.size());
    std::memcpy(bytes.data(), left.data(), taken);
    bytes = bytes.subspan(taken);
    received_ += taken;
    if (taken == left.size()) {
      ++part_;
      received_ = 0;
    }
  }
}

void Wire::finish() {
  if (part_ != chunk_.parts.size()) fail(ErrorKind::DataLoss, "received bytes that belong to no message");
  chunk_ = {};
  part_ = 0;
}

}  // namespace tutti::rpc

#include "tutti/rpc/wire.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/file.h"

namespace tutti::rpc {
namespace {

// Longer frames take memory from the budget.
constexpr size_t kShort = size_t{16} << 10;
constexpr std::chrono::milliseconds kBetweenLooks{100};

// Calls `attempt` until it returns true, each time with the time until which it may wait.
template <class Attempt>
void wait(const TimeLimits& time, const Attempt& attempt) {
  const auto deadline = time.next();
  while (!attempt(time.look ? std::min(deadline, Clock::now() + kBetweenLooks) : deadline)) {
    if (Clock::now() >= deadline) fail(ErrorKind::Timeout, "no message came or was taken in time");
    if (time.look) time.look();
  }
}

// Makes an attempt of a function that throws a Timeout. Returns false after that.
template <class Function>
bool in_time(const Function& function) {
  try {
    function();
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Timeout) throw;
    return false;
  }
}

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
  }

 private:
  void send() {
    wait(time_, [this](Clock::time_point until) { return stream_.await_room(until); });
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

void Wire::begin_send(std::string_view frame, std::span<const ConstBytes> following, const TimeLimits& time) {
  Cutter cutter(stream_, time);
  cutter.add(as_bytes(frame));
  for (const ConstBytes piece : following) cutter.add(piece);
  cutter.finish();
}

Frame Wire::receive(const FrameLimits& limits, const Allocate& allocate, const TimeLimits& begin,
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

void Wire::flush(const TimeLimits& time) {
  wait(time, [this](Clock::time_point until) { return in_time([&] { stream_.flush(until); }); });
}

void Wire::next_chunk(const TimeLimits& time) {
  wait(time, [this](Clock::time_point until) { return in_time([&] { chunk_ = stream_.read(until); }); });
  part_ = 0;
  received_ = 0;
  if (chunk_.parts.empty()) fail(ErrorKind::DataLoss, "received an empty chunk");
}

void Wire::receive(Bytes bytes, const TimeLimits& time) {
  while (!bytes.empty()) {
    if (part_ == chunk_.parts.size()) next_chunk(time);
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

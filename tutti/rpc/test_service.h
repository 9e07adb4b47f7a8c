#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/base/error.h"
#include "tutti/rpc/handshake.h"
#include "tutti/rpc/host.h"
#include "tutti/rpc/wire.h"

namespace tutti::rpc {

// For tests: a time within which anything happens, even on a busy machine.
constexpr std::chrono::seconds kEventually{60};
inline Clock::time_point eventually() { return Clock::now() + kEventually; }

inline constexpr size_t kMiB = size_t{1} << 20;

// Returns bytes that differ between nearby offsets.
inline std::vector<std::byte> pattern(size_t size, size_t seed = 0) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>((i + seed) * 7 + (i >> 9));
  return bytes;
}

inline bool equal(std::span<const std::byte> one, std::span<const std::byte> other) {
  return one.size() == other.size() &&
         (one.empty() || std::memcmp(one.data(), other.data(), one.size()) == 0);
}

// Sends these bytes, which need not be a whole message.
inline void say(Stream& stream, std::string_view bytes) {
  const std::array<ConstBytes, 1> parts = {std::as_bytes(std::span(bytes))};
  stream.write(parts, {.deadline = eventually()});
}

// Open a stream that has exchanged versions, and one that has completed the handshake.
inline std::unique_ptr<Stream> candidate_of(const std::string& address) {
  auto stream = net::open_stream(address, nullptr, eventually());
  exchange_versions(*stream, {.deadline = eventually()});
  return stream;
}
inline std::unique_ptr<Stream> acquaintance_of(const std::string& address) {
  auto stream = candidate_of(address);
  Wire wire(*stream);
  greet_host(wire, "", Json::object(), nullptr, {.deadline = eventually()});
  return stream;
}

// Receives frames until one of them is a refusal, or not a frame; returns never.
[[noreturn]] inline void receive_to_the_end(Stream& stream) {
  const TimeLimits time{.deadline = eventually()};
  Wire wire(stream);
  while (true) {
    wire.receive({}, {}, time, time);
    stream.end_message();
  }
}

// A service with methods for tests.
class TestService final : public Service {
 public:
  Message serve(const Caller& caller, const std::string& method, const Message& request) override {
    count(served_);
    if (method == "echo") return request;
    if (method == "nothing") return {};
    if (method == "hello") return {caller.hello, {}};
    if (method == "pieces") return pieces(request.head);
    if (method == "fail") fail(static_cast<ErrorKind>(request.head.at("kind").get<int>()), "it went wrong");
    if (method == "throw") throw std::runtime_error("an accident");
    if (method == "wait") return wait(caller);
    if (method == "keep") return keep(request);
    if (method == "take") return take_pieces(request);
    if (method == "stall") return wait(caller);
    fail(ErrorKind::InvalidArgument, "no method '{}'", method);
  }
  bool takes_incoming(const Caller& /*caller*/, const std::string& method) const override {
    return method == "take" || method == "stall";
  }
  void gone(const Caller& caller) override {
    const std::lock_guard lock(mutex_);
    gone_.insert(caller.id);
    changed_.notify_all();
  }

  void await_served(size_t count) {
    await([&] { return served_ >= count; });
  }
  void await_waiting(size_t count) {
    await([&] { return waiting_ >= count; });
  }
  // Waits until "take" has taken so many pieces, or failed so often to take one.
  void await_taken(size_t count) {
    await([&] { return taken_ >= count; });
  }
  void await_not_taken(size_t count) {
    await([&] { return not_taken_ >= count; });
  }
  void await_gone(size_t count) {
    await([&] { return gone_.size() >= count; });
  }
  // Releases the requests that "keep" has kept.
  void release_kept() {
    const std::lock_guard lock(mutex_);
    kept_.clear();
  }
  // Lets pending calls of "wait" return.
  void release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }

 private:
  template <class Condition>
  void await(const Condition& condition) {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, kEventually, condition));
  }
  void count(size_t& what) {
    const std::lock_guard lock(mutex_);
    ++what;
    changed_.notify_all();
  }
  static Message pieces(const Json& head) {
    Message message;
    for (const Json& size : head.at("sizes")) {
      const auto bytes = std::make_shared<std::vector<std::byte>>(pattern(size.get<size_t>()));
      message.pieces.push_back({*bytes, bytes});
    }
    return message;
  }
  Message wait(const Caller& caller) {
    count(waiting_);
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kEventually, [&] { return released_ || gone_.contains(caller.id); }));
    if (gone_.contains(caller.id)) fail(ErrorKind::PeerLost, "nobody waits any more");
    return {};
  }
  // Takes so many pieces as they arrive, releases each, and returns their sizes; or fails after them.
  Message take_pieces(const Message& request) {
    const auto wanted = request.head.value("pieces", size_t{1000});
    Json sizes = Json::array();
    try {
      while (sizes.size() < wanted && request.incoming != nullptr && request.incoming->left() > 0) {
        const size_t size = request.incoming->next_size();
        const Piece piece = request.incoming->take_piece();
        EXPECT_TRUE(equal(piece.bytes, pattern(size)));
        sizes.push_back(size);
        count(taken_);
      }
    } catch (const Error&) {
      count(not_taken_);
      throw;
    }
    if (request.head.value("fail", false))
      fail(static_cast<ErrorKind>(request.head.value("kind", static_cast<int>(ErrorKind::InvalidArgument))),
           "it went wrong");
    return {{{"sizes", std::move(sizes)}, {"here", request.pieces.size()}}, {}};
  }
  Message keep(const Message& request) {
    const std::lock_guard lock(mutex_);
    kept_.push_back(request);
    return {};
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  size_t served_ = 0;  // all below: guarded by mutex_
  size_t waiting_ = 0;
  size_t taken_ = 0;
  size_t not_taken_ = 0;
  bool released_ = false;
  std::set<uint64_t> gone_;
  std::vector<Message> kept_;
};

inline std::string address_of(const Host& host) { return "127.0.0.1:" + std::to_string(host.port()); }

}  // namespace tutti::rpc

#include "tutti/rpc/host.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <future>
#include <iterator>
#include <mutex>
#include <random>
#include <string_view>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/test_errors.h"
#include "tutti/rpc/channel.h"
#include "tutti/rpc/handshake.h"
#include "tutti/rpc/test_raw_socket.h"
#include "tutti/rpc/test_service.h"
#include "tutti/rpc/wire.h"

namespace tutti::rpc {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

class HostTest : public testing::Test {
 protected:
  HostTest()
      : host_({.memory = 8 * kMiB,
               .report =
                   [this](const std::string& text) {
                     const std::lock_guard lock(mutex_);
                     reports_.push_back(text);
                   }},
              service_) {}
  ~HostTest() override {
    Channel channel(address_);
    EXPECT_NO_THROW(channel.call("nothing", {})) << "the server lives on";
  }
  // Open a stream before the handshake, and one after it.
  std::unique_ptr<Stream> candidate() const { return candidate_of(address_); }
  std::unique_ptr<Stream> acquaintance() const { return acquaintance_of(address_); }
  std::vector<std::string> reports() {
    const std::lock_guard lock(mutex_);
    return reports_;
  }

  std::mutex mutex_;
  std::vector<std::string> reports_;  // guarded by mutex_
  TestService service_;
  const Host host_;
  const std::string address_ = address_of(host_);
};

// Expects this error on the caller's side after the host has refused it.
template <class Matcher>
void expect_hung_up(Stream& stream, ErrorKind kind, const Matcher& text) {
  expect_error(kind, text, [&] { receive_to_the_end(stream); });
}

TEST_F(HostTest, frames_that_are_none_end_the_connection) {
  for (const bool known : {false, true}) {
    for (const std::string& bytes :
         {std::string("garbage"), std::string(100, '\0'), std::string(kMiB, 'x'),
          std::string("GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n")}) {
      const auto stream = known ? acquaintance() : candidate();
      say(*stream, bytes + std::string(32, ' '));
      expect_hung_up(*stream, ErrorKind::DataLoss, HasSubstr("not a frame of Tutti"));
    }
  }
  service_.await_gone(4);
}

TEST_F(HostTest, an_unknown_peer_that_announces_three_gibibytes_is_refused_before_memory_is_taken) {
  constexpr size_t kPlaceOfHeadSize = kPrefixSize - 20;
  Frame frame;
  frame.kind = FrameKind::Proof;
  std::string bytes = encode(frame);
  const uint32_t size = uint32_t{3} << 30;
  std::memcpy(bytes.data() + kPlaceOfHeadSize, &size, sizeof size);
  const auto stream = candidate();
  say(*stream, bytes);
  expect_hung_up(*stream, ErrorKind::DataLoss, HasSubstr("a head of 3221225472; the maximum is 65536"));
}

TEST_F(HostTest, bytes_behind_a_message_end_the_connection) {
  const auto stream = acquaintance();
  Frame frame;
  frame.method = "nothing";
  say(*stream, encode(frame) + "x");
  expect_hung_up(*stream, ErrorKind::DataLoss, HasSubstr("belong to no message"));
}

TEST_F(HostTest, a_message_without_end_ends_with_its_caller) {
  auto stream = acquaintance();
  Frame frame;
  frame.method = "echo";
  frame.pieces = {{kMiB}};
  say(*stream, encode(frame) + std::string(1000, 'x'));
  stream.reset();
  service_.await_gone(1);
}

TEST_F(HostTest, a_request_larger_than_the_budget_is_refused_at_once) {
  for (const uint64_t size : {uint64_t{8 * kMiB + 1}, uint64_t{1} << 60, ~uint64_t{0}}) {
    const auto stream = acquaintance();
    Frame frame;
    frame.method = "echo";
    frame.pieces = {{size}};
    say(*stream, encode(frame));
    expect_hung_up(*stream, ErrorKind::Overloaded, HasSubstr("larger than"));
  }
}

TEST_F(HostTest, a_request_beyond_the_budget_is_refused_while_it_is_sent) {
  Channel channel(address_, {.who = "ps/0"});
  expect_error(ErrorKind::Overloaded,
               AllOf(HasSubstr("ps/0: 'echo': a message of 64.0 MiB"), HasSubstr("8.0 MiB")), [&] {
                 channel.call("echo", {{}, {{pattern(64 * kMiB)}}});
               });
  EXPECT_THAT(reports(), testing::ElementsAre(AllOf(HasSubstr("127.0.0.1:"), HasSubstr("64.0 MiB"))));
}

TEST_F(HostTest, requests_wait_for_room) {
  Channel keeper(address_);
  keeper.call("keep", {{}, {{pattern(6 * kMiB)}}});
  Channel channel(address_);
  auto late = std::async(std::launch::async, [&] { channel.call("echo", {{}, {{pattern(6 * kMiB)}}}); });
  Channel small(address_);
  EXPECT_NO_THROW(small.call("nothing", {}));
  service_.release_kept();
  late.get();
}

TEST_F(HostTest, a_caller_that_leaves_while_it_waits_for_room_is_gone) {
  Channel keeper(address_);
  keeper.call("keep", {{}, {{pattern(6 * kMiB)}}});
  Channel channel(address_);
  expect_error(ErrorKind::Timeout, HasSubstr("no answer"), [&] {
    channel.call("echo", {{}, {{pattern(6 * kMiB)}}}, {.timeout = milliseconds(200)});
  });
  service_.await_gone(1);
  service_.release_kept();
}

// A service that ignores a gone() that came before serve(), and waits for the next ones.
class LateService final : public Service {
 public:
  Message serve(const Caller&, const std::string&, const Message&) override {
    std::unique_lock lock(mutex_);
    serving_ = true;
    changed_.notify_all();
    EXPECT_TRUE(changed_.wait_for(lock, kEventually, [&] { return told_ >= 2; })) << "while it serves";
    told_ = 0;
    fail(ErrorKind::PeerLost, "nobody waits any more");
  }
  void gone(const Caller&) override {
    const std::lock_guard lock(mutex_);
    ++told_;
    changed_.notify_all();
  }
  void await_serving() {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, kEventually, [&] { return serving_; }));
  }
  void await_told() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kEventually, [&] { return told_ >= 1; })) << "after it has served";
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool serving_ = false;  // all guarded by mutex_
  int told_ = 0;
};

// A service that fails with an error of its own while its host is closing.
class RefusingService final : public Service {
 public:
  Message serve(const Caller&, const std::string&, const Message&) override {
    std::unique_lock lock(mutex_);
    serving_ = true;
    changed_.notify_all();
    EXPECT_TRUE(changed_.wait_for(lock, kEventually, [&] { return told_; }));
    fail(ErrorKind::InvalidArgument, "not that");
  }
  void gone(const Caller&) override {
    const std::lock_guard lock(mutex_);
    told_ = true;
    changed_.notify_all();
  }
  void await_serving() {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, kEventually, [&] { return serving_; }));
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool serving_ = false;  // all guarded by mutex_
  bool told_ = false;
};

TEST(Host, that_closes_tells_its_callers_what_the_service_has_failed_with) {
  RefusingService service;
  auto host = std::make_unique<Host>(HostOptions{}, service);
  Channel channel(address_of(*host));
  auto call = std::async(std::launch::async, [&] {
    expect_error(ErrorKind::InvalidArgument, HasSubstr("not that"), [&] { channel.call("anything", {}); });
  });
  service.await_serving();
  host.reset();
  call.get();
}

// The caller reads slowly and beats meanwhile, which a closed connection would answer with a reset.
TEST(Host, that_closes_lets_an_answer_arrive) {
  TestService service;
  auto host = std::make_unique<Host>(HostOptions{}, service);
  const auto stream = acquaintance_of(address_of(*host));
  constexpr size_t kSize = 5 * kMiB / 2;
  Frame frame;
  frame.method = "pieces";
  frame.head = encode_json({{"sizes", {kSize}}});
  say(*stream, encode(frame));
  Wire wire(*stream);
  const TimeLimits time{.deadline = eventually()};
  wire.receive({}, {}, time, time);
  auto closed = std::async(std::launch::async, [&] { host.reset(); });
  std::vector<std::byte> bytes(kSize);
  for (Bytes left = bytes; !left.empty();) {
    const size_t next = std::min(left.size(), kSize / 50);
    stream->read(left.first(next), time);
    left = left.subspan(next);
    stream->beat();
  }
  EXPECT_TRUE(equal(bytes, pattern(kSize)));
  closed.get();
}

TEST(Host, says_that_a_caller_has_gone_until_the_service_has_noticed) {
  LateService service;
  const Host host({}, service);
  {
    const auto stream = acquaintance_of(address_of(host));
    Frame frame;
    frame.method = "anything";
    say(*stream, encode(frame));
    service.await_serving();
  }
  service.await_told();
}

TEST_F(HostTest, a_hello_that_is_no_object_is_refused) {
  for (const Json& hello : {Json(), Json(5), Json::array({1})}) {
    const auto stream = candidate();
    Wire wire(*stream);
    expect_error(ErrorKind::DataLoss, HasSubstr("not a JSON object"),
                 [&] { greet_host(wire, "", hello, nullptr, {.deadline = eventually()}); });
  }
}

TEST_F(HostTest, offsets_outside_the_arena_are_refused) {
  Arena arena;
  arena.allocate(100);
  for (const PieceHeader lie : {PieceHeader{100, 0}, PieceHeader{5000, 4096},
                                PieceHeader{1, uint64_t{1} << 39}, PieceHeader{~uint64_t{0}, 4096}}) {
    for (const bool into : {false, true}) {
      const auto stream = candidate();
      Wire wire(*stream);
      ASSERT_TRUE(greet_host(wire, "", Json::object(), &arena, {.deadline = eventually()}));
      Frame frame;
      frame.method = "pieces";
      frame.head = encode_json({{"sizes", Json::array({into && lie.size < 10000 ? lie.size : 1})}});
      (into ? frame.into : frame.pieces) = {lie};
      wire.send(frame, {}, {.deadline = eventually()});
      if (into && lie.size > 10000) continue;  // no answer can be that long
      try {
        const Frame answer = wire.receive({}, {}, {.deadline = eventually()}, {.deadline = eventually()});
        EXPECT_EQ(answer.kind, FrameKind::Failure);
        EXPECT_EQ(answer.error, ErrorKind::DataLoss);
      } catch (const StreamEnd& end) {
        EXPECT_EQ(end.kind(), ErrorKind::DataLoss) << end.what();
        EXPECT_THAT(end.what(), HasSubstr("not in the arena"));
      }
    }
  }
}

TEST_F(HostTest, a_place_without_an_arena_is_refused) {
  const auto stream = acquaintance();
  Frame frame;
  frame.method = "echo";
  frame.pieces = {{10, 4096}};
  say(*stream, encode(frame));
  expect_hung_up(*stream, ErrorKind::DataLoss, HasSubstr("shared memory"));
}

// The host answers or closes the connection, and then serves the next caller.
TEST_F(HostTest, fuzzed_requests_do_it_no_harm) {
  std::mt19937 random(7);  // NOLINT(bugprone-random-generator-seed): reproducible
  Frame frame;
  frame.method = "echo";
  frame.head = R"({"a": [1, 2]})";
  frame.pieces = {{64}, {0}, {3}};
  frame.into = {{64}};
  const std::string good = encode(frame) + std::string(67, 'x');
  auto stream = acquaintance();
  for (int i = 0; i < 400; ++i) {
    std::string bytes = good;
    for (auto changes = random() % 3 + 1; changes > 0; --changes)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    if (random() % 4 == 0) bytes.resize(random() % good.size() + 1);
    try {
      say(*stream, bytes);
      const TimeLimits soon{.deadline = Clock::now() + milliseconds(50)};
      Wire(*stream).receive({}, {}, soon, soon);
    } catch (const Error& error) {
      EXPECT_NE(error.kind(), ErrorKind::Bug) << error.what();
      stream = acquaintance();
    }
  }
}

size_t threads_of_this_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
}

// Unknown peers take neither a thread nor a place from later callers.
TEST_F(HostTest, unknown_peers_that_say_nothing_shut_nobody_out) {
  constexpr size_t kUnknownPeers = 300;
  const size_t before = threads_of_this_process();
  std::vector<std::unique_ptr<Stream>> candidates;
  for (size_t i = 0; i < kUnknownPeers; ++i)
    candidates.push_back(net::open_stream(address_, nullptr, eventually()));
  Channel channel(address_);
  EXPECT_NO_THROW(channel.call("nothing", {}));
  // The threads of those that were disconnected end a little later.
  const auto deadline = eventually();
  while (threads_of_this_process() >= before + kUnknownPeers / 2 && Clock::now() < deadline)
    std::this_thread::sleep_for(milliseconds(10));
  EXPECT_LT(threads_of_this_process(), before + kUnknownPeers / 2);
  // The first candidates have been disconnected.
  std::array<std::byte, 1> byte{};
  candidates.front()->await_message({.deadline = eventually()});
  EXPECT_THROW(while (true) candidates.front()->read(byte, {.deadline = eventually()}), StreamEnd);
}

// --- Callers that are no tasks of Tutti.

TEST_F(HostTest, a_caller_that_sends_http_1_or_garbage_is_disconnected) {
  for (const std::string& words :
       {std::string("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), std::string(100000, 'x'),
        std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11) + std::string(600, 'y')}) {
    const RawSocket socket(host_.port());
    socket.say(words);
    socket.await_end();
  }
}

TEST_F(HostTest, a_caller_that_disconnects_silently_does_no_harm) {
  for (int i = 0; i < 100; ++i) const RawSocket socket(host_.port());
}

TEST(Host, says_who_has_the_port) {
  TestService service;
  const Host host({}, service);
  expect_error(ErrorKind::Overloaded,
               AllOf(HasSubstr("port " + std::to_string(host.port()) + " is in use by pid " +
                               std::to_string(getpid()) + " (rpc_test)")),
               [&] { Host({.address = address_of(host)}, service); });
}

TEST(Host, listens_to_other_machines_only_where_that_is_safe_or_asked_for) {
  TestService service;
  for (const char* address : {"0.0.0.0:0", "[::]:0"}) {
    expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("without a secret"), HasSubstr("--insecure")),
                 [&] { Host({.address = address}, service); });
  }
  EXPECT_NO_THROW(Host({.address = "0.0.0.0:0", .insecure = true}, service));
}

TEST(Host, an_address_that_is_not_of_this_machine_is_named) {
  TestService service;
  expect_error(ErrorKind::InvalidArgument, HasSubstr("192.0.2.1:0"),
               [&] { Host({.address = "192.0.2.1:0", .insecure = true}, service); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("'x'"), [&] { Host({.address = "x"}, service); });
}

}  // namespace
}  // namespace tutti::rpc

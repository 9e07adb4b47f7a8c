#include "tutti/rpc/channel.h"

#include <array>
#include <atomic>
#include <functional>
#include <future>
#include <optional>
#include <stdexcept>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/file.h"
#include "tutti/base/ports.h"
#include "tutti/base/secret.h"
#include "tutti/base/test_errors.h"
#include "tutti/net/listener.h"
#include "tutti/rpc/handshake.h"
#include "tutti/rpc/host.h"
#include "tutti/rpc/test_service.h"
#include "tutti/rpc/wire.h"

namespace tutti::rpc {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

const std::vector<size_t> kSizes = {0,         1, 4095, 4096, 100000, 4 * kMiB - 1, 4 * kMiB, 12 * kMiB + 1,
                                    300 * kMiB};

// Runs a host with its service.
class ChannelTest : public testing::Test {
 protected:
  explicit ChannelTest(const HostOptions& options = {}) : host_(std::in_place, options, service_) {}
  ChannelOptions named(std::shared_ptr<Arena> arena = {}) {
    return {.who = "ps/1 (h:1)", .arena = std::move(arena)};
  }

  TestService service_;
  std::optional<Host> host_;
  const std::string address_ = address_of(*host_);
};

TEST_F(ChannelTest, bytes_of_any_number_go_and_come) {
  Channel channel(address_);
  for (const size_t size : kSizes) {
    const auto bytes = pattern(size);
    const Message answer = channel.call("echo", {{{"size", size}}, {{bytes}}});
    EXPECT_EQ(answer.head.at("size"), size);
    ASSERT_EQ(answer.pieces.size(), 1U);
    EXPECT_TRUE(equal(answer.pieces[0].bytes, bytes)) << size;
  }
}

TEST_F(ChannelTest, answers_go_where_they_are_wanted) {
  Channel channel(address_);
  for (const size_t size : kSizes) {
    const auto bytes = pattern(size);
    std::vector<std::byte> place(size);
    const Message answer = channel.call("echo", {{}, {{bytes}}}, {.into = {place}});
    EXPECT_TRUE(equal(place, bytes)) << size;
    EXPECT_EQ(answer.pieces.at(0).bytes.data(), place.data());
  }
}

TEST_F(ChannelTest, arenas_carry_bytes_of_any_number) {
  const auto arena = std::make_shared<Arena>();
  Channel channel(address_, named(arena));
  for (const size_t size : kSizes) {
    const auto bytes = pattern(size);
    const auto from = arena->allocate(size);
    const auto to = arena->allocate(size);
    std::copy(bytes.begin(), bytes.end(), from.begin());
    channel.call("echo", {{}, {{from}}}, {.into = {to}});
    EXPECT_TRUE(equal(to, bytes)) << size;
  }
}

// Tests 70,000 pieces: with and without destinations, inside and outside the arena, empty and of odd sizes.
TEST_F(ChannelTest, many_pieces_keep_their_order) {
  const auto arena = std::make_shared<Arena>();
  Channel channel(address_, named(arena));
  constexpr size_t kPieces = 70000;
  const auto memory = pattern(kPieces + 300);
  const auto shared = arena->allocate(memory.size());
  std::copy(memory.begin(), memory.end(), shared.begin());
  Message request;
  for (size_t i = 0; i < kPieces; ++i) {
    const ConstBytes all = i % 2 == 0 ? ConstBytes(memory) : ConstBytes(shared);
    request.pieces.push_back({all.subspan(i, i % 300)});
  }
  const Message answer = channel.call("echo", request);
  ASSERT_EQ(answer.pieces.size(), kPieces);
  for (size_t i = 0; i < kPieces; ++i)
    ASSERT_TRUE(equal(answer.pieces[i].bytes, request.pieces[i].bytes)) << i;
}

TEST_F(ChannelTest, some_places_may_be_in_the_arena) {
  const auto arena = std::make_shared<Arena>();
  Channel channel(address_, named(arena));
  std::vector<std::byte> heap(3 * kMiB);
  const auto shared = arena->allocate(3 * kMiB);
  const auto bytes = pattern(3 * kMiB);
  channel.call("echo", {{}, {{bytes}, {bytes}, {{}}}}, {.into = {heap, shared, {}}});
  EXPECT_TRUE(equal(heap, bytes));
  EXPECT_TRUE(equal(shared, bytes));
}

TEST_F(ChannelTest, pieces_that_come_are_aligned) {
  Channel channel(address_);
  const Message answer = channel.call("pieces", {{{"sizes", {3, 5, 100000}}}, {}});
  for (const Piece& piece : answer.pieces)
    EXPECT_EQ(reinterpret_cast<uintptr_t>(piece.bytes.data()) % 64, 0U);
}

TEST_F(ChannelTest, an_answer_that_does_not_fit_is_an_error) {
  Channel channel(address_, named());
  std::vector<std::byte> place(10);
  expect_error(ErrorKind::DataLoss, HasSubstr("11 bytes, but 10 are expected"), [&] {
    channel.call("pieces", {{{"sizes", {11}}}, {}}, {.into = {place}});
  });
  expect_error(ErrorKind::DataLoss, HasSubstr("2 pieces were received, but 1"), [&] {
    channel.call("pieces", {{{"sizes", {10, 10}}}, {}}, {.into = {place}});
  });
  EXPECT_NO_THROW(channel.call("pieces", {{{"sizes", {10}}}, {}}, {.into = {place}}));
}

TEST_F(ChannelTest, an_answer_beyond_the_caller_s_memory_is_refused) {
  Channel channel(address_, {.memory = kMiB});
  expect_error(ErrorKind::Overloaded, HasSubstr("1.0 MiB"), [&] {
    channel.call("pieces", {{{"sizes", {2 * kMiB}}}, {}});
  });
}

TEST_F(ChannelTest, errors_of_every_kind_come_as_they_were_thrown) {
  Channel channel(address_, named());
  for (const ErrorKind kind :
       {ErrorKind::InvalidArgument, ErrorKind::PeerLost, ErrorKind::Timeout, ErrorKind::DataLoss,
        ErrorKind::Overloaded, ErrorKind::Unimplemented, ErrorKind::Bug}) {
    expect_error(kind, testing::Eq("it went wrong"), [&] {
      channel.call("fail", {{{"kind", static_cast<int>(kind)}}, {}});
    });
    EXPECT_TRUE(channel.is_connected()) << "the connection is as good as before";
  }
  expect_error(ErrorKind::Bug, HasSubstr("an accident"), [&] { channel.call("throw", {}); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("no method 'x'"), [&] { channel.call("x", {}); });
}

TEST_F(ChannelTest, says_who_calls) {
  Channel channel(address_, {.hello = {{"task", "worker/1"}, {"run", 7}}});
  EXPECT_EQ(channel.call("hello", {}).head, (Json{{"task", "worker/1"}, {"run", 7}}));
}

TEST_F(ChannelTest, an_answer_that_does_not_come_is_a_timeout) {
  Channel channel(address_, named());
  expect_error(ErrorKind::Timeout,
               AllOf(HasSubstr("ps/1 (h:1): no answer to 'wait' (the gradients) at step 118 for 0.3 s"),
                     HasSubstr("--timeout")),
               [&] {
                 channel.call("wait", {},
                              {.timeout = milliseconds(300), .what = "the gradients", .step = 118});
               });
  EXPECT_FALSE(channel.is_connected());
  service_.await_gone(1);
  EXPECT_NO_THROW(channel.call("nothing", {})) << "the next call connects again";
}

TEST_F(ChannelTest, a_server_that_closes_is_lost) {
  Channel channel(address_, named());
  auto failed = std::async(std::launch::async, [&] {
    return error_of(ErrorKind::PeerLost, [&] { channel.call("wait", {}, {.step = 3}); });
  });
  service_.await_waiting(1);
  host_.reset();
  EXPECT_THAT(failed.get(), AllOf(HasSubstr("ps/1 (h:1): the connection ended during 'wait' at step 3")));
  EXPECT_FALSE(channel.is_connected());
}

TEST_F(ChannelTest, a_server_that_closed_between_two_calls_is_lost) {
  Channel channel(address_);
  channel.call("nothing", {});
  host_.reset();
  expect_error(ErrorKind::PeerLost, HasSubstr("the connection ended"), [&] { channel.call("nothing", {}); });
}

TEST(Channel, a_host_ends_while_callers_come_and_go) {
  for (int round = 0; round < 20; ++round) {
    TestService service;
    auto host = std::make_unique<Host>(HostOptions{}, service);
    std::vector<std::thread> callers;
    for (int i = 0; i < 4; ++i)
      callers.emplace_back([address = address_of(*host)] {
        try {
          Channel channel(address);
          while (true) channel.call("nothing", {}, {.timeout = milliseconds(1000)});
        } catch (const Error& error) {
          EXPECT_TRUE(error.kind() == ErrorKind::PeerLost || error.kind() == ErrorKind::Timeout)
              << error.what();
        }
      });
    service.await_served(10);
    host.reset();
    for (std::thread& caller : callers) caller.join();
  }
}

TEST_F(ChannelTest, many_callers_are_served_beside_each_other) {
  std::vector<std::thread> callers;
  for (size_t i = 0; i < 8; ++i)
    callers.emplace_back([&, i] {
      Channel channel(address_);
      for (size_t call = 0; call < 50; ++call) {
        const auto bytes = pattern(call * 997 * i, i);
        EXPECT_TRUE(equal(channel.call("echo", {{}, {{bytes}}}).pieces.at(0).bytes, bytes));
      }
    });
  for (std::thread& caller : callers) caller.join();
}

TEST_F(ChannelTest, a_waiting_call_does_not_delay_others) {
  Channel waiting(address_);
  auto done = std::async(std::launch::async, [&] { waiting.call("wait", {}); });
  service_.await_waiting(1);
  Channel other(address_);
  EXPECT_NO_THROW(other.call("nothing", {}));
  service_.release();
  done.get();
}

TEST_F(ChannelTest, a_second_thread_in_one_channel_is_refused_and_the_first_goes_on) {
  Channel channel(address_, named());
  auto done = std::async(std::launch::async, [&] { channel.call("wait", {}); });
  service_.await_waiting(1);
  expect_error(ErrorKind::Bug, HasSubstr("ps/1 (h:1): called by two threads at once"),
               [&] { channel.call("nothing", {}); });
  service_.release();
  done.get();
  EXPECT_NO_THROW(channel.call("nothing", {}));
}

TEST_F(ChannelTest, a_caller_that_goes_is_told_of_while_its_request_is_served) {
  auto channel = std::make_unique<Channel>(address_);
  expect_error(ErrorKind::Timeout, HasSubstr("wait"),
               [&] { channel->call("wait", {}, {.timeout = milliseconds(100)}); });
  service_.await_gone(1);
}

TEST_F(ChannelTest, a_call_that_is_given_up_ends_at_once) {
  std::atomic<bool> enough = false;
  auto waiting = std::async(std::launch::async, [&] {
    Channel channel(address_);
    expect_error(ErrorKind::Timeout, HasSubstr("wait"),
                 [&] { channel.call("wait", {}, {.give_up = [&] { return enough.load(); }}); });
    EXPECT_FALSE(channel.is_connected());
  });
  service_.await_waiting(1);
  enough = true;
  waiting.get();
  service_.await_gone(1);
}

// As when there is no memory for the answer.
TEST_F(ChannelTest, an_error_of_the_program_during_a_call_closes_the_connection) {
  Channel channel(address_);
  const auto interrupt = []() -> bool { throw std::runtime_error("enough"); };
  EXPECT_THROW(channel.call("wait", {{}, {{pattern(kMiB)}}}, {.give_up = interrupt}), std::runtime_error);
  EXPECT_FALSE(channel.is_connected());
  service_.await_gone(1);
  EXPECT_NO_THROW(channel.call("nothing", {}));
}

TEST_F(ChannelTest, a_caller_that_goes_is_told_of_while_nothing_is_served) {
  std::make_unique<Channel>(address_)->call("nothing", {});
  service_.await_gone(1);
}

TEST_F(ChannelTest, pieces_that_a_service_keeps_stay_valid) {
  const auto arena = std::make_shared<Arena>();
  Channel channel(address_, named(arena));
  channel.call("keep", {{}, {{pattern(kMiB)}, {arena->allocate(kMiB)}}});
  host_.reset();
  service_.release_kept();
}

TEST_F(ChannelTest, a_method_or_head_that_is_too_long_is_refused_before_it_is_sent) {
  Channel channel(address_, named());
  expect_error(ErrorKind::InvalidArgument, HasSubstr("method"),
               [&] { channel.call(std::string(300, 'x'), {}); });
  EXPECT_NO_THROW(channel.call("nothing", {}));
}

TEST(Channel, an_address_has_a_port) {
  expect_error(ErrorKind::InvalidArgument, HasSubstr("'nowhere'"), [] { Channel channel("nowhere"); });
}

TEST(Channel, nobody_there_is_a_timeout_that_says_what_was_in_the_way) {
  const std::string address = "127.0.0.1:" + std::to_string(free_ports(1)[0]);
  Channel channel(address, {.who = "ps/0 (" + address + ")"});
  expect_error(ErrorKind::Timeout,
               AllOf(HasSubstr("ps/0 (" + address + "): not reachable for "), HasSubstr("refused")),
               [&] { channel.connect(milliseconds(300)); });
  Channel nameless("no.such.host.invalid:1");
  expect_error(ErrorKind::Timeout, AllOf(HasSubstr("no.such.host.invalid")),
               [&] { nameless.connect(milliseconds(300)); });
}

TEST(Channel, counts_the_time_without_a_connection_from_the_first_attempt_on) {
  Channel channel("127.0.0.1:" + std::to_string(free_ports(1)[0]));
  const auto counted = [&] {
    try {
      channel.connect(milliseconds(200));
    } catch (const Error& error) {
      const std::string text = error.what();
      const std::string before = "not reachable for ";
      return std::stod(text.substr(text.find(before) + before.size()));
    }
    return 0.0;
  };
  const double first = counted();
  EXPECT_GE(first, 0.2);
  EXPECT_GE(counted(), first + 0.1);
}

TEST(Channel, tasks_start_in_any_order) {
  const std::string address = "127.0.0.1:" + std::to_string(free_ports(1)[0]);
  Channel channel(address);
  expect_error(ErrorKind::Timeout, HasSubstr("refused"), [&] { channel.connect(milliseconds(50)); });
  auto connected = std::async(std::launch::async, [&] { channel.connect(kEventually); });
  TestService service;
  const Host host({.address = address}, service);
  connected.get();
  EXPECT_TRUE(channel.is_connected());
}

TEST(Channel, comes_back_to_a_server_that_comes_back) {
  TestService first;
  auto host = std::make_unique<Host>(HostOptions{}, first);
  const std::string address = address_of(*host);
  Channel channel(address);
  channel.call("nothing", {});
  host.reset();
  expect_error(ErrorKind::PeerLost, HasSubstr("ended"), [&] { channel.call("nothing", {}); });
  TestService second;
  const Host again({.address = address}, second);
  EXPECT_NO_THROW(channel.call("nothing", {}));
}

// --- Servers that send wrong data: a listener without a host, whose stream the test controls.

class LyingServer {
 public:
  explicit LyingServer(std::function<void(Stream&)> talk)
      : listener_("127.0.0.1:0"), thread_([this, talk = std::move(talk)] {
          try {
            FileDescriptor socket;
            while (!ends_ && socket.get() < 0) socket = listener_.accept(milliseconds(100));
            Stream stream(std::move(socket));
            exchange_versions(stream, {.deadline = eventually()});
            talk(stream);
          } catch (const Error&) {
            // The caller has closed the connection.
          }
        }) {}
  ~LyingServer() {
    ends_ = true;
    thread_.join();
  }
  LyingServer(const LyingServer&) = delete;
  LyingServer& operator=(const LyingServer&) = delete;
  std::string address() const { return "127.0.0.1:" + std::to_string(listener_.port()); }

 private:
  const net::Listener listener_;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

// Completes the handshake, and answers the first request with these bytes.
std::function<void(Stream&)> answer_with(std::string bytes) {
  return [bytes = std::move(bytes)](Stream& stream) {
    const TimeLimits soon{.deadline = eventually()};
    Wire wire(stream);
    greet_caller(wire, "", soon);
    wire.receive({}, {}, soon, soon);
    wire.finish();
    say(stream, bytes);
    stream.await_message(soon);
  };
}

template <class Matcher>
void expect_lie_refused(const std::string& bytes, ErrorKind kind, const Matcher& text,
                        const CallOptions& options = {}) {
  const LyingServer server(answer_with(bytes));
  Channel channel(server.address(), {.who = "ps/0"});
  expect_error(kind, AllOf(HasSubstr("ps/0"), text), [&] { channel.call("x", {}, options); });
  EXPECT_FALSE(channel.is_connected());
}

Frame answer_frame(std::vector<PieceHeader> pieces) {
  Frame frame;
  frame.kind = FrameKind::Answer;
  frame.head = "null";
  frame.pieces = std::move(pieces);
  return frame;
}

// Begins the handshake with this challenge, and ends it with what `welcome` makes of the caller's proof.
std::function<void(Stream&)> greet_with(const std::string& challenge,
                                        std::function<std::string(const std::string&)> welcome) {
  return [challenge, welcome = std::move(welcome)](Stream& stream) {
    const TimeLimits soon{.deadline = Clock::now() + kEventually};
    Wire wire(stream);
    Frame frame;
    frame.kind = FrameKind::Challenge;
    frame.head = challenge;
    wire.send(frame, {}, soon);
    const std::string proof = wire.receive({}, {}, soon, soon).head;
    wire.finish();
    frame.kind = FrameKind::Welcome;
    frame.head = welcome(proof);
    wire.send(frame, {}, soon);
    stream.await_message(soon);
  };
}

TEST(Channel, servers_that_do_not_know_the_secret_are_refused) {
  const auto refused = [](const std::string& challenge, auto welcome, ErrorKind kind, const char* text) {
    const LyingServer server(greet_with(challenge, welcome));
    net::Credentials credentials;
    credentials.secret = "secret";
    Channel channel(server.address(), {.credentials = credentials, .who = "ps/0"});
    expect_error(kind, AllOf(HasSubstr("ps/0"), HasSubstr(text)), [&] { channel.connect(kEventually); });
  };
  const auto guess = [](const std::string&) { return fmt::format("{:064}arena", 0); };
  const auto reflect = [](const std::string& said) { return said.substr(kNonceSize, kProofSize); };
  const auto cut = [](const std::string& said) { return said.substr(0, kProofSize - 1); };
  const std::string nonce = random_key();
  refused(nonce, guess, ErrorKind::InvalidArgument, "different secrets");
  refused(nonce, reflect, ErrorKind::InvalidArgument, "different secrets");
  refused(nonce, cut, ErrorKind::DataLoss, "a handshake that is cut");
  // The proof of such a challenge could be used elsewhere.
  refused(fmt::format("{0} {0}", nonce), guess, ErrorKind::DataLoss, "a challenge of 65 bytes");
  refused("", guess, ErrorKind::DataLoss, "a handshake that is cut");
}

TEST(Channel, answers_that_are_none_are_refused) {
  expect_lie_refused(std::string(100, 'x'), ErrorKind::DataLoss, HasSubstr("not a frame of Tutti"));
  Frame request = answer_frame({});
  request.kind = FrameKind::Request;
  expect_lie_refused(encode(request), ErrorKind::DataLoss, HasSubstr("an unexpected kind"));
  Frame failure = answer_frame({});
  failure.kind = FrameKind::Failure;
  expect_lie_refused(encode(failure), ErrorKind::DataLoss, HasSubstr("without an error text"));
  expect_lie_refused(encode(answer_frame({})) + "x", ErrorKind::DataLoss, HasSubstr("belong to no message"));
}

TEST(Channel, answers_that_claim_too_much_are_refused) {
  for (const uint64_t size : {uint64_t{1} << 60, ~uint64_t{0}, uint64_t{1} << 40})
    expect_lie_refused(encode(answer_frame({{size}})), ErrorKind::Overloaded, HasSubstr("larger than"));
}

TEST(Channel, answers_that_were_put_elsewhere_are_refused) {
  std::vector<std::byte> place(10);
  expect_lie_refused(encode(answer_frame({{10, 4096}})), ErrorKind::DataLoss, HasSubstr("was not requested"),
                     {.into = {place}});
  expect_lie_refused(encode(answer_frame({{10, 4096}})), ErrorKind::DataLoss, HasSubstr(""));
}

TEST(Channel, an_answer_without_end_is_a_timeout) {
  expect_lie_refused(encode(answer_frame({{1000}})) + "x", ErrorKind::Timeout, HasSubstr("no answer"),
                     {.timeout = milliseconds(300)});
}

}  // namespace
}  // namespace tutti::rpc

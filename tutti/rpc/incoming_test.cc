// Tests services that take the pieces of a request while others are on their way.
#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/test_errors.h"
#include "tutti/rpc/channel.h"
#include "tutti/rpc/handshake.h"
#include "tutti/rpc/host.h"
#include "tutti/rpc/test_service.h"
#include "tutti/rpc/wire.h"

namespace tutti::rpc {
namespace {

using testing::HasSubstr;

class IncomingPieces : public testing::Test {
 protected:
  ~IncomingPieces() override {
    Channel channel(address_);
    EXPECT_NO_THROW(channel.call("nothing", {})) << "the server lives on";
  }
  std::unique_ptr<Stream> acquaintance() const { return acquaintance_of(address_); }

  TestService service_;
  const Host host_{{.memory = 8 * kMiB}, service_};
  const std::string address_ = address_of(host_);
};

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string frame_with(const std::vector<PieceHeader>& pieces) {
  Frame frame;
  frame.method = "take";
  frame.pieces = pieces;
  return encode(frame);
}

Message request_with(const std::vector<std::byte>& bytes, size_t pieces, const Json& head = Json::object()) {
  Message message{head, {}};
  for (size_t i = 0; i < pieces; ++i) message.pieces.push_back({bytes});
  return message;
}

TEST_F(IncomingPieces, the_first_piece_is_taken_before_the_next_is_sent) {
  const auto stream = acquaintance();
  const std::string first = text_of(pattern(1000));
  say(*stream, frame_with({{1000}, {0}, {70}}) + first);
  service_.await_taken(2);
  say(*stream, text_of(pattern(70)));
  Wire wire(*stream);
  const Frame answer = wire.receive({}, {}, {.deadline = eventually()}, {.deadline = eventually()});
  EXPECT_EQ(decode_json(answer.head).at("sizes"), Json({1000, 0, 70}));
}

TEST_F(IncomingPieces, more_than_the_host_s_memory_goes_through_it) {
  Channel channel(address_);
  constexpr size_t kPieces = 40;
  const Message answer = channel.call("take", request_with(pattern(kMiB), kPieces));
  EXPECT_EQ(answer.head.at("sizes").size(), kPieces);
}

TEST_F(IncomingPieces, pieces_that_are_not_taken_are_dropped) {
  Channel channel(address_);
  const auto bytes = pattern(3 * kMiB);
  for (const size_t taken : {0, 1, 3}) {
    const Message answer = channel.call("take", request_with(bytes, 3, {{"pieces", taken}}));
    EXPECT_EQ(answer.head.at("sizes").size(), taken);
    expect_error(ErrorKind::InvalidArgument, HasSubstr("it went wrong"), [&] {
      channel.call("take", request_with(bytes, 3, {{"pieces", taken}, {"fail", true}}));
    });
    EXPECT_TRUE(channel.is_connected());
  }
  EXPECT_EQ(channel.call("echo", request_with(bytes, 1)).pieces.size(), 1U);
}

TEST_F(IncomingPieces, a_caller_that_still_has_much_to_send_hears_of_a_failure_at_once) {
  Channel channel(address_);
  const auto bytes = pattern(kMiB);
  for (const ErrorKind kind : {ErrorKind::InvalidArgument, ErrorKind::Timeout, ErrorKind::PeerLost}) {
    const Json head = {{"pieces", 1}, {"fail", true}, {"kind", static_cast<int>(kind)}};
    expect_error(kind, HasSubstr("it went wrong"),
                 [&] { channel.call("take", request_with(bytes, 200, head)); });
    EXPECT_FALSE(channel.is_connected());
  }
}

TEST_F(IncomingPieces, whole_requests_that_take_all_memory_delay_them_not) {
  const auto stream = acquaintance();
  Frame frame;
  frame.method = "echo";
  frame.pieces = {{8 * kMiB}};
  say(*stream, encode(frame) + text_of(pattern(1000)));
  Channel channel(address_);
  EXPECT_EQ(channel.call("take", request_with(pattern(kMiB), 3)).head.at("sizes").size(), 3U);
}

TEST_F(IncomingPieces, a_request_that_is_here_needs_no_waiting) {
  auto arena = std::make_shared<Arena>();
  const auto shared = arena->allocate(kMiB);
  Channel channel(address_, {.arena = arena});
  EXPECT_EQ(channel.call("take", {Json::object(), {{shared}, {shared}}}).head.at("here"), 2);
  EXPECT_EQ(channel.call("take", {}).head.at("here"), 0);
}

TEST_F(IncomingPieces, some_pieces_may_be_in_shared_memory) {
  auto arena = std::make_shared<Arena>();
  const auto bytes = pattern(kMiB);
  const auto shared = arena->allocate(bytes.size());
  std::copy(bytes.begin(), bytes.end(), shared.begin());
  Channel channel(address_, {.arena = arena});
  const Message answer = channel.call("take", {Json::object(), {{shared}, {bytes}, {shared}}});
  EXPECT_EQ(answer.head.at("sizes"), Json({kMiB, kMiB, kMiB}));
}

TEST_F(IncomingPieces, a_caller_that_leaves_in_the_middle_wakes_the_service) {
  auto stream = acquaintance();
  say(*stream, frame_with({{1000}, {kMiB}}) + text_of(pattern(1000)));
  service_.await_taken(1);
  stream.reset();
  service_.await_not_taken(1);
  service_.await_gone(1);
}

TEST_F(IncomingPieces, a_piece_that_can_never_fit_ends_the_connection) {
  const auto stream = acquaintance();
  say(*stream, frame_with({{1000}, {uint64_t{3} << 30}}) + text_of(pattern(1000)));
  service_.await_not_taken(1);
  expect_error(ErrorKind::Overloaded, HasSubstr("larger than the limit"),
               [&] { receive_to_the_end(*stream); });
}

TEST_F(IncomingPieces, bytes_behind_the_last_piece_end_the_connection) {
  const auto stream = acquaintance();
  say(*stream, frame_with({{1000}}) + text_of(pattern(1000)) + "x");
  expect_error(ErrorKind::DataLoss, HasSubstr("belong to no message"), [&] { receive_to_the_end(*stream); });
}

TEST_F(IncomingPieces, a_caller_may_give_up_while_the_service_takes_nothing) {
  Channel channel(address_);
  const std::vector<std::byte> bytes(64 * kMiB);
  std::atomic<bool> waits = false;
  std::thread watching([&] {
    service_.await_waiting(1);
    waits = true;
  });
  CallOptions options;
  options.give_up = [&] { return waits.load(); };
  expect_error(ErrorKind::Timeout, HasSubstr("stopped waiting for the answer"),
               [&] { channel.call("stall", request_with(bytes, 1), options); });
  watching.join();
  EXPECT_FALSE(channel.is_connected());
}

TEST_F(IncomingPieces, a_call_that_nobody_takes_ends_in_time) {
  Channel channel(address_);
  const std::vector<std::byte> bytes(64 * kMiB);
  expect_error(ErrorKind::Timeout, HasSubstr("no answer to 'stall'"), [&] {
    channel.call("stall", request_with(bytes, 1), {.timeout = std::chrono::milliseconds(300)});
  });
  service_.release();
}

}  // namespace
}  // namespace tutti::rpc

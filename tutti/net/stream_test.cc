#include "tutti/net/stream.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/file.h"
#include "tutti/base/test_errors.h"
#include "tutti/net/heart.h"
#include "tutti/net/listener.h"
#include "tutti/net/test_certificates.h"

namespace tutti::net {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr size_t kMiB = size_t{1} << 20;

TimeLimits in_time() { return {.deadline = Clock::now() + std::chrono::seconds(60)}; }

// Two ends of a connection in this process, with or without TLS.
struct Ends {
  std::unique_ptr<Stream> caller;
  std::unique_ptr<Stream> listener;
};

Ends connect(const Tls* caller_tls = nullptr, const Tls* listener_tls = nullptr,
             milliseconds silence = kSilence) {
  const Listener listener("127.0.0.1:0");
  auto accepted = std::async(std::launch::async, [&] {
    FileDescriptor socket;
    while (socket.get() < 0) socket = listener.accept(milliseconds(1000));
    auto stream = std::make_unique<Stream>(std::move(socket), silence);
    if (listener_tls != nullptr) {
      EXPECT_TRUE(stream->accept_tls(*listener_tls, in_time()));
    }
    return stream;
  });
  Ends ends;
  ends.caller = open_stream("127.0.0.1:" + std::to_string(listener.port()), caller_tls, in_time().deadline);
  ends.listener = accepted.get();
  return ends;
}

bool send(Stream& stream, std::string_view text) {
  const ConstBytes bytes = as_bytes(text);
  return stream.write({&bytes, 1}, in_time());
}

std::string receive(Stream& stream, size_t size) {
  std::string text(size, '?');
  stream.await_message(in_time());
  stream.read(std::as_writable_bytes(std::span(text)), in_time());
  stream.end_message();
  return text;
}

std::string text_of(size_t size) {
  std::string text(size, '\0');
  for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>(1 + (i * 7 + (i >> 9)) % 255);
  return text;
}

enum class Protection { None, Checksums, Tls };

class Streams : public testing::TestWithParam<Protection> {
 protected:
  Ends make() const {
    if (GetParam() == Protection::Tls) return connect(caller_.get(), listener_.get());
    Ends ends = connect();
    if (GetParam() == Protection::Checksums) {
      ends.caller->begin_checksums();
      ends.listener->begin_checksums();
    }
    return ends;
  }

 private:
  const Certificates certificates_;
  const std::shared_ptr<const Tls> caller_ =
      Tls::make({.authority = certificates_.text("ca.pem")}, Tls::Side::Caller);
  const std::shared_ptr<const Tls> listener_ =
      Tls::make({.certificate = certificates_.text("server.pem"), .key = certificates_.text("server.key")},
                Tls::Side::Listener);
};

std::string name_of(const testing::TestParamInfo<Protection>& info) {
  return std::array{"plain", "with_checksums", "encrypted"}.at(static_cast<size_t>(info.param));
}
INSTANTIATE_TEST_SUITE_P(Ways, Streams,
                         testing::Values(Protection::None, Protection::Checksums, Protection::Tls), name_of);

TEST_P(Streams, messages_in_parts_of_any_size_go_both_ways) {
  const Ends ends = make();
  const std::string text = text_of(8 * kMiB);
  std::vector<ConstBytes> parts;
  size_t total = 0;
  for (size_t part = 0; total < text.size(); ++part) {
    const std::array<size_t, 8> sizes = {1, 0, 16383, 16384, 16385, 70000, 3, 0};
    const size_t size = std::min(sizes[part % sizes.size()], text.size() - total);
    parts.push_back(as_bytes(std::string_view(text).substr(total, size)));
    total += size;
  }
  for (const bool back : {false, true}) {
    Stream& from = back ? *ends.listener : *ends.caller;
    Stream& to = back ? *ends.caller : *ends.listener;
    auto sent = std::async(std::launch::async, [&] { return from.write(parts, in_time()); });
    EXPECT_EQ(receive(to, text.size()), text);
    EXPECT_TRUE(sent.get());
    EXPECT_FALSE(to.has_more());
  }
}

// Both ends beat as fast as they can, from other threads.
TEST_P(Streams, beats_stay_between_the_messages) {
  const Ends ends = make();
  std::atomic<bool> ends_beating = false;
  const auto beat = [&](Stream& stream) {
    return std::thread([&] {
      while (!ends_beating) {
        stream.beat();
        std::this_thread::yield();
      }
    });
  };
  std::vector<std::thread> hearts;
  hearts.push_back(beat(*ends.caller));
  hearts.push_back(beat(*ends.listener));
  auto answering = std::async(std::launch::async, [&] {
    for (size_t round = 0; round < 100; ++round)
      EXPECT_TRUE(send(*ends.listener, receive(*ends.listener, 1 + round * 997)));
  });
  for (size_t round = 0; round < 100; ++round) {
    const std::string text = text_of(1 + round * 997);
    EXPECT_TRUE(send(*ends.caller, text));
    EXPECT_EQ(receive(*ends.caller, text.size()), text);
  }
  answering.get();
  ends_beating = true;
  for (std::thread& heart : hearts) heart.join();
}

TEST_P(Streams, a_message_that_the_other_end_refuses_is_left_incomplete) {
  const Ends ends = make();
  auto sent = std::async(std::launch::async, [&] { return send(*ends.caller, text_of(64 * kMiB)); });
  ends.listener->await_message(in_time());
  EXPECT_TRUE(send(*ends.listener, "no"));
  EXPECT_FALSE(sent.get());
  EXPECT_EQ(receive(*ends.caller, 2), "no");
}

TEST_P(Streams, the_last_words_arrive_although_the_other_end_still_sends) {
  const Ends ends = make();
  auto refused = std::async(std::launch::async, [&] {
    EXPECT_TRUE(send(*ends.listener, "no"));
    ends.listener->close_gently(in_time().deadline);
  });
  send(*ends.caller, text_of(64 * kMiB));  // complete or not
  EXPECT_EQ(receive(*ends.caller, 2), "no");
  ends.caller->hang_up();
  refused.get();
}

TEST_P(Streams, an_end_is_noticed_by_who_waits_and_by_who_looks) {
  Ends ends = make();
  EXPECT_FALSE(ends.listener->ended());
  auto waiting = std::async(std::launch::async, [&] {
    return error_of(ErrorKind::PeerLost, [&] { ends.listener->await_message(in_time()); });
  });
  ends.caller.reset();
  waiting.get();
  EXPECT_TRUE(ends.listener->ended());
}

TEST_P(Streams, that_are_hung_up_wake_who_waits) {
  const Ends ends = make();
  auto waiting = std::async(std::launch::async, [&] {
    expect_error(ErrorKind::PeerLost, HasSubstr(""), [&] { ends.caller->await_message(in_time()); });
  });
  ends.caller->hang_up();
  waiting.get();
}

TEST_P(Streams, waits_end_at_their_deadline) {
  const Ends ends = make();
  const auto soon = [] { return TimeLimits{.deadline = Clock::now() + milliseconds(50)}; };
  expect_error(ErrorKind::Timeout, HasSubstr("in time"), [&] { ends.caller->await_message(soon()); });
  expect_error(ErrorKind::Timeout, HasSubstr("in time"), [&] {
    const std::string text = text_of(64 * kMiB);
    const ConstBytes bytes = as_bytes(text);
    ends.caller->write({&bytes, 1}, soon());
  });
}

// What was read ahead before the checksums begin belongs to the first message with one.
TEST(Stream, has_checksums_from_the_first_message_after_the_last_without) {
  const Ends ends = connect();
  EXPECT_TRUE(send(*ends.caller, "plain"));
  ends.caller->begin_checksums();
  EXPECT_TRUE(send(*ends.caller, "checked"));
  EXPECT_EQ(receive(*ends.listener, 5), "plain");
  ends.listener->begin_checksums();
  EXPECT_EQ(receive(*ends.listener, 7), "checked");
}

TEST(Stream, knows_that_no_network_is_between_its_ends) {
  const Ends ends = connect();
  EXPECT_TRUE(ends.caller->is_within_host());
  EXPECT_TRUE(ends.listener->is_within_host());
}

TEST(Stream, that_is_silent_is_lost_but_not_if_it_beats) {
  const Ends silent = connect(nullptr, nullptr, milliseconds(300));
  expect_error(ErrorKind::PeerLost, HasSubstr("nothing was heard from it for 0.3 s"),
               [&] { silent.listener->await_message(in_time()); });

  const Ends lively = connect(nullptr, nullptr, milliseconds(5000));
  const Beating beating(*lively.caller);
  expect_error(ErrorKind::Timeout, HasSubstr("in time"),
               [&] { lively.listener->await_message({.deadline = Clock::now() + milliseconds(6000)}); });
}

TEST(Stream, that_is_silent_is_lost_also_to_who_only_looks) {
  const Ends ends = connect(nullptr, nullptr, milliseconds(300));
  const auto deadline = in_time().deadline;
  while (!ends.listener->ended()) {
    ASSERT_LT(Clock::now(), deadline);
    std::this_thread::sleep_for(milliseconds(10));
  }
}

TEST(Heart, of_the_process_ends_with_its_last_connection) {
  const std::weak_ptr<Heart> heart = [] {
    const Ends ends = connect();
    const Beating one(*ends.caller);
    const Beating other(*ends.listener);
    return std::weak_ptr<Heart>(Heart::of_process());
  }();
  EXPECT_TRUE(heart.expired());
}

TEST(Tls, without_certificates_is_none) {
  EXPECT_EQ(Tls::make({}, Tls::Side::Caller), nullptr);
  EXPECT_EQ(Tls::make({}, Tls::Side::Listener), nullptr);
}

}  // namespace
}  // namespace tutti::net

#include "tutti/net/records.h"

#include <algorithm>
#include <array>
#include <fcntl.h>
#include <random>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/file.h"
#include "tutti/base/hashes.h"
#include "tutti/base/test_errors.h"

namespace tutti::net::records_test {
namespace {

using testing::HasSubstr;

constexpr size_t kHead = 12;

// Two connected, non-blocking sockets.
struct Pair {
  explicit Pair(int buffer = 1 << 20) {
    std::array<int, 2> both{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, both.data()), 0);
    one = FileDescriptor(both[0]);
    other = FileDescriptor(both[1]);
    setsockopt(one.get(), SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
  }
  FileDescriptor one;
  FileDescriptor other;
};

std::string random_text(size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::string text(size, '\0');
  for (char& byte : text) byte = static_cast<char>(random());
  return text;
}

// Returns what is on the wire after these messages, each of which fits into a record.
std::string wire_of(const std::vector<std::string>& messages) {
  const Pair pair;
  Records records(pair.one.get(), {});
  for (const std::string& message : messages) {
    const ConstBytes bytes = as_bytes(message);
    EXPECT_EQ(records.send({&bytes, 1}), message.size());
  }
  std::string wire(1 << 20, '\0');
  wire.resize(static_cast<size_t>(recv(pair.other.get(), wire.data(), wire.size(), 0)));
  return wire;
}

// Returns what is given out of these bytes on the wire, up to the first error or to the end.
std::string given_out(std::string_view wire, size_t at_a_time = 1 << 20, bool closes = false) {
  Pair pair;
  Records records(pair.other.get(), {});
  EXPECT_EQ(send(pair.one.get(), wire.data(), wire.size(), 0), static_cast<ssize_t>(wire.size()));
  if (closes) pair.one = FileDescriptor();
  std::string given;
  while (true) {
    std::string place(at_a_time, '\0');
    const Bytes bytes = std::as_writable_bytes(std::span(place));
    const size_t size = records.receive({&bytes, 1});
    if (size == 0) return given;
    given += place.substr(0, size);
  }
}

std::string number_at(const std::string& wire, size_t offset) { return wire.substr(offset, 4); }
std::string as_text(uint32_t number) { return {reinterpret_cast<const char*>(&number), sizeof number}; }

// The format, so that another version or program can be written from its description.
TEST(Records, have_a_size_and_checksums_that_continue) {
  const std::string wire = wire_of({"first", "the second"});
  ASSERT_EQ(wire.size(), kHead + 5 + kHead + 10);
  const uint32_t first = crc32c(as_bytes("first"));
  EXPECT_EQ(number_at(wire, 0), as_text(5));
  EXPECT_EQ(number_at(wire, 4), as_text(first));
  EXPECT_EQ(number_at(wire, 8), as_text(crc32c(as_bytes(wire.substr(0, 8)))));
  EXPECT_EQ(wire.substr(kHead, 5), "first");
  const size_t next = kHead + 5;
  EXPECT_EQ(number_at(wire, next), as_text(10));
  EXPECT_EQ(number_at(wire, next + 4), as_text(crc32c(as_bytes("firstthe second"))));
  EXPECT_EQ(number_at(wire, next + 8), as_text(crc32c(as_bytes(wire.substr(next, 8)), first)));
  EXPECT_EQ(given_out(wire), "firstthe second");
  EXPECT_EQ(given_out(wire, 1), "firstthe second");
}

TEST(Records, find_every_changed_bit_and_give_nothing_out_of_its_record) {
  const std::string text = random_text(37, 1);
  const std::string wire = wire_of({"begin", text, "end"});
  for (size_t bit = 8 * (kHead + 5); bit < 8 * wire.size(); ++bit) {
    std::string changed = wire;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    const bool in_text = bit / 8 < 2 * kHead + 5 + text.size();
    std::string given;
    expect_error(ErrorKind::DataLoss, HasSubstr("was changed on its way"), [&] {
      Pair pair;
      Records records(pair.other.get(), {});
      EXPECT_EQ(send(pair.one.get(), changed.data(), changed.size(), 0),
                static_cast<ssize_t>(changed.size()));
      while (true) {
        std::string place(100, '\0');
        const Bytes bytes = std::as_writable_bytes(std::span(place));
        given += place.substr(0, records.receive({&bytes, 1}));
      }
    });
    EXPECT_EQ(given, in_text ? "begin" : "begin" + text) << bit;
  }
}

// A record of which all is received where the caller wants it, bit by bit.
TEST(Records, find_a_changed_bit_in_a_large_record) {
  const std::string text = random_text(60000, 2);
  const std::string wire = wire_of({text});
  for (const size_t at : {kHead, kHead + 4096, kHead + 30001, wire.size() - 1}) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = wire;
      changed[at] = static_cast<char>(changed[at] ^ (1 << bit));
      for (const size_t at_a_time : {size_t{1} << 20, size_t{70}})
        expect_error(ErrorKind::DataLoss, HasSubstr("was changed on its way"),
                     [&] { given_out(changed, at_a_time); });
    }
  }
}

TEST(Records, find_records_that_are_missing_repeated_or_out_of_place) {
  const std::string wire = wire_of({"aaaa", "aaaa", "bbbb"});
  const size_t size = kHead + 4;
  const auto record = [&](size_t i) { return wire.substr(i * size, size); };
  for (const std::string& changed : {record(1) + record(2), record(0) + record(2), record(0) + record(0),
                                     record(0) + record(2) + record(1), wire + record(2)})
    expect_error(ErrorKind::DataLoss, HasSubstr("was changed on its way"), [&] { given_out(changed); });
  EXPECT_EQ(given_out(record(0) + record(1)), "aaaaaaaa");
}

TEST(Records, of_which_the_rest_does_not_come_are_not_given_out) {
  const std::string wire = wire_of({"begin", random_text(20000, 3)});
  for (const size_t size :
       {size_t{0}, size_t{5}, kHead + 4, kHead + 5, kHead + 12, kHead + 40, wire.size() - 1}) {
    const std::string expected = size < kHead + 5 ? "" : "begin";
    EXPECT_EQ(given_out(wire.substr(0, size)), expected) << size;
    expect_error(ErrorKind::PeerLost, HasSubstr("closed the connection"),
                 [&] { given_out(wire.substr(0, size), 1 << 20, true); });
  }
}

TEST(Records, begin_with_what_was_received_before) {
  const std::string wire = wire_of({"begin", "end"});
  const Pair pair;
  Records records(pair.other.get(), as_bytes(std::string_view(wire).substr(0, 20)));
  EXPECT_TRUE(records.has_pending());
  ASSERT_EQ(send(pair.one.get(), wire.data() + 20, wire.size() - 20, 0),
            static_cast<ssize_t>(wire.size() - 20));
  std::string place(8, '\0');
  const Bytes bytes = std::as_writable_bytes(std::span(place));
  EXPECT_EQ(records.receive({&bytes, 1}), 8U);
  EXPECT_EQ(place, "beginend");
  EXPECT_FALSE(records.has_pending());
}

TEST(Records, send_nothing_for_nothing) {
  const Pair pair;
  Records records(pair.one.get(), {});
  const std::array<ConstBytes, 2> nothing{};
  EXPECT_EQ(records.send(nothing), 0U);
  EXPECT_EQ(records.send({}), 0U);
  std::byte byte{};
  EXPECT_LT(recv(pair.other.get(), &byte, 1, MSG_DONTWAIT), 0);
}

std::vector<std::string> cut(const std::string& text, const std::vector<size_t>& sizes) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin < text.size(); begin += parts.back().size())
    parts.push_back(text.substr(begin, sizes[parts.size() % sizes.size()]));
  return parts;
}

// The socket takes a few bytes at a time, so that records are sent and received in pieces.
TEST(Records, move_parts_of_any_size_through_a_narrow_socket) {
  const std::string text = random_text(3000001, 4);
  const std::vector<std::vector<size_t>> ways = {{size_t{1} << 20}, {1, 16384, 3}, {65536, 65535, 65537, 7},
                                                 {100000, 1},       {16385},       {40, 70000, 2000}};
  for (const auto& out : ways) {
    for (const auto& in : ways) {
      const Pair pair(20000);
      Records sender(pair.one.get(), {});
      Records receiver(pair.other.get(), {});
      const std::vector<std::string> sent = cut(text, out);
      std::vector<std::string> received = cut(std::string(text.size(), '\0'), in);
      std::vector<ConstBytes> parts;
      for (const std::string& part : sent) parts.push_back(as_bytes(part));
      std::vector<Bytes> places;
      for (std::string& place : received) places.push_back(std::as_writable_bytes(std::span(place)));
      const auto advance = [](auto& ranges, size_t moved) {
        while (!ranges.empty() && moved >= ranges.front().size()) {
          moved -= ranges.front().size();
          ranges.erase(ranges.begin());
        }
        if (moved > 0) ranges.front() = ranges.front().subspan(moved);
      };
      while (!places.empty()) {
        advance(parts,
                sender.send(std::span<const ConstBytes>(parts).first(std::min<size_t>(parts.size(), 9))));
        advance(places,
                receiver.receive(std::span<const Bytes>(places).first(std::min<size_t>(places.size(), 9))));
      }
      std::string joined;
      for (const std::string& part : received) joined += part;
      EXPECT_TRUE(joined == text);
      EXPECT_FALSE(receiver.has_pending());
    }
  }
}

}  // namespace
}  // namespace tutti::net::records_test

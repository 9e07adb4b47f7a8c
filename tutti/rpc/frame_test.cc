#include "tutti/rpc/frame.h"

#include <cstring>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tutti/base/file.h"
#include "tutti/base/test_errors.h"

namespace tutti::rpc::frame_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Frame decode(std::span<const std::byte> bytes, const FrameLimits& limits = {}) {
  if (bytes.size() < kPrefixSize) fail(ErrorKind::DataLoss, "short");
  const FramePrefix prefix = decode_prefix(bytes.first(kPrefixSize), limits);
  if (bytes.size() != kPrefixSize + prefix.rest()) fail(ErrorKind::DataLoss, "of another size");
  return decode_rest(prefix, bytes.subspan(kPrefixSize));
}

Frame some_frame() {
  Frame frame;
  frame.method = "push";
  frame.head = R"({"step": 7})";
  frame.pieces = {{100}, {50, 4096}, {0}};
  frame.into = {{4, 8192}};
  return frame;
}

// Overwrites a number in the prefix.
template <class Number>
std::string with(size_t offset, Number number) {
  std::string bytes = encode(some_frame());
  std::memcpy(bytes.data() + offset, &number, sizeof number);
  return bytes;
}

template <class Matcher>
void expect_refused(const std::string& bytes, const Matcher& text, ErrorKind kind = ErrorKind::DataLoss) {
  expect_error(kind, text, [&] { decode(as_bytes(bytes)); });
}

TEST(Frame, comes_out_as_it_went_in) {
  const Frame frame = decode(as_bytes(encode(some_frame())));
  EXPECT_EQ(frame.kind, FrameKind::Request);
  EXPECT_EQ(frame.method, "push");
  EXPECT_EQ(frame.head, R"({"step": 7})");
  ASSERT_EQ(frame.pieces.size(), 3U);
  EXPECT_EQ(frame.pieces[0].size, 100U);
  EXPECT_TRUE(frame.pieces[0].follows());
  EXPECT_EQ(frame.pieces[1].place, 4096U);
  EXPECT_EQ(frame.into.at(0).place, 8192U);
  EXPECT_EQ(following_bytes(frame.pieces), 100U);
}

TEST(Frame, sizes_beyond_the_limits_are_refused) {
  expect_refused(with<uint32_t>(8, 257), HasSubstr("method of 257"));
  expect_refused(with<uint32_t>(12, 0xffffffff), HasSubstr("head of 4294967295"));
  expect_refused(with<uint32_t>(16, 1 << 30), HasSubstr("pieces"));
  expect_refused(with<uint32_t>(20, 1 << 30), HasSubstr("places"));
  expect_refused(with<uint64_t>(24, uint64_t{1} << 60), HasSubstr("announces 1152921504606846976"));
  Frame huge;
  huge.pieces = {{~uint64_t{0}}, {2}};
  expect_error(ErrorKind::DataLoss, HasSubstr("2^64"), [&] { encode(huge); });
}

TEST(Frame, other_bytes_are_refused) {
  expect_refused("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", HasSubstr("not a frame of Tutti"));
  expect_refused(with<uint8_t>(6, 0), HasSubstr("kind"));
  expect_refused(with<uint8_t>(6, 8), HasSubstr("kind"));
  expect_refused(with<uint8_t>(7, 200), HasSubstr("kind"));
  expect_refused(with<uint16_t>(4, 9),
                 AllOf(HasSubstr("protocol version 9"), HasSubstr("version " + std::to_string(kProtocol))),
                 ErrorKind::InvalidArgument);
}

TEST(Frame, is_not_sent_beyond_the_limits) {
  Frame frame;
  frame.method = std::string(300, 'x');
  expect_error(ErrorKind::InvalidArgument, HasSubstr("method of 300"), [&] { encode(frame); });
  frame.method = "x";
  frame.head = std::string(size_t{17} << 20, ' ');
  expect_error(ErrorKind::InvalidArgument, HasSubstr("head"), [&] { encode(frame); });
}

TEST(Frame, a_head_is_json) {
  expect_error(ErrorKind::DataLoss, HasSubstr("JSON"), [] { decode_json("{"); });
  expect_error(ErrorKind::DataLoss, HasSubstr("JSON"), [] { decode_json(std::string("{\0}", 3)); });
  const std::string deep(size_t{1} << 20, '[');
  expect_error(ErrorKind::DataLoss, HasSubstr("100 deep"), [&] { decode_json(deep); });
  const std::string deepest(100, '[');
  EXPECT_EQ(decode_json(deepest + std::string(deepest.size(), ']')).size(), 1U);
}

TEST(Frame, text_that_is_no_utf8_can_be_sent) { EXPECT_NO_THROW(decode_json(encode_json("a\xff"))); }

// A changed frame is either an error or another valid frame, and takes no more memory than its bytes.
TEST(Frame, fuzzed_ones_are_errors_or_frames) {
  std::mt19937 random(4);  // NOLINT(bugprone-random-generator-seed): reproducible
  const std::string good = encode(some_frame());
  for (int i = 0; i < 200000; ++i) {
    std::string bytes = good;
    for (auto changes = random() % 4; changes > 0; --changes)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    if (random() % 4 == 0) bytes.resize(random() % (2 * good.size()));
    try {
      decode_json(decode(as_bytes(bytes)).head);
    } catch (const Error& error) {
      ASSERT_NE(error.kind(), ErrorKind::Bug) << error.what();
    }
  }
}

}  // namespace
}  // namespace tutti::rpc::frame_test

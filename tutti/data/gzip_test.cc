#include <torch/types.h>
#include <torch/utils.h>
#include <zlib.h>

#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/data/idx.h"

namespace tutti::data {
namespace {

using namespace std::string_literals;
using testing::HasSubstr;

std::string zipped(const std::string& bytes) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, MAX_WBITS + 16, 9, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, bytes.size()) + 64, '\0');
  std::string in = bytes;
  stream.next_in = reinterpret_cast<Bytef*>(in.data());
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string idx_of(uint32_t size, const std::string& elements) {
  std::string header = "\0\0\x08\x01"s;
  for (int shift = 24; shift >= 0; shift -= 8) header.push_back(static_cast<char>(size >> shift & 0xff));
  return header + elements;
}

// Returns bytes that cannot be compressed, so that every part of the file matters.
std::string noise(uint32_t size) {
  std::string bytes;
  uint32_t state = 1;
  for (uint32_t i = 0; i < size; ++i) {
    state = state * 1664525 + 1013904223;
    bytes.push_back(static_cast<char>(state >> 24));
  }
  return bytes;
}

class Gzip : public testing::Test {
 protected:
  std::string loss(const std::string& bytes) {
    return error_of(ErrorKind::DataLoss, [&] { read_idx(folder_.write("file.gz", bytes)); });
  }
  TestFolder folder_;
};

TEST_F(Gzip, is_told_by_its_first_bytes_and_not_by_the_name) {
  const std::string bytes = idx_of(200000, noise(200000));
  const auto plain = read_idx(folder_.write("plain.gz", bytes));
  EXPECT_EQ(plain.numel(), 200000);
  EXPECT_TRUE(read_idx(folder_.write("zipped", zipped(bytes))).equal(plain));
}

TEST_F(Gzip, reads_files_that_were_glued_together) {
  const std::string glued = zipped(idx_of(6, "abc")) + zipped("") + zipped("def");
  EXPECT_EQ(read_idx(folder_.write("glued", glued)).numel(), 6);
}

TEST_F(Gzip, notices_every_cut) {
  const std::string whole = zipped(idx_of(500, noise(500)));
  for (size_t size = 2; size < whole.size(); ++size) {
    EXPECT_THAT(loss(whole.substr(0, size)), HasSubstr("file.gz: ")) << size;
  }
  EXPECT_THAT(loss(whole.substr(0, 100)), HasSubstr("truncated at byte 100"));
}

TEST_F(Gzip, notices_flipped_bits) {
  const std::string whole = zipped(idx_of(500, noise(500)));
  // Covers the compressed data, the checksum and the size, but not the header, of which some bits are unused.
  for (size_t at = 11; at < whole.size(); at += 3) {
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    EXPECT_THAT(loss(flipped), HasSubstr("file.gz: ")) << at;
  }
}

TEST_F(Gzip, refuses_what_follows_the_last_member) {
  EXPECT_THAT(loss(zipped(idx_of(3, "abc")) + "junk"), HasSubstr("damaged"));
  EXPECT_THAT(loss(zipped(idx_of(3, "abcd"))), HasSubstr("continues at byte 11"));
}

TEST_F(Gzip, names_the_uncompressed_byte_where_elements_are_missing) {
  EXPECT_THAT(loss(zipped(idx_of(100, "abc"))), HasSubstr("truncated at byte 11"));
}

TEST_F(Gzip, takes_no_memory_for_more_than_can_come_out) {
  EXPECT_THAT(loss(zipped(idx_of(0xffffffff, "abc"))), HasSubstr("can contain at most"));
}

TEST_F(Gzip, stops_a_bomb_where_the_header_says_that_it_ends) {
  EXPECT_THAT(loss(zipped(idx_of(3, std::string(50'000'000, 'x')))), HasSubstr("continues at byte 11"));
}

}  // namespace
}  // namespace tutti::data

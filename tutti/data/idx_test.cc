#include "tutti/data/idx.h"

#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"

namespace tutti::data {
namespace {

using namespace std::string_literals;
using testing::HasSubstr;

class Idx : public testing::Test {
 protected:
  torch::Tensor read(const std::string& bytes) { return read_idx(folder_.write("file.idx", bytes)); }

  // Reads damaged bytes and expects an error that names the file.
  std::string loss(const std::string& bytes) {
    const auto text = error_of(ErrorKind::DataLoss, [&] { read(bytes); });
    EXPECT_THAT(text, HasSubstr(folder_.path() + "/file.idx"));
    return text;
  }

  TestFolder folder_;
};

TEST_F(Idx, reads_every_type_in_big_endian) {
  EXPECT_TRUE(read("\0\0\x08\x01\0\0\0\x03\x01\x7f\xff"s).equal(torch::tensor({1, 127, 255}, torch::kByte)));
  EXPECT_TRUE(read("\0\0\x09\x01\0\0\0\x02\x01\xff"s).equal(torch::tensor({1, -1}, torch::kChar)));
  EXPECT_TRUE(read("\0\0\x0b\x01\0\0\0\x02\x01\x02\xff\xfe"s).equal(torch::tensor({258, -2}, torch::kShort)));
  EXPECT_TRUE(read("\0\0\x0c\x01\0\0\0\x01\x01\x02\x03\x04"s).equal(torch::tensor({16909060}, torch::kInt)));
  EXPECT_TRUE(read("\0\0\x0d\x01\0\0\0\x01\x3f\xc0\0\0"s).equal(torch::tensor({1.5F})));
  EXPECT_TRUE(
      read("\0\0\x0e\x01\0\0\0\x01\xc0\x04\0\0\0\0\0\0"s).equal(torch::tensor({-2.5}, torch::kDouble)));
}

TEST_F(Idx, reads_the_last_dimension_fastest) {
  const auto tensor = read("\0\0\x08\x02\0\0\0\x02\0\0\0\x03\x01\x02\x03\x04\x05\x06"s);
  EXPECT_TRUE(tensor.equal(torch::tensor({{1, 2, 3}, {4, 5, 6}}, torch::kByte)));
}

TEST_F(Idx, reads_a_file_without_elements) {
  EXPECT_EQ(read("\0\0\x08\x01\0\0\0\0"s).numel(), 0);
  EXPECT_EQ(read("\0\0\x08\x02\0\0\0\0\0\0\0\x1c"s).sizes(), (std::vector<int64_t>{0, 28}));
}

TEST_F(Idx, names_the_byte_where_the_header_is_wrong) {
  EXPECT_THAT(loss("\x89PNG\r\n"s), HasSubstr("bytes 0 and 1 are 89 50"));
  EXPECT_THAT(loss("\0\x01\x08\x01\0\0\0\0"s), HasSubstr("bytes 0 and 1 are 00 01"));
  EXPECT_THAT(loss("\0\0\x0a\x01\0\0\0\0"s), HasSubstr("byte 2 is 0a"));
  EXPECT_THAT(loss("\0\0\x08\0"s), HasSubstr("byte 3 declares 0 dimensions"));
  EXPECT_THAT(loss("\0\0\x08\xff"s), HasSubstr("byte 3 declares 255 dimensions"));
}

TEST_F(Idx, names_the_byte_where_the_header_is_cut_short) {
  const auto whole = "\0\0\x08\x02\0\0\0\x01\0\0\0\x01\x05"s;
  for (size_t size = 0; size < 12; ++size) {
    EXPECT_THAT(loss(whole.substr(0, size)), HasSubstr(fmt::format("truncated at byte {}", size)));
  }
}

TEST_F(Idx, says_what_was_promised_where_the_elements_are_cut_short) {
  for (const char* elements : {"", "x", "xxxxx"}) {
    const auto text = loss("\0\0\x08\x01\0\0\0\x06"s + elements);
    EXPECT_THAT(text, HasSubstr("truncated"));
    EXPECT_THAT(text, HasSubstr("6 bytes from byte 8"));
  }
  EXPECT_THAT(loss("\0\0\x08\x01\0\0\0\x06"s + "xxxxx"), HasSubstr("truncated at byte 13"));
}

TEST_F(Idx, refuses_bytes_after_the_last_element) {
  EXPECT_THAT(loss("\0\0\x08\x01\0\0\0\x02xxx"s), HasSubstr("continues at byte 10"));
  EXPECT_THAT(loss("\0\0\x08\x01\0\0\0\0x"s), HasSubstr("continues at byte 8"));
}

TEST_F(Idx, takes_no_memory_for_a_header_that_lies) {
  EXPECT_THAT(loss("\0\0\x0e\x01\xff\xff\xff\xff"s), HasSubstr("34359738360 bytes"));
  EXPECT_THAT(loss("\0\0\x0e\x02\xff\xff\xff\xff\xff\xff\xff\xff"s),
              HasSubstr("more elements than are possible"));
  // The shapes have 2^64 elements, and 0 times 2^96: both would overflow.
  EXPECT_THAT(loss("\0\0\x08\x04\0\x01\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\0"s), HasSubstr("more elements"));
  EXPECT_THAT(loss("\0\0\x08\x04\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"s),
              HasSubstr("more elements"));
}

TEST_F(Idx, says_what_is_wrong_with_the_path) {
  EXPECT_THAT(error_of(ErrorKind::InvalidArgument, [&] { read_idx(folder_.path() + "/none"); }),
              HasSubstr(folder_.path() + "/none: No such file"));
  EXPECT_THAT(error_of(ErrorKind::InvalidArgument, [&] { read_idx(folder_.path()); }),
              HasSubstr("not a regular file"));
  error_of(ErrorKind::InvalidArgument, [] { read_idx(""); });
  error_of(ErrorKind::InvalidArgument, [] { read_idx("/dev/zero"); });
}

}  // namespace
}  // namespace tutti::data

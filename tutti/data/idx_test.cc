#include "tutti/data/idx.h"

#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/environment.h"
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

std::string word(int64_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(value >> shift & 0xff));
  return bytes;
}

std::string images(int64_t count, int64_t side = 28) {
  std::string bytes = "\0\0\x08\x03"s + word(count) + word(side) + word(side);
  for (int64_t i = 0; i < count * side * side; ++i) bytes.push_back(static_cast<char>(i % 256));
  return bytes;
}

std::string labels(const std::string& values) {
  return "\0\0\x08\x01"s + word(static_cast<int64_t>(values.size())) + values;
}

// A folder with three training and two test digits; some tests overwrite parts of it.
class MnistFiles : public testing::Test {
 protected:
  MnistFiles() {
    folder_.write("train-images-idx3-ubyte", images(3));
    folder_.write("train-labels-idx1-ubyte", labels("\x05\x00\x09"s));
    folder_.write("t10k-images.idx3-ubyte", images(2));
    folder_.write("t10k-labels.idx1-ubyte", labels("\x01\x02"s));
  }
  std::string error(ErrorKind kind) {
    return error_of(kind, [&] { mnist(folder_.path()); });
  }
  TestFolder folder_;
};

std::vector<int64_t> label_histogram(const Feed& feed) {
  std::vector<int64_t> all(static_cast<size_t>(feed.size()));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
  const torch::Tensor counts = torch::bincount(feed.read(all)["label"], {}, 10);
  return {counts.data_ptr<int64_t>(), counts.data_ptr<int64_t>() + counts.numel()};
}

TEST_F(MnistFiles, become_batches_of_floats_and_labels) {
  const Digits digits = mnist(folder_.path());
  EXPECT_EQ(digits.train().size(), 3);
  EXPECT_EQ(digits.test().size(), 2);
  const Batch batch = digits.train().read(std::vector<int64_t>{2, 0});
  EXPECT_EQ(batch["image"].sizes(), (std::vector<int64_t>{2, 1, 28, 28}));
  EXPECT_TRUE(batch["label"].equal(torch::tensor({9, 5}, torch::kLong)));
  const torch::Tensor bytes = torch::arange(3 * 784).remainder(256).reshape({3, 1, 28, 28}).to(torch::kFloat);
  EXPECT_TRUE(batch["image"][0].equal(bytes[2] / 255));
  EXPECT_TRUE(batch["image"][1].equal(bytes[0] / 255));
}

TEST_F(MnistFiles, missing_say_which_and_what_to_do) {
  const TestFolder empty;
  const auto text = error_of(ErrorKind::InvalidArgument, [&] { mnist(empty.path()); });
  EXPECT_THAT(text, HasSubstr(empty.path()));
  EXPECT_THAT(text, HasSubstr("train-images-idx3-ubyte.gz"));
  EXPECT_THAT(text, HasSubstr("Put the four MNIST files there"));
  EXPECT_THAT(error_of(ErrorKind::InvalidArgument, [] { mnist("/no/such/folder"); }),
              HasSubstr("/no/such/folder"));
  EXPECT_THAT(error_of(ErrorKind::InvalidArgument, [] { mnist(""); }), HasSubstr("--data"));
}

TEST_F(MnistFiles, with_a_label_that_is_no_digit_name_the_record) {
  folder_.write("train-labels-idx1-ubyte", labels("\x05\x0a\x09"s));
  const auto text = error(ErrorKind::DataLoss);
  EXPECT_THAT(text, HasSubstr("train-labels-idx1-ubyte: the label of record 1 (byte 9) is 10"));
}

TEST_F(MnistFiles, that_do_not_belong_together_are_refused) {
  folder_.write("train-labels-idx1-ubyte", labels("\x05\x00"s));
  const auto text = error(ErrorKind::DataLoss);
  EXPECT_THAT(text, HasSubstr("train-images-idx3-ubyte has 3 images"));
  EXPECT_THAT(text, HasSubstr("train-labels-idx1-ubyte has 2 labels"));
}

TEST_F(MnistFiles, of_another_kind_are_refused) {
  folder_.write("train-images-idx3-ubyte", images(3, 32));
  EXPECT_THAT(error(ErrorKind::DataLoss), HasSubstr("32x32 pixels"));
  folder_.write("train-images-idx3-ubyte", labels("abc"));
  EXPECT_THAT(error(ErrorKind::DataLoss), HasSubstr("1 dimensions"));
  folder_.write("train-images-idx3-ubyte", images(3));
  folder_.write("train-labels-idx1-ubyte", "\0\0\x09\x01"s + word(3) + "abc");
  EXPECT_THAT(error(ErrorKind::DataLoss), HasSubstr("int8"));
}

TEST_F(MnistFiles, cut_short_are_refused) {
  folder_.write("t10k-images.idx3-ubyte", images(2).substr(0, 1000));
  EXPECT_THAT(error(ErrorKind::DataLoss), HasSubstr("t10k-images.idx3-ubyte: the file is truncated"));
}

TEST(RealMnist, has_the_known_digits) {
  const std::string dir = Environment::of_process().get("TUTTI_TEST_MNIST").value_or("");
  if (!std::filesystem::exists(dir)) {
    GTEST_SKIP() << "NOT TESTED: there is no MNIST at TUTTI_TEST_MNIST=" << dir;
  }
  const Digits digits = mnist(dir);
  EXPECT_EQ(label_histogram(digits.train()),
            (std::vector<int64_t>{5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949}));
  EXPECT_EQ(label_histogram(digits.test()),
            (std::vector<int64_t>{980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009}));
  std::vector<int64_t> all(60000);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
  const Batch batch = digits.train().read(all);
  EXPECT_EQ(batch["label"][0].item<int64_t>(), 5);
  // These are the mean and deviation that are commonly used for normalising.
  EXPECT_NEAR(batch["image"].mean().item<double>(), 0.1307, 5e-5);
  EXPECT_NEAR(batch["image"].std().item<double>(), 0.3081, 5e-5);
}

}  // namespace
}  // namespace tutti::data

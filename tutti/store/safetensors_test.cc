#include "tutti/store/safetensors.h"

#include <algorithm>
#include <filesystem>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/file.h"
#include "tutti/base/hashes.h"
#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/base/test_oracle.h"

namespace tutti::store {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

NamedTensors one_of_each_type() {
  const torch::Tensor numbers = torch::arange(6, torch::kDouble).reshape({2, 3});
  NamedTensors tensors;
  for (const auto type : {torch::kBool, torch::kByte, torch::kChar, torch::kShort, torch::kHalf,
                          torch::kBFloat16, torch::kInt, torch::kFloat, torch::kLong, torch::kDouble}) {
    tensors.push_back({std::string("tensor of ") + c10::toString(type), numbers.to(type)});
  }
  return tensors;
}

torch::Tensor read_back(const torch::Tensor& tensor) {
  const TestFolder folder;
  write_safetensors(folder / "file", {{"tensor", tensor}});
  return SafetensorsFile(folder / "file").read("tensor");
}

std::string bits_of(const torch::Tensor& tensor) {
  const torch::Tensor plain = tensor.contiguous();
  return {static_cast<const char*>(plain.data_ptr()), plain.nbytes()};
}

// Compares type, shape and bits, because equal() does not consider NaNs equal.
bool same(const torch::Tensor& a, const torch::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && bits_of(a) == bits_of(b);
}

// Writes a file with this header, optionally with a wrong length, and this number of bytes after it.
std::string file_with(const TestFolder& folder, const std::string& header, size_t data_bytes,
                      std::optional<uint64_t> length = std::nullopt) {
  const uint64_t written = length.value_or(header.size());
  std::string text;
  for (int i = 0; i < 8; ++i) text.push_back(static_cast<char>(written >> (8 * i)));
  replace_file(folder / "lying", text + header + std::string(data_bytes, '\1'));
  return folder / "lying";
}

void expect_data_loss(const std::string& header, size_t data_bytes, const std::string& text) {
  const TestFolder folder;
  const std::string path = file_with(folder, header, data_bytes);
  expect_error(ErrorKind::DataLoss, AllOf(HasSubstr(path), HasSubstr(text)),
               [&] { SafetensorsFile file(path); });
}

TEST(Safetensors, reads_back_every_type_to_the_bit) {
  const TestFolder folder;
  const auto tensors = one_of_each_type();
  write_safetensors(folder / "file", tensors, {{"key", "value"}});
  const SafetensorsFile file(folder / "file");
  ASSERT_EQ(file.tensors().size(), tensors.size());
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"key", "value"}}));
  for (const auto& [name, tensor] : tensors) {
    EXPECT_TRUE(file.has(name));
    EXPECT_TRUE(same(file.read(name), tensor)) << name;
  }
  EXPECT_FALSE(file.has("something else"));
}

TEST(Safetensors, keeps_odd_numbers) {
  const float nan = std::nanf("77");
  EXPECT_TRUE(same(read_back(torch::tensor({nan, -0.0F, INFINITY, 1e-45F})),
                   torch::tensor({nan, -0.0F, INFINITY, 1e-45F})));
}

TEST(Safetensors, keeps_odd_shapes) {
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{}, {0}, {1}, {3, 0, 2}, {1, 1, 1, 1, 1, 1, 1}, {7, 1, 3}}) {
    const torch::Tensor tensor = torch::randn(shape);
    EXPECT_TRUE(same(read_back(tensor), tensor)) << tensor.sizes();
  }
}

TEST(Safetensors, writes_views_as_they_look) {
  const torch::Tensor tensor = torch::randn({4, 6, 5, 5});
  EXPECT_TRUE(same(read_back(tensor.transpose(0, 2)), tensor.transpose(0, 2).contiguous()));
  EXPECT_TRUE(same(read_back(tensor.narrow(1, 2, 3)), tensor.narrow(1, 2, 3).contiguous()));
  EXPECT_TRUE(
      same(read_back(tensor.select(0, 1).expand({3, 6, 5, 5})), tensor.select(0, 1).repeat({3, 1, 1, 1})));
  const torch::Tensor last = tensor.contiguous(torch::MemoryFormat::ChannelsLast);
  EXPECT_TRUE(same(read_back(last), tensor));
}

TEST(Safetensors, writes_a_negated_view_as_it_looks) {
  const torch::Tensor number = torch::complex(torch::tensor({1.0F, 2.0F}), torch::tensor({3.0F, 4.0F}));
  EXPECT_TRUE(same(read_back(torch::imag(number.conj())), torch::tensor({-3.0F, -4.0F})));
}

TEST(Safetensors, leaves_gradients_aside) {
  const torch::Tensor tensor = torch::randn({3}, torch::requires_grad());
  EXPECT_TRUE(same(read_back(tensor), tensor.detach()));
}

TEST(Safetensors, writes_a_file_without_tensors) {
  const TestFolder folder;
  const WrittenFile written = write_safetensors(folder / "file", {});
  EXPECT_EQ(written.bytes, std::filesystem::file_size(folder / "file"));
  EXPECT_TRUE(SafetensorsFile(folder / "file").tensors().empty());
}

TEST(Safetensors, tells_size_and_checksum_of_what_it_wrote) {
  const TestFolder folder;
  const WrittenFile written = write_safetensors(folder / "file", one_of_each_type());
  const std::string file = read_file(folder / "file");
  EXPECT_EQ(written.bytes, file.size());
  EXPECT_EQ(written.checksum, crc32c(as_bytes(file)));
}

TEST(Safetensors, aligns_every_tensor_to_its_elements) {
  const TestFolder folder;
  write_safetensors(folder / "file", {{"bool", torch::ones({3}, torch::kBool)},
                                      {"double", torch::ones({3}, torch::kDouble)},
                                      {"half", torch::ones({3}, torch::kHalf)},
                                      {"float", torch::ones({3})}});
  const SafetensorsFile file(folder / "file");
  for (const TensorInfo& info : file.tensors()) {
    EXPECT_EQ(info.begin % c10::elementSize(info.type), 0U) << info.name;
  }
}

TEST(Safetensors, keeps_the_order_given_among_tensors_of_one_type) {
  const TestFolder folder;
  write_safetensors(folder / "file",
                    {{"z", torch::ones({2})}, {"a", torch::zeros({0})}, {"m", torch::ones({1})}});
  std::vector<std::string> names;
  for (const NamedTensor& named : SafetensorsFile(folder / "file").read_all()) names.push_back(named.name);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"a", "m", "z"}));
  const SafetensorsFile file(folder / "file");
  EXPECT_EQ(file.tensors().front().name, "z");
  EXPECT_EQ(file.tensors().back().name, "m");
}

TEST(Safetensors, have_a_tensor_under_all_of_its_names) {
  const TestFolder folder;
  const torch::Tensor words = torch::rand({2, 3});
  write_safetensors(folder / "file", {{"words", words}, {"bias", torch::ones({2})}}, {{"format", "pt"}},
                    {{"head", "words"}, {"other", "not among the tensors"}});
  const SafetensorsFile file(folder / "file");
  EXPECT_EQ(file.tensors().size(), 3U);
  EXPECT_TRUE(file.read("words").equal(words));
  EXPECT_TRUE(file.read("head").equal(words));
  EXPECT_EQ(file.tied(), (TiedNames{{"head", "words"}}));
  EXPECT_EQ(file.metadata().at("format"), "pt");
  write_safetensors(folder / "file", {{"words", words}});
  EXPECT_TRUE(SafetensorsFile(folder / "file").tied().empty());
  for (const char* damaged : {"{", "[]", R"({"head": 1})"}) {
    write_safetensors(folder / "file", {{"words", words}}, {{"tutti_tied", damaged}});
    expect_error(ErrorKind::DataLoss, HasSubstr("tutti_tied"), [&] { SafetensorsFile(folder / "file"); });
  }
  expect_error(ErrorKind::InvalidArgument, HasSubstr("two tensors are named 'bias'"), [&] {
    write_safetensors(folder / "file", {{"words", words}, {"bias", words}}, {}, {{"bias", "words"}});
  });
}

TEST(Safetensors, refuses_what_the_format_cannot_hold) {
  const TestFolder folder;
  const auto expect_refused = [&](const NamedTensors& tensors, const std::string& text) {
    expect_error(ErrorKind::InvalidArgument, HasSubstr(text),
                 [&] { write_safetensors(folder / "file", tensors); });
    EXPECT_FALSE(std::filesystem::exists(folder / "file"));
  };
  expect_refused({{"twice", torch::ones({1})}, {"twice", torch::ones({1})}}, "'twice'");
  expect_refused({{"__metadata__", torch::ones({1})}}, "__metadata__");
  expect_refused({{"complex", torch::ones({1}, torch::kComplexFloat)}}, "'complex' has type complex64");
  expect_refused({{"none", torch::Tensor()}}, "'none'");
  expect_refused({{"sparse", torch::ones({2, 2}).to_sparse()}}, "'sparse'");
  expect_refused({{"meta", torch::ones({2}, torch::kMeta)}}, "'meta'");
  expect_refused({{"\xff", torch::ones({1})}}, "UTF-8");
}

TEST(Safetensors, suggests_the_tensor_that_was_meant) {
  const TestFolder folder;
  write_safetensors(folder / "file", {{"conv1.weight", torch::ones({1})}});
  expect_error(ErrorKind::InvalidArgument, HasSubstr("did you mean 'conv1.weight'?"),
               [&] { SafetensorsFile(folder / "file").read("conv1.wieght"); });
}

TEST(Safetensors, notices_a_file_cut_short_at_every_length) {
  const TestFolder folder;
  write_safetensors(folder / "file", {{"a", torch::ones({5})}, {"b", torch::ones({3}, torch::kLong)}});
  const std::string whole = read_file(folder / "file");
  for (size_t length = 0; length < whole.size(); ++length) {
    replace_file(folder / "cut", whole.substr(0, length));
    expect_error(ErrorKind::DataLoss, HasSubstr(folder / "cut"),
                 [&] { SafetensorsFile file(folder / "cut"); });
  }
  replace_file(folder / "cut", whole + "x");
  expect_error(ErrorKind::DataLoss, HasSubstr("belong to no tensor"),
               [&] { SafetensorsFile file(folder / "cut"); });
}

// A changed byte of the header gives another name or an error, and nothing worse, as sanitizers check.
TEST(Safetensors, survives_every_flipped_bit_of_the_header) {
  const TestFolder folder;
  write_safetensors(folder / "file", {{"a", torch::ones({5})}, {"b", torch::ones({3}, torch::kBool)}},
                    {{"k", "v"}});
  const std::string whole = read_file(folder / "file");
  const size_t header_end = whole.size() - 23;
  for (size_t bit = 0; bit < 8 * header_end; ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    replace_file(folder / "flipped", flipped);
    try {
      static_cast<void>(SafetensorsFile(folder / "flipped").read_all());
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("flipped"));
      EXPECT_NE(error.kind(), ErrorKind::Bug);
    }
  }
}

TEST(Safetensors, disbelieves_a_length_beyond_the_file) {
  const TestFolder folder;
  for (const uint64_t length : {uint64_t{3}, uint64_t{1} << 40, ~uint64_t{0}, ~uint64_t{0} - 7}) {
    const std::string path = file_with(folder, "{}", 0, length);
    expect_error(ErrorKind::DataLoss, HasSubstr("declare a header of " + std::to_string(length)),
                 [&] { SafetensorsFile file(path); });
  }
}

TEST(Safetensors, disbelieves_a_header_that_is_no_table_of_tensors) {
  expect_data_loss("", 0, "not JSON");
  expect_data_loss("{", 0, "not JSON");
  expect_data_loss("[]", 0, "not a JSON object");
  expect_data_loss("null", 0, "not a JSON object");
  expect_data_loss(std::string(100000, '['), 0, "nested more than 100 deep");
  expect_data_loss("{\"\xff\": 1}", 0, "not JSON");
  expect_data_loss(R"({"a": 1})", 0, "'a' needs dtype");
  expect_data_loss(R"({"a": {"dtype": "F32", "shape": [1]}})", 4, "'a' needs dtype");
  expect_data_loss(R"({"a": {"dtype": 32, "shape": [1], "data_offsets": [0, 4]}})", 4, "'a' needs dtype");
  expect_data_loss(R"({"a": {"dtype": "F32", "shape": 1, "data_offsets": [0, 4]}})", 4, "'a' needs dtype");
  expect_data_loss(R"({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}})", 4, "'a' needs dtype");
  expect_data_loss(R"({"a": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}})", 4,
                   "'a' needs dtype");
  expect_data_loss(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]}})", 4,
                   "'a' needs dtype");
  expect_data_loss(R"({"a": {"dtype": "F32", "shape": [18446744073709551615], "data_offsets": [0, 4]}})", 4,
                   "'a'");
  expect_data_loss(R"({"__metadata__": {"a": 1}})", 0, "not an object of strings");
  expect_data_loss(R"({"__metadata__": []})", 0, "not an object of strings");
}

TEST(Safetensors, disbelieves_tensors_that_contradict_their_bytes) {
  expect_data_loss(R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}})", 4,
                   "do not match its size of 4 bytes");
  expect_data_loss(R"({"a": {"dtype": "F64", "shape": [1], "data_offsets": [0, 4]}})", 4,
                   "do not match its size of 4 bytes");
  expect_data_loss(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}})", 4,
                   "bytes 0 to 8, but only 4");
  expect_data_loss(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}})", 4, "bytes 4 to 0");
  expect_data_loss(R"({"a": {"dtype": "F32", "shape": [4611686018427387904, 4], "data_offsets": [0, 0]}})", 0,
                   "'a'");
  expect_data_loss(R"({"a": {"dtype": "F32", "shape": [0, 4611686018427387904, 8], "data_offsets": [0, 0]}})",
                   0, "'a'");
}

TEST(Safetensors, disbelieves_holes_and_shared_bytes) {
  const std::string one = R"("dtype": "F32", "shape": [1], "data_offsets": )";
  expect_data_loss("{\"a\": {" + one + "[0, 4]}, \"b\": {" + one + "[0, 4]}}", 4, "'b' begins at byte");
  expect_data_loss("{\"a\": {" + one + "[0, 4]}, \"b\": {" + one + "[2, 6]}}", 6, "'b' begins at byte");
  expect_data_loss("{\"a\": {" + one + "[0, 4]}, \"b\": {" + one + "[8, 12]}}", 12, "'b' begins at byte");
  expect_data_loss("{\"a\": {" + one + "[4, 8]}}", 8, "'a' begins at byte");
  expect_data_loss("{\"a\": {" + one + "[0, 4]}}", 8, "belong to no tensor");
  expect_data_loss("{\"a\": {" + one + "[0, 4]}, \"a\": {" + one + "[0, 4]}}", 4, "the key 'a' occurs twice");
}

TEST(Safetensors, disbelieves_a_bool_that_is_neither) {
  const TestFolder folder;
  const std::string path =
      file_with(folder, R"({"a": {"dtype": "BOOL", "shape": [1], "data_offsets": [0, 1]}})", 0);
  replace_file(path, read_file(path) + "\2");
  expect_error(ErrorKind::DataLoss, HasSubstr("neither 0 nor 1"), [&] { SafetensorsFile(path).read("a"); });
}

TEST(Safetensors, says_which_tensor_is_of_a_type_it_does_not_know) {
  const TestFolder folder;
  const std::string path =
      file_with(folder, R"({"a": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]}})", 1);
  expect_error(ErrorKind::Unimplemented, HasSubstr("'a' has the unknown type 'F8_E4M3'"),
               [&] { SafetensorsFile file(path); });
}

TEST(Safetensors, is_read_by_the_python_package) {
  TUTTI_NEEDS_ORACLES();
  const TestFolder folder;
  NamedTensors tensors = one_of_each_type();
  tensors.push_back({"a \"quoted\"\n näme", torch::arange(4, torch::kFloat).reshape({2, 2}).t()});
  tensors.push_back({"empty", torch::ones({0, 3})});
  tensors.push_back({"single", torch::tensor(2.5)});
  const std::map<std::string, std::string> names = {
      {"Bool", "BOOL"},     {"Byte", "U8"}, {"Char", "I8"},   {"Short", "I16"}, {"Half", "F16"},
      {"BFloat16", "BF16"}, {"Int", "I32"}, {"Float", "F32"}, {"Long", "I64"},  {"Double", "F64"}};
  for (const bool with_bfloat16 : {true, false}) {
    json expected = {{"metadata", {{"step", "7"}}}, {"tensors", json::object()}};
    for (const auto& [name, tensor] : tensors) {
      const torch::Tensor flat = tensor.contiguous().to(torch::kDouble).reshape(-1);
      json values = std::vector<double>(flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
      if (tensor.scalar_type() == torch::kBool) values = {false, true, true, true, true, true};
      expected["tensors"][name] = {{"dtype", names.at(c10::toString(tensor.scalar_type()))},
                                   {"shape", tensor.sizes().vec()},
                                   {"values", values}};
    }
    write_safetensors(folder / "file", tensors, {{"step", "7"}});
    const auto answer = ask_oracle("check_safetensors.py", {folder / "file", expected.dump()});
    EXPECT_EQ(answer.status, 0) << answer.output << with_bfloat16;
    // NumPy's loader refuses files with bfloat16, so the second round reads all other types.
    std::erase_if(tensors,
                  [](const NamedTensor& named) { return named.tensor.scalar_type() == torch::kBFloat16; });
  }
}

TEST(Safetensors, python_package_reads_a_file_without_tensors) {
  TUTTI_NEEDS_ORACLES();
  const TestFolder folder;
  write_safetensors(folder / "file", {});
  const auto answer =
      ask_oracle("check_safetensors.py", {folder / "file", R"({"metadata": null, "tensors": {}})"});
  EXPECT_EQ(answer.status, 0) << answer.output;
}

TEST(Safetensors, reads_what_the_python_package_wrote) {
  TUTTI_NEEDS_ORACLES();
  const TestFolder folder;
  const auto answer = ask_oracle("check_safetensors.py", {"--write", folder / "file"});
  ASSERT_EQ(answer.status, 0) << answer.output;
  const SafetensorsFile file(folder / "file");
  EXPECT_EQ(file.metadata().at("from"), "python");
  EXPECT_TRUE(same(file.read("float"), torch::tensor({1.5F, -2.5F, 0.0F, 3e38F}).reshape({2, 2})));
  EXPECT_TRUE(same(file.read("long"), torch::tensor({int64_t{1}, -(int64_t{1} << 62)})));
  EXPECT_TRUE(same(file.read("bool"), torch::tensor({true, false, true})));
  EXPECT_TRUE(same(file.read("half"), torch::tensor(0.5, torch::kHalf)));
  EXPECT_TRUE(same(file.read("empty"), torch::zeros({0, 3}, torch::kDouble)));
}

std::string collected(const torch::Tensor& tensor) {
  std::string bytes;
  for_each_chunk(tensor, [&bytes](std::span<const std::byte> chunk) {
    bytes.append(reinterpret_cast<const char*>(chunk.data()), chunk.size());
  });
  return bytes;
}

std::string memory_of(const torch::Tensor& contiguous) {
  return {static_cast<const char*>(contiguous.data_ptr()), static_cast<size_t>(contiguous.nbytes())};
}

TEST(ForEachChunk, gives_the_elements_in_order_whatever_the_strides) {
  const torch::Tensor tensor = torch::arange(24, torch::kInt).reshape({2, 3, 4});
  EXPECT_EQ(collected(tensor), memory_of(tensor));
  EXPECT_EQ(collected(tensor.permute({2, 0, 1})), memory_of(tensor.permute({2, 0, 1}).contiguous()));
  EXPECT_EQ(collected(torch::ones({0, 3}).t()), "");
}

TEST(ForEachChunk, cuts_large_views_without_losing_an_element) {
  // 40 MB, which gives several chunks, of one row and of many rows.
  const torch::Tensor tensor = torch::arange(5'000'000, torch::kLong);
  EXPECT_EQ(collected(tensor.reshape({2, 2'500'000}).t()),
            memory_of(tensor.reshape({2, 2'500'000}).t().contiguous()));
  EXPECT_EQ(collected(tensor.reshape({2'500'000, 2}).t()),
            memory_of(tensor.reshape({2'500'000, 2}).t().contiguous()));
  const torch::Tensor within_one = tensor.reshape({1, 2'500'000, 2}).transpose(1, 2);
  EXPECT_EQ(collected(within_one), memory_of(within_one.contiguous()));
}

}  // namespace
}  // namespace tutti::store

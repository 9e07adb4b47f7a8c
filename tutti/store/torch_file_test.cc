#include "tutti/store/torch_file.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <span>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/base/error.h"
#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/base/test_oracle.h"
#include "tutti/base/test_run.h"
#include "tutti/store/pickle.h"
#include "tutti/store/zip_file.h"

namespace tutti::store {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Files that PyTorch of Debian's Python has written, once for all tests.
class TorchFiles : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder = std::make_unique<TestFolder>();
    has_torch = std::system("/usr/bin/python3 -c 'import torch' 2>/dev/null") == 0;
    if (!has_torch) return;
    const std::string command = "/usr/bin/python3 " +
                                shell_quoted(source_path("tests/oracles/save_tensors.py")) + " " +
                                shell_quoted(folder->path());
    ASSERT_EQ(std::system(command.c_str()), 0);
  }
  static void TearDownTestSuite() { folder.reset(); }
  void SetUp() override {
    if (!has_torch) GTEST_SKIP() << "NOT TESTED: no PyTorch in /usr/bin/python3 (apt install python3-torch)";
  }

  static std::string path(const std::string& name) { return *folder / name; }
  static std::map<std::string, torch::Tensor> tensors_in(const std::string& name) {
    std::map<std::string, torch::Tensor> tensors;
    for (const auto& [key, tensor] : read_torch_file(path(name)).tensors) tensors.emplace(key, tensor);
    return tensors;
  }
  static void refuses(const std::string& name, ErrorKind kind, const std::string& part) {
    const std::string text = error_of(kind, [&] { read_torch_file(path(name)); });
    EXPECT_THAT(text, AllOf(HasSubstr(path(name)), HasSubstr(part))) << name;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }

 private:
  static std::unique_ptr<TestFolder> folder;
  static bool has_torch;
};

std::unique_ptr<TestFolder> TorchFiles::folder;
bool TorchFiles::has_torch = false;

TEST_F(TorchFiles, have_the_tensors_that_python_has_saved) {
  for (const char* name : {"state.pt", "plain.pt", "protocol4.pt", "parameters.pt", "nested.pt"}) {
    EXPECT_TRUE(is_torch_file(path(name)));
    const auto tensors = tensors_in(name);
    ASSERT_EQ(tensors.size(), 5U) << name;
    const torch::Tensor weight = torch::arange(6.0F).view({2, 3}) / 8;
    EXPECT_TRUE(tensors.at("weight").equal(weight)) << name;
    EXPECT_TRUE(tensors.at("tied").equal(weight)) << name;
    EXPECT_TRUE(tensors.at("mask").equal(torch::tensor({true, false}))) << name;
    EXPECT_TRUE(tensors.at("count").equal(torch::tensor(7, torch::kLong))) << name;
    EXPECT_TRUE(tensors.at("low").equal(torch::tensor({0.5, -2.0}).to(torch::kHalf))) << name;
  }
  EXPECT_EQ(read_torch_file(path("state.pt")).key, "");
  EXPECT_EQ(read_torch_file(path("nested.pt")).key, "state_dict");
}

TEST_F(TorchFiles, may_have_views_and_empty_tensors) {
  const auto tensors = tensors_in("views.pt");
  EXPECT_TRUE(tensors.at("t").equal(torch::arange(6.0F).view({2, 3}).t()));
  EXPECT_TRUE(tensors.at("row").equal(torch::tensor({3.0F, 4.0F, 5.0F})));
  EXPECT_EQ(tensors.at("empty").sizes(), (std::vector<int64_t>{0, 3}));
}

TEST_F(TorchFiles, of_other_kinds_are_refused_with_what_to_do) {
  refuses("two.pt", ErrorKind::InvalidArgument, "several dictionaries of tensors (model, average)");
  refuses("list.pt", ErrorKind::InvalidArgument, "no dictionary of tensors");
  refuses("nothing.pt", ErrorKind::InvalidArgument, "no dictionary of tensors");
  refuses("old.pt", ErrorKind::Unimplemented, "before 1.6");
  refuses("complex.pt", ErrorKind::Unimplemented, "torch.Complex");
  refuses("module.pt", ErrorKind::Unimplemented, "torch.save(model.state_dict(), ...)");
  refuses("script.pt", ErrorKind::InvalidArgument, "TorchScript");
}

TEST_F(TorchFiles, are_never_executed) {
  refuses("calls.pt", ErrorKind::Unimplemented, "posix.system");
  EXPECT_FALSE(std::filesystem::exists(path("executed")));
}

TEST_F(TorchFiles, that_describe_more_than_they_have_are_refused) {
  for (const char* name : {"long", "offset", "stride", "negative", "repeated", "below"})
    refuses(std::string("lie-") + name + ".pt", ErrorKind::DataLoss, "more elements than were saved");
  refuses("deep.pt", ErrorKind::InvalidArgument, "no dictionary of tensors");
}

TEST_F(TorchFiles, that_are_cut_or_changed_are_refused_or_have_the_right_values) {
  const std::string whole = contents(path("state.pt"));
  const NamedTensors good = read_torch_file(path("state.pt")).tensors;
  const TestFolder folder;
  for (size_t size = 4; size < whole.size(); size += 37)
    EXPECT_THROW(read_torch_file(folder.write("cut.pt", whole.substr(0, size))), Error) << size;
  int refused = 0;
  for (size_t at = 4; at < whole.size(); at += 7) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 0x41);
    NamedTensors tensors;
    try {
      tensors = read_torch_file(folder.write("changed.pt", changed)).tensors;
    } catch (const Error&) {
      ++refused;
      continue;
    }
    ASSERT_EQ(tensors.size(), good.size()) << at;
    for (size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_EQ(tensors[i].name, good[i].name) << at;
      EXPECT_TRUE(tensors[i].tensor.equal(good[i].tensor)) << at << tensors[i].name;
    }
  }
  EXPECT_GT(refused, 20);
}

TEST(SafetensorsFile, that_is_a_zip_says_so_and_what_to_do) {
  const TestFolder folder;
  expect_error(
      ErrorKind::InvalidArgument,
      AllOf(HasSubstr("ZIP"), HasSubstr("torch.save()"), HasSubstr("safetensors.torch.save_file")),
      [&] { SafetensorsFile file(folder.write("weights.safetensors", "PK\x03\x04 and more bytes")); });
  expect_error(ErrorKind::DataLoss, HasSubstr("weights.pt"),
               [&] { read_tensor_file(folder.write("weights.pt", "PK\x03\x04 and more bytes")); });
}

// The check value of the polynomial, as in every catalogue of CRCs.
TEST(Crc32, of_the_digits_is_that_of_the_catalogue) {
  EXPECT_EQ(crc32(std::as_bytes(std::span("123456789", 9))), 0xcbf43926U);
}

// --- The pickles themselves

PickleValue no_call(const PickleName& name, const PickleList&) {
  fail(ErrorKind::Unimplemented, "{}.{}", name.module, name.name);
}
PickleValue no_value(const PickleList&) { return {}; }

std::string error_of_pickle(const std::string& bytes) {
  try {
    const Pickle pickle(bytes, "it", {no_call, no_value});
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(Pickle, reads_plain_data) {
  using std::string_literals::operator""s;
  // pickle.dumps({"a": [1, -2, 300, 70000, 2**40], "b": (None, 1.5)}, 2)
  const Pickle pickle(
      "\x80\x02}q\x00(X\x01\x00\x00\x00"
      "aq\x01]q\x02(K\x01J\xfe\xff\xff\xffM,\x01Jp\x11\x01\x00"
      "\x8a\x06\x00\x00\x00\x00\x00\x01"
      "eX\x01\x00\x00\x00"
      "bq\x03NG?\xf8\x00\x00\x00\x00\x00\x00"
      "\x86q\x04u."s,
      "it", {no_call, no_value});
  const PickleDict& dict = *std::get<PickleDict*>(pickle.value());
  ASSERT_EQ(dict.entries.size(), 2U);
  EXPECT_EQ(std::get<std::string_view>(dict.entries[0].first), "a");
  std::vector<int64_t> numbers;
  for (const PickleValue& item : std::get<PickleList*>(dict.entries[0].second)->items)
    numbers.push_back(std::get<int64_t>(item));
  EXPECT_THAT(numbers, ElementsAre(1, -2, 300, 70000, int64_t{1} << 40));
  EXPECT_EQ(std::get<PickleList*>(dict.entries[1].second)->items.size(), 2U);
}

TEST(Pickle, that_is_wrong_says_where) {
  for (const char* wrong : {"",
                            ".",
                            "(",
                            "e.",
                            "a.",
                            "]a.",
                            "N]a.",
                            "u.",
                            "}(Nu.",
                            "NNs.",
                            "h\x05.",
                            "q\x01",
                            "X\xff\xff\xff\x7f",
                            "cmodule",
                            "R.",
                            "NNR.",
                            "NQ.",
                            "(b.",
                            "\x85.",
                            "](e",
                            "i",
                            "\x8d\xff\xff\xff\xff\xff\xff\xff\xff"})
    EXPECT_THAT(error_of_pickle(wrong), AllOf(HasSubstr("it: the file is damaged"), HasSubstr("byte")))
        << wrong;
  EXPECT_THAT(error_of_pickle("cos\nsystem\n)R."), HasSubstr("os.system"));
  EXPECT_THAT(error_of_pickle("cos\nsystem\n)\x81."), HasSubstr("os.system"));
  EXPECT_THAT(error_of_pickle("]}b."), HasSubstr("object of a class"));
}

}  // namespace
}  // namespace tutti::store

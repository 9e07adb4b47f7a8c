// Judges the kernels of this module by PyTorch's database of operators. See check_operators.py.
#include <string>
#include <sys/wait.h>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/base/test_oracle.h"
#include "tutti/base/test_run.h"

namespace tutti::operators_test {
namespace {

constexpr const char* kPython = "TUTTI_TEST_TORCH_PYTHON";

class OperatorDatabase : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!Environment::of_process().has(kPython))
      GTEST_SKIP() << kPython << " is not set: not judged by PyTorch's operators. See scripts/peer-python";
  }

  // Expects no differences. `arguments` are those of check_operators.py.
  static void expect_none(const std::vector<std::string>& arguments) {
    std::vector<std::string> all = {program_path("../test/libsame_kernels_library.so")};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const OracleAnswer answer =
        run_script(*Environment::of_process().get(kPython), "tests/operators/check_operators.py", all);
    constexpr int kOtherVersion = 77;  // of LibTorch
    if (WEXITSTATUS(answer.status) == kOtherVersion) GTEST_SKIP() << answer.output;
    EXPECT_EQ(answer.status, 0) << answer.output;
  }
};

using OperatorDatabaseSoak = OperatorDatabase;

// Operators of each topic of docs/kernels.md.
const std::vector<std::string> kSome = {"addmm",
                                        "baddbmm",
                                        "nn.functional.conv2d",
                                        "nn.functional.conv_transpose2d",
                                        "sum",
                                        "var",
                                        "linalg.vector_norm",
                                        "softmax",
                                        "log_softmax",
                                        "cumsum",
                                        "native_layer_norm",
                                        "nn.functional.batch_norm",
                                        "index_add",
                                        "scatter_add",
                                        "index_put",
                                        "nn.functional.embedding_bag",
                                        "exp",
                                        "tanh",
                                        "erfinv",
                                        "atan2",
                                        "remainder",
                                        "lerp",
                                        "nn.functional.gelu",
                                        "nn.functional.interpolate",
                                        "nn.functional.scaled_dot_product_attention"};

std::vector<std::string> of_some(std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), kSome.begin(), kSome.end());
  return arguments;
}

TEST_F(OperatorDatabase, some_samples_have_the_results_and_gradients_of_libtorch_in_float64) {
  expect_none(of_some({"values", "3"}));
}

TEST_F(OperatorDatabase, some_samples_have_the_same_bits_on_all_processors) {
  expect_none(of_some({"bits", "3"}));
}

TEST_F(OperatorDatabaseSoak, all_samples_have_the_results_and_gradients_of_libtorch_in_float64) {
  expect_none({"values", "all"});
}

TEST_F(OperatorDatabaseSoak, all_samples_have_the_same_bits_on_all_processors) {
  expect_none({"bits", "all"});
}

}  // namespace
}  // namespace tutti::operators_test

// Runs the Python code of docs/python.md.
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tutti/base/file.h"
#include "tutti/base/test_folder.h"
#include "tutti/base/test_oracle.h"
#include "tutti/base/test_run.h"
#include "tutti/base/text.h"
#include "tutti/train/export/test_export.h"
#include "tutti/train/load.h"
#include "tutti/train/test_training.h"
#include "tutti/train/trainer.h"

namespace tutti::python_page_test {
namespace {

namespace fs = std::filesystem;

struct Tied : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& words) { return torch::matmul(embedding(words), output.t()); }
  torch::nn::Embedding embedding = register_module("embedding", torch::nn::Embedding(1000, 64));
  torch::Tensor output = register_parameter("output", embedding->weight);
};

std::string python_in(const std::string& page) {
  std::string code;
  bool in_block = false;
  for (const std::string& line : split(read_file(page), '\n')) {
    if (line.starts_with("```")) {
      in_block = line == "```python";
    } else if (in_block) {
      code += line + "\n";
    }
  }
  return code;
}

// Debian's Python has PyTorch, and the Python of the tests has safetensors, but its NumPy is not the one of
// that PyTorch. So the command gets a folder with nothing but safetensors.
std::string python_command(const TestFolder& folder) {
  fs::create_directory(folder / "packages");
  const OracleAnswer found = ask_oracle("where_is.py", {"safetensors"});
  if (found.status != 0) return "";
  fs::create_directory_symlink(found.output.substr(0, found.output.find('\n')),
                               folder / "packages/safetensors");
  return "cd " + shell_quoted(folder.path()) + " && PYTHONPATH=packages /usr/bin/python3 ";
}

// A run and an export of the page's model.
void make_files(const TestFolder& folder, const std::shared_ptr<Tied>& net) {
  RunConfig config = test_flags();
  config.checkpoints.logdir = folder / "run";
  const Context context = export_context(config);
  const data::Feed feed(data::from_tensors({{"words", torch::arange(40 * 8).view({40, 8})}}));
  ExportOptions exports{.free_sizes = {{.name = "length", .of = {{"words", 1}}}}};
  exports.more_signatures["embed"] = {.outputs = {"vectors"},
                                      .function = [&](const Batch& batch) -> std::vector<torch::Tensor> {
                                        return {net->embedding(batch["words"])};
                                      }};
  Trainer trainer(context, net, torch::optim::SGDOptions(0.1),
                  [](Tied& tied, const Batch& batch) { return tied.forward(batch["words"]).square().mean(); },
                  {.exports = exports});
  trainer.fit(feed, {.steps = 2});
  trainer.export_model(folder / "exports", feed, exports);
}

TEST(PythonPage, is_true_of_pytorch_and_of_tutti) {
  TUTTI_NEEDS_ORACLES();
  if (std::system("/usr/bin/python3 -c 'import torch' 2>/dev/null") != 0)
    GTEST_SKIP() << "NOT TESTED: no PyTorch in /usr/bin/python3 (apt install python3-torch)";
  const TestFolder folder;
  const auto net = std::make_shared<Tied>();
  make_files(folder, net);
  const std::string command = python_command(folder);
  ASSERT_NE(command, "");
  folder.write("page.py", python_in(source_path("docs/python.md")));
  EXPECT_EQ(std::system((command + "page.py").c_str()), 0);
  for (const char* file : {"weights.safetensors", "weights.pt", "nested.pt"}) {
    Tied other;
    EXPECT_EQ(load_weights(other, folder / file).loaded.size(), 1U) << file;
    EXPECT_TRUE(other.output.equal(net->output)) << file;
    EXPECT_TRUE(other.embedding->weight.equal(net->output)) << file;
  }
}

}  // namespace
}  // namespace tutti::python_page_test

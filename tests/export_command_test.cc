// Tests exports by whole programs: the command, workers in every way of training, programs that are killed,
// and readers that do not have Tutti.
#include <csignal>
#include <filesystem>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/types.h>

#include "tests/few_digits.h"
#include "tests/together.h"
#include "tutti/base/test_run.h"
#include "tutti/store/safetensors.h"

namespace tutti::testing::export_command_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A folder on a disk, since its files may be larger than what the memory file system of a container takes.
class DiskFolder {
 public:
  DiskFolder() : path_((fs::temp_directory_path() / "tutti-test-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("no folder " + path_);
  }
  ~DiskFolder() { fs::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

void expect_same_tensors(const std::string& here, const std::string& there) {
  const store::SafetensorsFile one(here);
  const store::SafetensorsFile other(there);
  EXPECT_EQ(one.tensors().size(), other.tensors().size());
  for (const store::TensorInfo& info : other.tensors())
    EXPECT_TRUE(one.read(info.name).equal(other.read(info.name))) << info.name;
}

ProgramResult run_well(const Words& command, const Words& environment = {}) {
  const ProgramResult result = run_program(command, environment);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  return result;
}

Words mnist() {
  return {program_path("mnist"), "--threads",   "1",      "--batch", "4", "--data",
          few_digits(),          "--log-level", "warning"};
}

const Words kGpt = {program_path("gpt"), "--threads", "1",           "--characters", "20000", "--layers", "1",
                    "--channels",        "16",        "--log-level", "warning"};

// --- The command

TEST(ExportCommand, exports_the_checkpoint_of_a_program_that_does_not_know_of_it) {
  const TestFolder folder;
  run_well(mnist() + Words{"--logdir", folder / "run", "--steps", "3"});
  const Words command = {program_path("tutti"), "export", folder / "run",    "--program",
                         program_path("mnist"), "--out",  folder / "exports"};
  const ProgramResult result = run_well(command + Words{"--", "--log-level", "warning"});
  EXPECT_EQ(result.out, folder / "exports/1\n");
  EXPECT_EQ(result.err, "");
  expect_same_tensors(folder / "exports/1/weights.safetensors", folder / "run/latest/weights.safetensors");
  // It does not take part in the run.
  EXPECT_EQ(names_in(folder / "run").count("lock"), 1U);
  const nlohmann::json signature = json_of(folder / "exports/1/signature.json");
  EXPECT_EQ(signature.at("step"), 3);
  EXPECT_EQ(signature.at("check").at("same_bits"), true);
  const ProgramResult again = run_well(command);
  EXPECT_EQ(again.out, folder / "exports/2\n");
  EXPECT_THAT(again.err, HasSubstr("another process computes the same"));
  EXPECT_THAT(again.err, HasSubstr("forward(image float32[*,1,28,28]) -> prediction float32[*,10]"));
  EXPECT_THAT(again.err, HasSubstr("all other sizes are fixed"));
}

TEST(Inspect, shows_the_signature_the_check_and_the_weights_of_an_export) {
  const TestFolder folder;
  const auto inspect = [&](const std::string& path) {
    return run_program({program_path("tutti"), "inspect", folder / path});
  };
  run_well(kGpt + Words{"--steps", "1", "--export-to", folder / "exports"});
  for (const char* path : {"exports", "exports/1", "exports/1/"}) {
    const ProgramResult result = inspect(path);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr(folder / "exports/1: a torchscript model, exported by Tutti "));
    EXPECT_THAT(result.out, HasSubstr(" after step 1: the moving average of the weights\n"));
    EXPECT_THAT(result.out, HasSubstr("forward(tokens int64[*,*]) -> prediction float32[*,*,128]"));
    EXPECT_THAT(result.out, HasSubstr("forward was checked with 104 examples"));
    EXPECT_THAT(result.out, HasSubstr("length: 64, 32, 1, 63\n"));
    EXPECT_THAT(result.out, HasSubstr("model.pt: "));
    EXPECT_THAT(result.out, HasSubstr("words.weight"));
    EXPECT_THAT(result.out, HasSubstr("head.weight"));
  }
  fs::rename(folder / "exports/1/model.pt", folder / "model.pt");
  EXPECT_THAT(inspect("exports").err, HasSubstr("model.pt is missing"));
  folder.write("exports/1/signature.json", "{}");
  EXPECT_EQ(inspect("exports").exit_code, 12);
  EXPECT_THAT(inspect("exports").err, HasSubstr("signature.json: it does not describe an exported model"));
}

// The sizes of the tables are flags of the program, which the checkpoint has recorded.
TEST(ExportCommand, builds_the_model_with_the_flags_of_the_run) {
  const TestFolder folder;
  run_well({program_path("tutti"),
            "run",
            "-n",
            "2",
            "--",
            program_path("clicks"),
            "--rows",
            "5000",
            "--dim",
            "16",
            "--examples",
            "2000",
            "--tested",
            "100",
            "--batch",
            "64",
            "--steps",
            "3",
            "--logdir",
            folder / "run"});
  const Words command = {program_path("tutti"),  "export", folder / "run/ckpt-3", "--program",
                         program_path("clicks"), "--out",  folder / "exports"};
  EXPECT_EQ(run_well(command).out, folder / "exports/1\n");
  const store::SafetensorsFile weights(folder / "exports/1/weights.safetensors");
  EXPECT_EQ(weights.read("id25.weight").sizes(), (std::vector<int64_t>{5000, 16}));
  const nlohmann::json signature = json_of(folder / "exports/1/signature.json");
  EXPECT_EQ(signature.at("inputs").size(), 27U);
  const ProgramResult other = run_program(command + Words{"--", "--dim", "17"});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("float32[64,455]"));
  EXPECT_EQ(names_in(folder / "exports"), std::set<std::string>{"1"});
}

// The checkpoint has recorded flags that the other program does not know.
TEST(ExportCommand, of_the_checkpoint_of_another_program_names_what_does_not_fit) {
  const TestFolder folder;
  run_well({program_path("clicks"), "--rows", "500", "--examples", "200", "--tested", "100", "--batch", "64",
            "--steps", "1", "--logdir", folder / "run"});
  const ProgramResult result = run_program({program_path("tutti"), "export", folder / "run", "--program",
                                            program_path("mnist"), "--out", folder / "exports"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("not a checkpoint of the program's model"),
                                HasSubstr("'conv1.weight' is missing in the checkpoint"),
                                Not(HasSubstr("TUTTI_")), Not(HasSubstr("Missing::Allow"))));
  EXPECT_FALSE(fs::exists(folder / "exports/1"));
}

TEST(ExportCommand, says_that_a_program_has_exported_nothing) {
  const TestFolder folder;
  run_well(mnist() + Words{"--logdir", folder / "run", "--steps", "1"});
  const auto exported_by = [&](const std::string& program) {
    const ProgramResult result = run_program(
        {program_path("tutti"), "export", folder / "run", "--program", program, "--out", folder / "exports"});
    EXPECT_EQ(result.exit_code, 2);
    return result.err;
  };
  EXPECT_THAT(exported_by("true"), HasSubstr("true ended well but exported nothing to "));
  EXPECT_THAT(exported_by("no-such-program"), HasSubstr("no-such-program"));
}

TEST(ExportCommand, of_a_run_of_two_halves_says_what_to_do) {
  const TestFolder folder;
  run_well({program_path("tutti"), "run", "-n", "2", "--", program_path("two_halves"), "--halves", "--steps",
            "2", "--logdir", folder / "run"});
  const ProgramResult result = run_program({program_path("tutti"), "export", folder / "run", "--program",
                                            program_path("two_halves"), "--out", folder / "exports"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("train without --halves, which gives the same weights"));
  const ProgramResult alone = run_program({program_path("two_halves"), "--halves"});
  EXPECT_EQ(alone.exit_code, 2);
  EXPECT_THAT(alone.err, HasSubstr("tutti run -n 2 -- two_halves --halves"));
}

TEST(ExportCommand, kills_a_program_that_ignores_signals_at_the_second_one) {
  const TestFolder folder;
  run_well(mnist() + Words{"--logdir", folder / "run", "--steps", "1"});
  folder.write("stubborn", "#!/bin/sh\ntrap '' INT TERM\necho ready\nwhile :; do sleep 0.05; done\n");
  fs::permissions(folder / "stubborn", fs::perms::owner_all);
  RunningProgram program({program_path("tutti"), "export", folder / "run", "--program", folder / "stubborn",
                          "--out", folder / "exports"});
  program.wait_for_output("ready");
  kill(program.pid(), SIGTERM);
  kill(program.pid(), SIGINT);
  EXPECT_EQ(program.wait(), 128 + SIGKILL);
}

TEST(ExportCommand, says_what_is_missing) {
  const TestFolder folder;
  run_well(mnist() + Words{"--logdir", folder / "run", "--steps", "1"});
  const auto fails = [&](const Words& words, const std::string& part, const Words& environment = {}) {
    const ProgramResult result = run_program(words, environment);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr(part));
    EXPECT_FALSE(fs::exists(folder / "exports"));
  };
  const Words tutti = {program_path("tutti"), "export"};
  const Words to = {"--program", program_path("mnist"), "--out", folder / "exports"};
  fails(tutti + to, "CHECKPOINT is required");
  fails(tutti + Words{folder / "run"}, "--program is required");
  fails(tutti + Words{folder / "nowhere"} + to, "there is no such file or folder");
  fails(tutti + Words{folder / "run", "--program", folder / "nothing", "--out", folder / "exports"},
        "nothing: there is no such program");
  fails(tutti + Words{folder / "run", "--program", "/bin/true", "--outt", "x"}, "did you mean '--out'");
  fails(tutti + Words{folder / "run", "--program", program_path("mnist"), "--out", ""}, "--out: it is empty");
  fails(mnist() + Words{"--export", folder / "exports"}, "--export-from, or --logdir");
  fails(mnist() + Words{"--export", folder / "exports", "--export-from", folder / "nowhere"},
        "there is no such file or folder");
  fails(mnist() + Words{"--export", folder / "exports", "--export-from", folder / "run"}, "a single process",
        {"TF_CONFIG={\"cluster\": {\"worker\": [\"a:1\", \"b:1\"]}, \"task\": {\"type\": \"worker\", "
         "\"index\": 0}}"});
  fails({together_program(), "--own-loop", "--export", folder / "exports", "--export-from", folder / "run"},
        "trains by a Loop");
}

TEST(ExportCommand, does_not_train_and_does_not_write_beside_the_export) {
  const TestFolder folder;
  run_well(mnist() + Words{"--logdir", folder / "run", "--steps", "1"});
  const auto before = names_in(folder / "run");
  run_well(mnist() + Words{"--export", folder / "exports", "--logdir", folder / "run", "--steps", "1000000",
                           "--report", folder / "report.json", "--timeline", folder / "timeline.json"});
  EXPECT_EQ(names_in(folder / "run"), before);
  EXPECT_FALSE(fs::exists(folder / "report.json"));
  EXPECT_FALSE(fs::exists(folder / "timeline.json"));
  EXPECT_EQ(names_in(folder / "exports"), std::set<std::string>{"1"});
}

// --- Workers

struct Way {
  const char* name;
  Words launch;
  Words flags;
  int told;  // the workers that call export_model()
};

std::vector<Way> ways() {
  const auto on = [](int workers, const Words& more = {}) {
    return Words{program_path("tutti"), "run", "-n", std::to_string(workers)} + more;
  };
  return {{"alone", on(1), {}, 1},
          {"2 in shared memory", on(2), {}, 2},
          {"3 over TCP", on(3), {"--comm", "tcp"}, 3},
          {"ps-sync", on(2, {"--ps", "2"}), {"--strategy", "ps-sync"}, 2},
          {"ps-async", on(2, {"--ps", "1"}), {"--strategy", "ps-async"}, 2},
          {"in-graph", on(2), {"--strategy", "in-graph"}, 3}};
}

Words command_of(const Way& way, const Words& more) {
  return way.launch +
         Words{"--", together_program(), "--threads", "1", "--steps", "3", "--lanes", "6", "--batch", "4"} +
         way.flags + more;
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(ExportByWorkers, is_made_by_one_and_known_to_all_in_every_way_of_training) {
  for (const Way& way : ways()) {
    const TestFolder folder;
    const ProgramResult result =
        run_well(command_of(way, {"--logdir", folder / "run", "--export-into", folder / "exports"}));
    EXPECT_EQ(count(result.out, "exported " + folder / "exports/1\n"), way.told) << way.name << result.out;
    EXPECT_EQ(names_in(folder / "exports"), std::set<std::string>{"1"}) << way.name;
    expect_same_tensors(folder / "exports/1/weights.safetensors", folder / "run/latest/weights.safetensors");
  }
}

TEST(ExportByWorkers, that_fails_is_the_same_error_for_all) {
  for (const Way& way : ways()) {
    const TestFolder folder;
    folder.write("file", "");
    const ProgramResult result = run_program(command_of(way, {"--export-into", folder / "file"}));
    EXPECT_EQ(result.exit_code, 2) << way.name << result.err;
    EXPECT_THAT(result.err, HasSubstr("InvalidArgument: making the directory " + folder / "file"))
        << way.name;
    EXPECT_THAT(result.err, ::testing::Not(HasSubstr("PeerLost"))) << way.name;
  }
}

TEST(ExportByWorkers, has_the_moving_average_of_the_chief) {
  for (const Way& way : ways()) {
    const TestFolder folder;
    run_well(command_of(
        way, {"--average", "0.5", "--logdir", folder / "run", "--export-into", folder / "exports"}));
    const store::SafetensorsFile exported(folder / "exports/1/weights.safetensors");
    const store::SafetensorsFile average(folder / "run/latest/average.safetensors");
    EXPECT_TRUE(exported.read("dense.weight").equal(average.read("dense.weight"))) << way.name;
  }
}

// --- Programs that are killed

TEST(ExportThatIsKilled, leaves_no_version_and_the_next_one_cleans_up) {
  const DiskFolder folder;
  const Words command = {together_program(), "--threads", "1",     "--steps", "1",
                         "--batch",          "1",         "--net", "wide",    "--export-into",
                         folder / "exports"};
  // At several moments: when the folder is made, when the model is written, when the check has begun.
  for (const char* file : {"", "/model.pt", "/check/request.json"}) {
    {
      RunningProgram program(command);
      const auto has_begun = [&] {
        if (!fs::exists(folder / "exports")) return false;
        const auto all = names_in(folder / "exports");
        return std::any_of(all.begin(), all.end(),
                           [&](const auto& name) { return fs::exists(folder / "exports/" + name + file); });
      };
      // Looks as often as it can.
      while (!has_begun()) ASSERT_EQ(::kill(program.pid(), 0), 0);
      ::kill(program.pid(), SIGKILL);
      program.wait();
    }
    for (const std::string& name : names_in(folder / "exports")) EXPECT_TRUE(name.starts_with(".")) << name;
    EXPECT_FALSE(fs::exists(folder / "exports/1"));
  }
  EXPECT_TRUE(eventually([] { return processes_with("_TUTTI_EXPORT_CHECK").empty(); }));
  run_well(command);
  EXPECT_EQ(names_in(folder / "exports"), std::set<std::string>{"1"});
}

// --- Programs without tutti::run(), and without Tutti

TEST(ExportOfAProgramWithItsOwnMain, is_checked_by_the_command) {
  const TestFolder folder;
  const Words command = {together_program(), "own-export", folder / "exports"};
  const ProgramResult without = run_program(command, {"PATH=/usr/bin:/bin"});
  EXPECT_EQ(without.exit_code, 2);
  EXPECT_THAT(without.out, HasSubstr("tutti-torch is neither beside this one nor in PATH"));
  const std::string bin = fs::path(program_path("tutti")).parent_path();
  const ProgramResult with = run_well(command, {"PATH=/usr/bin:/bin:" + bin});
  EXPECT_EQ(with.out, "exported " + folder / "exports/1\n");
}

// The numbers of oracles/run_export.py.
torch::Tensor counted(const nlohmann::json& input, int64_t examples) {
  std::vector<int64_t> shape;
  for (const auto& size : input.at("shape")) shape.push_back(size.is_null() ? examples : size.get<int64_t>());
  const torch::Tensor like = torch::empty(shape);
  const torch::Tensor numbers = (torch::arange(like.numel()) % 33).view(shape);
  return input.at("dtype") == "float32" ? numbers.to(torch::kFloat) / 16 - 1 : numbers;
}

bool has_pytorch(const std::string& python) {
  return std::system((python + " -c 'import torch' 2>/dev/null").c_str()) == 0;
}

TEST(GptExample, writes_the_same_in_cpp_and_in_python) {
  const std::string python = "/usr/bin/python3";
  if (!has_pytorch(python))
    GTEST_SKIP() << "NOT TESTED: no PyTorch in " << python << " (apt install python3-torch)";
  const TestFolder folder;
  const ProgramResult here =
      run_well(kGpt + Words{"--steps", "300", "--prompt", "the old", "--export-to", folder / "out"});
  const size_t begin = here.out.find("the old");
  ASSERT_NE(begin, std::string::npos) << here.out;
  EXPECT_EQ(here.out.substr(begin),
            run_well({python, source_path("examples/15_gpt/generate.py"), folder / "out/1", "the old"}).out);
}

TEST(GptExample, has_the_same_perplexity_on_two_workers) {
  const Words command = kGpt + Words{"--steps", "20", "--lanes", "2"};
  const ProgramResult alone = run_well(command);
  EXPECT_THAT(alone.out, HasSubstr("after 20 steps"));
  EXPECT_EQ(run_well(Words{program_path("tutti"), "run", "-n", "2", "--"} + command).out,
            "[worker/0] " + alone.out);
}

// Debian's Python provides the PyTorch that matches Debian's LibTorch.
TEST(ExportInPython, has_the_same_names_and_predictions) {
  const std::string python = "/usr/bin/python3";
  if (!has_pytorch(python))
    GTEST_SKIP() << "NOT TESTED: no PyTorch in " << python << " (apt install python3-torch)";
  const TestFolder folder;
  run_well(mnist() + Words{"--logdir", folder / "mnist", "--steps", "3"});
  run_well({program_path("clicks"), "--rows", "5000", "--examples", "2000", "--tested", "100", "--batch",
            "64", "--steps", "3", "--logdir", folder / "clicks"});
  for (const std::string program : {"mnist", "clicks"}) {
    run_well({program_path("tutti"), "export", folder / program, "--program", program_path(program), "--out",
              folder / program + "-exports"});
    const std::string path = folder / program + "-exports/1";
    const nlohmann::json found =
        nlohmann::json::parse(run_well({python, source_path("tests/oracles/run_export.py"), path, "5"}).out);
    EXPECT_EQ(found.at("training"), false);
    const store::SafetensorsFile weights(path + "/weights.safetensors");
    std::set<std::string> names;
    for (const store::TensorInfo& info : weights.tensors()) names.insert(info.name);
    const auto in_python = found.at("parameters").get<std::set<std::string>>();
    EXPECT_EQ(in_python, names);

    std::vector<torch::jit::IValue> inputs;
    const nlohmann::json signature = json_of(path + "/signature.json");
    for (const nlohmann::json& input : signature.at("inputs")) inputs.push_back(counted(input, 5));
    const torch::NoGradGuard no_grad;
    const torch::Tensor here = torch::jit::load(path + "/model.pt").forward(inputs).toTensor().flatten();
    const auto there = found.at("outputs")[0].get<std::vector<double>>();
    EXPECT_TRUE(here.to(torch::kDouble).allclose(torch::tensor(there, torch::kDouble), 1e-4, 1e-5))
        << program;
  }
}

}  // namespace
}  // namespace tutti::testing::export_command_test

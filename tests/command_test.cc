// Tests `tutti inspect` and `tutti doctor` from a user's point of view.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <signal.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tests/tool.h"
#include "tutti/store/checkpoint.h"
#include "tutti/store/safetensors.h"

namespace tutti::testing::command_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::PrintToString;

store::Checkpoint small_checkpoint(int64_t step) {
  store::Checkpoint checkpoint;
  checkpoint.step = step;
  checkpoint.weights = {{"conv.weight", torch::tensor({{1.0F, 2.0F, 3.0F}, {-4.0F, 5.0F, 5.0F}})},
                        {"conv.bias", torch::zeros({0})},
                        {"count", torch::tensor(7, torch::kLong)}};
  checkpoint.optimizer = {{"exp_avg/conv.weight", torch::tensor({0.5F, std::nanf(""), INFINITY})}};
  checkpoint.state = {{"lanes", 4}, {"seed", 1}};
  return checkpoint;
}

ProgramResult inspect(const std::string& path) {
  return run_program({program_path("tutti"), "inspect", path});
}

void flip_a_bit(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const char last = static_cast<char>(file.get());
  file.seekp(-1, std::ios::end);
  file.put(static_cast<char>(last ^ 1));
}

TEST(Inspect, shows_names_types_shapes_and_values_of_the_newest) {
  const TestFolder logdir;
  store::CheckpointDir(logdir.path()).save(small_checkpoint(10));
  store::CheckpointDir(logdir.path()).save(small_checkpoint(20));
  const auto result = inspect(logdir.path() + "/");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("checkpoints of step 10, 20"));
  EXPECT_THAT(result.out, HasSubstr("after step 20"));
  EXPECT_THAT(result.out, HasSubstr("lanes: 4"));
  EXPECT_THAT(result.out, HasSubstr("is correct"));
  EXPECT_THAT(result.out, ContainsRegex("conv.weight +float +2x3 +24 B +-4 +2 +5\n"));
  EXPECT_THAT(result.out, ContainsRegex("conv.bias +float +0 +0 B empty\n"));
  EXPECT_THAT(result.out, ContainsRegex("count +long +scalar +8 B +7 +7 +7\n"));
  EXPECT_THAT(result.out, ContainsRegex("exp_avg/conv.weight .* 2 of 3 values are not finite"));
}

TEST(Inspect, takes_one_checkpoint_and_one_file) {
  const TestFolder logdir;
  store::CheckpointDir(logdir.path()).save(small_checkpoint(10));
  EXPECT_THAT(inspect(logdir / "ckpt-10").out, HasSubstr("after step 10"));
  EXPECT_THAT(inspect(logdir / "latest").out, HasSubstr("after step 10"));
  const auto file = inspect(logdir / "ckpt-10/weights.safetensors");
  EXPECT_EQ(file.exit_code, 0) << file.err;
  EXPECT_THAT(file.out, HasSubstr("conv.weight"));
  EXPECT_THAT(file.out, HasSubstr("no checksum"));
}

TEST(Inspect, finds_a_flipped_bit) {
  const TestFolder logdir;
  store::CheckpointDir(logdir.path()).save(small_checkpoint(10));
  flip_a_bit(logdir / "ckpt-10/weights.safetensors");
  const auto result = inspect(logdir / "ckpt-10");
  EXPECT_EQ(result.exit_code, 12);
  EXPECT_THAT(result.err, HasSubstr("weights.safetensors"));
  EXPECT_THAT(result.err, HasSubstr("checksum"));
}

TEST(Inspect, shows_the_newest_whole_one_and_names_the_broken) {
  const TestFolder logdir;
  store::CheckpointDir(logdir.path()).save(small_checkpoint(10));
  store::CheckpointDir(logdir.path()).save(small_checkpoint(20));
  flip_a_bit(logdir / "ckpt-20/optimizer.safetensors");
  const auto result = inspect(logdir.path());
  EXPECT_EQ(result.exit_code, 12);
  EXPECT_THAT(result.out, HasSubstr("after step 10"));
  EXPECT_THAT(result.err, HasSubstr("broken: checkpoint of step 20"));
}

TEST(Inspect, says_what_is_missing) {
  const TestFolder empty;
  EXPECT_EQ(inspect(empty.path()).exit_code, 2);
  EXPECT_THAT(inspect(empty.path()).err, HasSubstr("contains no checkpoint"));
  EXPECT_THAT(inspect(empty / "nowhere").err, HasSubstr("no such file or folder"));
  std::ofstream(empty / "notes.txt") << "not tensors";
  EXPECT_EQ(inspect(empty / "notes.txt").exit_code, 2);
  EXPECT_THAT(inspect(empty / "notes.txt").err, HasSubstr("neither a checkpoint nor a .safetensors file"));
  std::ofstream(empty / "notes.safetensors") << "not tensors";
  EXPECT_EQ(inspect(empty / "notes.safetensors").exit_code, 12);
  std::filesystem::create_directory(empty / "ckpt-5");
  EXPECT_NE(inspect(empty / "ckpt-5").exit_code, 0);
}

// LibTorch writes like torch.save() of Python.
TEST(Inspect, shows_the_dictionary_that_a_file_of_torch_save_has) {
  const TestFolder folder;
  c10::Dict<std::string, torch::Tensor> state;
  state.insert("conv.weight", torch::tensor({{1.0F, 2.0F, 3.0F}, {-4.0F, 5.0F, 5.0F}}));
  c10::Dict<std::string, c10::Dict<std::string, torch::Tensor>> whole;
  whole.insert("state_dict", state);
  const auto file_of = [&](const c10::IValue& value) {
    const std::vector<char> bytes = torch::jit::pickle_save(value);
    return folder.write("file.pt", std::string(bytes.begin(), bytes.end()));
  };
  const auto plain = inspect(file_of(state));
  EXPECT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_THAT(plain.out, HasSubstr("file.pt: the tensors, as torch.save() has written them"));
  EXPECT_THAT(plain.out, ContainsRegex("conv.weight +float +2x3 +24 B +-4 +2 +5"));
  EXPECT_THAT(inspect(file_of(whole)).out, HasSubstr("the tensors of its dictionary 'state_dict'"));
  const auto number = inspect(file_of(7));
  EXPECT_EQ(number.exit_code, 2);
  EXPECT_THAT(number.err, HasSubstr("no dictionary of tensors by name"));
}

TEST(Inspect, shows_what_is_in_a_table) {
  const TestFolder folder;
  const std::string path = folder.write("t.csv", "ID,count,size,name\na,1,0.5,\"x, y\"\nb,NA,-2,z\nc,3,,w\n");
  const auto result = inspect(path);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("a table of 3 rows and 4 columns, 51 B; its IDs are in 'ID'"));
  EXPECT_THAT(result.out, ContainsRegex("ID +text +3 +0 +'a' and 2 more\n"));
  EXPECT_THAT(result.out, ContainsRegex("count +integer +2 +1 +1 +2 +3\n"));
  EXPECT_THAT(result.out, ContainsRegex("size +number +2 +1 +-2 +-0.75 +0.5\n"));
  EXPECT_THAT(result.out, ContainsRegex("name +text +3 +0 +'x, y' and 2 more\n"));
  folder.write("t.csv", "ID,x\na,1\na,2\n");
  const auto twice = inspect(path);
  EXPECT_EQ(twice.exit_code, exit_code(ErrorKind::DataLoss));
  EXPECT_THAT(twice.err, HasSubstr("t.csv:3:"));
}

// A file as MovieLens has it: no header, no IDs, and another ending.
TEST(Inspect, shows_a_table_without_header_and_ids) {
  const TestFolder folder;
  const std::string path = folder.write("u.data", "16777217\t7\t3.5\n2\t9007199254740991\t\n3\t9\tx\n");
  const auto result = run_program({program_path("tutti"), "inspect", "--no-header", "--no-ids", path});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("a table of 3 rows and 3 columns, 41 B; without IDs"));
  EXPECT_THAT(result.out, ContainsRegex("1 +integer +3 +0 +2 +5.592e\\+06 +16777217\n"));
  EXPECT_THAT(result.out, ContainsRegex("2 +integer +3 +0 +7 +3.002e\\+15 9007199254740991\n"));
  EXPECT_THAT(result.out, ContainsRegex("3 +mixed +2 +1 +3.5 +3.5 +3.5 +'x'\n"));
  EXPECT_NE(run_program({program_path("tutti"), "inspect", "--no-ids", "--id", "1", path}).exit_code, 0);
}

TEST(Shard, cuts_tables_without_ids) {
  const TestFolder folder;
  const std::string x = folder.write("x.txt", "7\t1\n7\t2\n7\t3\n");
  const std::string y = folder.write("y.txt", "a\na\nb\n");
  const auto result = run_program(
      {program_path("tutti"), "shard", x, y, "-n", "2", "--no-header", "--no-ids", "--out", folder / "out"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(read_file(folder / "out/shard0/x.txt"), "7\t1\n7\t2\n");
  EXPECT_EQ(read_file(folder / "out/shard1/y.txt"), "b\n");
}

TEST(Doctor, looks_at_everything_and_knows_the_blas) {
  const auto result = run_program({program_path("tutti"), "doctor"});
  for (const char* about : {"Tutti", "LibTorch", "BLAS", "cores", "GPUs", "memory", "on one host",
                            "between hosts", "ports", "identity", "kernels", "bf16"}) {
    EXPECT_THAT(result.out, HasSubstr(about));
  }
  EXPECT_THAT(result.out, Not(HasSubstr("reference BLAS")));
  EXPECT_EQ(result.exit_code, result.out.find("\nbad ") == std::string::npos ? 0 : 1) << result.out;
}

// Returns what follows the word in the line of `tutti doctor` about these kernels.
std::string kernels_line(const std::string& kernels, const std::string& word,
                         const std::vector<std::string>& environment) {
  const auto result = run_program({program_path("tutti"), "doctor"}, environment);
  const std::regex line(fmt::format("kernels {} .*{}([^,;\n]*)", kernels, word));
  std::smatch found;
  EXPECT_TRUE(std::regex_search(result.out, found, line)) << result.out;
  return found.str(1);
}

// The hashes find other kernels also where no variable tells: these are the kernels of other processors.
TEST(Doctor, hashes_of_kernels_tell_instruction_sets_apart) {
  if (kernels_line("libtorch", "with ", {}).starts_with("DEFAULT"))
    GTEST_SKIP() << "NOT TESTED: LibTorch has only one kind of kernels on this processor";
  std::set<std::string> results;
  const std::vector<std::vector<std::string>> machines = {
      {},
      {"ATEN_CPU_CAPABILITY=default"},
      {"ONEDNN_MAX_CPU_ISA=SSE41"},
      {"MKL_CBWR=COMPATIBLE"},
      {"ATEN_CPU_CAPABILITY=default", "MKL_CBWR=COMPATIBLE"}};
  std::set<std::string> same_results;
  for (const auto& variables : machines) {
    results.insert(kernels_line("libtorch", "results ", variables));
    same_results.insert(kernels_line("same", "results ", variables));
  }
  EXPECT_EQ(results.size(), machines.size());
  EXPECT_EQ(same_results.size(), 1U);
  for (int again = 0; again < 3; ++again)
    EXPECT_TRUE(results.contains(kernels_line("libtorch", "results ", {})));
  EXPECT_NE(kernels_line("libtorch", "updates ", {}),
            kernels_line("libtorch", "updates ", {"ATEN_CPU_CAPABILITY=default"}));
}

// Errors are printed as programs do.
TEST(Commands, print_errors_with_their_kind) {
  const TestFolder folder;
  const std::string tutti = program_path("tutti");
  for (const Words& arguments :
       std::vector<Words>{{"inspekt"},
                          {"run"},
                          {"run", "--ps", "-1", "--", "true"},
                          {"help", "inspekt"},
                          {"inspect", folder / "nowhere"},
                          {"inspect", "--ids", "x"},
                          {"shard", folder / "t.csv", "-n", "2", "--out", folder / "s"},
                          {"doctor", "--fast"},
                          {"bench", "nothing"},
                          {"serve"},
                          {"stop"}}) {
    const auto result = run_program(Words{tutti} + arguments);
    EXPECT_EQ(result.exit_code, 2) << PrintToString(arguments);
    EXPECT_THAT(result.err, ::testing::StartsWith("InvalidArgument: ")) << PrintToString(arguments);
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
  folder.write("t.csv", "ID,x\na\n");
  const auto damaged = run_program({tutti, "inspect", folder / "t.csv"});
  EXPECT_EQ(damaged.exit_code, 12);
  EXPECT_THAT(damaged.err, ::testing::StartsWith("DataLoss: "));
}

TEST(Commands, explain_themselves) {
  const std::string tutti = program_path("tutti");
  EXPECT_THAT(run_program({tutti, "help"}).out, HasSubstr("usage: tutti COMMAND"));
  EXPECT_EQ(run_program({tutti, "help", "run"}).out, run_program({tutti, "run", "--help"}).out);
  EXPECT_THAT(run_program({tutti, "run", "--ps", "-1", "--", "true"}).err,
              AllOf(HasSubstr("--ps"), Not(HasSubstr("did you mean"))));
}

TEST(Doctor, ends_by_a_signal_that_interrupts_it) {
  for (const int number : {SIGINT, SIGTERM}) {
    RunningProgram doctor({program_path("tutti"), "doctor"});
    EXPECT_TRUE(eventually([&] {
      std::error_code ignored;
      const auto program =
          std::filesystem::read_symlink("/proc/" + std::to_string(doctor.pid()) + "/exe", ignored);
      return program.filename() == "tutti-torch";
    }));
    kill(doctor.pid(), number);
    EXPECT_EQ(doctor.wait(), 128 + number);
    EXPECT_EQ(doctor.out(), "");
  }
}

TEST(Doctor, calls_a_contradictory_identity_bad) {
  const auto result = run_program({program_path("tutti"), "doctor"}, {"TF_CONFIG={\"cluster\": 5"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, HasSubstr("bad   identity"));
  EXPECT_THAT(result.out, HasSubstr("TF_CONFIG"));
}

}  // namespace
}  // namespace tutti::testing::command_test

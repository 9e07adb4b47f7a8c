#include "tutti/store/checkpoint.h"

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sys/resource.h>
#include <thread>

#include <torch/version.h>

#include "tutti/base/file.h"
#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/base/test_oracle.h"
#include "tutti/base/test_refused_calls.h"
#include "tutti/base/version.h"
#include "tutti/store/manifest.h"
#include "tutti/store/safetensors.h"
#include "tutti/store/shared_files.h"
#include "tutti/store/test_checkpoint.h"

namespace tutti::store {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

void flip_bit(const std::string& path, size_t bit) {
  std::string text = read_file(path);
  ASSERT_LT(bit / 8, text.size());
  text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << (bit % 8)));
  replace_file(path, text);
}

// Has checkpoints of steps 1 and 2; 2 is the newest.
class Damaged : public testing::Test {
 protected:
  Damaged() {
    directory_.save(checkpoint_of(1));
    directory_.save(checkpoint_of(2));
  }

  void expect_the_older_one_is_used(const std::string& reason) const {
    const auto loaded = directory_.load_latest();
    ASSERT_TRUE(loaded.checkpoint);
    EXPECT_EQ(loaded.checkpoint->step, 1);
    EXPECT_EQ(checked_mark(*loaded.checkpoint), 0);
    EXPECT_THAT(loaded.skipped, ElementsAre(AllOf(HasSubstr("step 2"), HasSubstr(reason))));
    expect_error(ErrorKind::DataLoss, HasSubstr(reason), [&] { static_cast<void>(directory_.load(2)); });
  }

  TestFolder folder_;
  CheckpointDir directory_{folder_.path()};
};

TEST(Checkpoint, comes_back_as_it_was_saved) {
  const TestFolder folder;
  CheckpointDir directory(folder / "runs/one");
  Checkpoint saved = checkpoint_of(7, 3);
  saved.state["cursor"] = {{"epoch", 2}, {"seed", ~uint64_t{0}}, {"rate", 0.1 + 0.2}};
  directory.save(saved);
  const auto loaded = directory.load_latest();
  ASSERT_TRUE(loaded.checkpoint);
  EXPECT_EQ(loaded.checkpoint->step, 7);
  EXPECT_EQ(checked_mark(*loaded.checkpoint), 3);
  EXPECT_EQ(loaded.checkpoint->state, saved.state);
  EXPECT_THAT(loaded.skipped, IsEmpty());
}

// Tied weights are written under both names, and read with the base.
TEST(Checkpoint, tells_how_many_bytes_are_written_and_read) {
  const TestFolder folder;
  CheckpointDir directory(folder.path());
  int64_t done = 0;
  int64_t all = 0;
  const OnProgress note = [&](int64_t now, int64_t of) {
    EXPECT_GE(now, done);
    EXPECT_GT(now, 0);
    done = now;
    all = of;
  };
  Checkpoint checkpoint = checkpoint_of(1, 0, int64_t{8} << 20);
  constexpr int64_t kTensor = int64_t{32} << 20;
  checkpoint.tied = {{"head.weight", "conv1.weight"}};
  directory.save(checkpoint, {}, note);
  EXPECT_EQ(all, 4 * kTensor + 8);
  EXPECT_EQ(done, all);
  Checkpoint later = checkpoint_of(2);
  later.base = Base{.step = 1, .parts = {{kOptimizerPart, {}}}};
  directory.save(later);
  done = 0;
  directory.load_latest({}, note);
  EXPECT_NEAR(static_cast<double>(all), 2 * kTensor, 20000) << "with headers";
  EXPECT_NEAR(static_cast<double>(done), static_cast<double>(all), 20000) << "without headers";
}

TEST(Checkpoint, is_read_in_parts) {
  const TestFolder folder;
  CheckpointDir directory(folder.path());
  const auto with_rows = [](int64_t step, float value) {
    Checkpoint checkpoint = checkpoint_of(step);
    checkpoint.more["rows"] = {{"r", torch::full({2}, value)}};
    checkpoint.more["other"] = {{"o", torch::full({2}, value)}};
    return checkpoint;
  };
  directory.save(with_rows(1, 1));
  Checkpoint later = with_rows(2, 2);
  later.base = Base{.step = 1, .parts = {{"rows", {}}}};
  directory.save(later);

  const std::string path = folder / "ckpt-2";
  const Checkpoint all = load_checkpoint(path);
  EXPECT_EQ(all.more.size(), later.more.size());
  EXPECT_FALSE(all.optimizer.empty());
  const Checkpoint some = load_checkpoint(path, {kWeightsPart, "rows"});
  EXPECT_EQ(some.weights.size(), all.weights.size());
  EXPECT_TRUE(some.optimizer.empty());
  EXPECT_EQ(some.more.size(), 1U);
  EXPECT_TRUE(some.more.at("rows")[0].tensor.equal(torch::full({2}, 2.F)));
  EXPECT_TRUE(some.base.value().parts.at("rows")[0].tensor.equal(torch::ones({2})));
  EXPECT_TRUE(load_checkpoint(path, {kWeightsPart}).base.value().parts.empty()) << "nor its file read";

  // Files of other parts may be damaged.
  flip_bit(folder / "ckpt-2/other.safetensors", 8);
  flip_bit(folder / "ckpt-1/rows.safetensors", 8);
  EXPECT_EQ(load_checkpoint(path, {kWeightsPart}).weights.size(), all.weights.size());
  expect_error(ErrorKind::DataLoss, HasSubstr("ckpt-1/rows.safetensors"),
               [&] { static_cast<void>(load_checkpoint(path, {"rows"})); });

  fs::remove_all(folder / "ckpt-1");
  expect_error(ErrorKind::DataLoss, HasSubstr("ckpt-1 beside it, which is not there"),
               [&] { static_cast<void>(load_checkpoint(path, {"rows"})); });
}

TEST(Checkpoint, may_be_without_optimizer_and_state) {
  const TestFolder folder;
  CheckpointDir directory(folder.path());
  directory.save({.step = 0, .weights = {{"w", torch::ones({2})}}, .optimizer = {}, .state = {}});
  EXPECT_EQ(directory.load(0).weights.size(), 1U);
  EXPECT_TRUE(directory.load(0).optimizer.empty());
}

TEST(Checkpoint, has_the_documented_files) {
  const TestFolder folder;
  CheckpointDir(folder.path()).save(checkpoint_of(7));
  EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"ckpt-7", "latest"}));
  EXPECT_EQ(names_in(folder / "ckpt-7"),
            (std::set<std::string>{"weights.safetensors", "optimizer.safetensors", "manifest.json"}));
  const auto manifest = nlohmann::json::parse(read_file(folder / "ckpt-7/manifest.json"));
  EXPECT_EQ(manifest["step"], 7);
  EXPECT_EQ(manifest["state"]["lanes"], 4);
  EXPECT_EQ(manifest["tutti_version"], std::string(version()));
  EXPECT_EQ(manifest["libtorch_version"], TORCH_VERSION);
  EXPECT_EQ(manifest["files"].size(), 2U);
  EXPECT_TRUE(SafetensorsFile(folder / "latest/weights.safetensors").has("conv1.weight"));
}

// Replaces every value in turn by one of another type or out of range, with a correct checksum.
TEST(Checkpoint, passes_over_a_manifest_with_values_of_other_types) {
  const TestFolder folder;
  CheckpointDir directory(folder.path());
  directory.save(checkpoint_of(1));
  directory.save(checkpoint_of(2));
  const std::string path = folder / "ckpt-2/manifest.json";
  const auto whole = nlohmann::json::parse(read_file(path));
  const auto values = nlohmann::json::parse(
      R"([null, true, -1, 0.5, 1e300, 18446744073709551615, 9223372036854775807, "x", "", [], [1], {}, {"a": 1}])");
  std::vector<nlohmann::json::json_pointer> places;
  for (const auto& [key, value] : whole.items()) {
    if (key != "checksum" && key != "state") places.emplace_back("/" + key);
  }
  for (const char* key : {"name", "part", "bytes", "crc32c"})
    places.emplace_back(std::string("/files/0/") + key);
  int passed_over = 0;
  for (const auto& place : places) {
    for (const auto& value : values) {
      nlohmann::json changed = whole;
      changed[place] = value;
      write_any_manifest(path, changed);
      try {
        const CheckpointDir::Loaded loaded = directory.load_latest();
        ASSERT_TRUE(loaded.checkpoint);
        passed_over += loaded.checkpoint->step == 1 ? 1 : 0;
        EXPECT_EQ(loaded.skipped.size(), loaded.checkpoint->step == 1 ? 1U : 0U);
      } catch (const Error& error) {
        // A later version of Tutti might have written this value.
        EXPECT_EQ(error.kind(), ErrorKind::Unimplemented) << place << " " << value << ": " << error.what();
      }
    }
  }
  EXPECT_GT(passed_over, 100);
  write_any_manifest(path, whole);
  EXPECT_EQ(directory.load_latest().checkpoint->step, 2);
}

TEST(Checkpoint, passes_over_a_manifest_that_is_nested_without_end) {
  const TestFolder folder;
  CheckpointDir directory(folder.path());
  directory.save(checkpoint_of(1));
  directory.save(checkpoint_of(2));
  std::string rest = "\n  \"state\": " + std::string(100000, '[') + std::string(100000, ']') + "}\n";
  replace_file(folder / "ckpt-2/manifest.json",
               fmt::format("{{\n  \"checksum\": \"crc32c:{:08x}\",", crc32c(as_bytes(rest))) + rest);
  const CheckpointDir::Loaded loaded = directory.load_latest();
  EXPECT_EQ(loaded.checkpoint->step, 1);
  EXPECT_THAT(loaded.skipped, ElementsAre(HasSubstr("nested more than 100 deep")));
}

TEST(Checkpoint, passes_over_what_its_reader_cannot_use) {
  const TestFolder folder;
  CheckpointDir directory(folder.path());
  directory.save(checkpoint_of(1));
  directory.save(checkpoint_of(2));
  const CheckpointDir::Loaded loaded = directory.load_latest([](const Checkpoint& checkpoint) {
    if (checkpoint.step == 2) fail(ErrorKind::DataLoss, "not this one");
  });
  EXPECT_EQ(loaded.checkpoint->step, 1);
  EXPECT_THAT(loaded.skipped, ElementsAre(HasSubstr("not this one")));
}

TEST(Checkpoint, latest_points_to_the_one_saved_last_and_moves_with_the_directory) {
  const TestFolder folder;
  CheckpointDir directory(folder / "run");
  directory.save(checkpoint_of(1));
  directory.save(checkpoint_of(2));
  EXPECT_EQ(fs::read_symlink(folder / "run/latest"), "ckpt-2");
  fs::rename(folder / "run", folder / "moved");
  EXPECT_EQ(load_checkpoint(folder / "moved/latest").step, 2);
}

TEST(Checkpoint, keeps_the_newest_only) {
  const TestFolder folder;
  CheckpointDir directory(folder.path(), {.keep = 2});
  for (const int64_t step : {1, 5, 10, 100}) directory.save(checkpoint_of(step));
  EXPECT_THAT(directory.steps(), ElementsAre(10, 100));
  CheckpointDir all(folder.path(), {.keep = 0});
  for (const int64_t step : {101, 102, 103, 104, 105, 106}) all.save(checkpoint_of(step));
  EXPECT_EQ(all.steps().size(), 8U);
}

// If a run starts from scratch in an old directory, its first checkpoint counts as newer than the
// checkpoints of the old run.
TEST(Checkpoint, newest_is_the_one_saved_last_even_with_a_lower_step) {
  const TestFolder folder;
  CheckpointDir directory(folder.path(), {.keep = 3});
  for (const int64_t step : {1000, 2000, 3000}) directory.save(checkpoint_of(step));
  directory.save(checkpoint_of(10));
  EXPECT_THAT(directory.steps(), ElementsAre(10, 2000, 3000));
  EXPECT_EQ(directory.load_latest().checkpoint->step, 10);
}

TEST(Checkpoint, replaces_one_of_the_same_step) {
  const TestFolder folder;
  CheckpointDir directory(folder.path());
  directory.save(checkpoint_of(1));
  directory.save(checkpoint_of(2, 1));
  directory.save(checkpoint_of(2, 2));
  EXPECT_EQ(checked_mark(directory.load(2)), 2);
  EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"ckpt-1", "ckpt-2", "latest"}));
}

// A save that is killed between the two renames of a replacement leaves this.
TEST(Checkpoint, uses_one_that_was_stepping_aside) {
  const TestFolder folder;
  CheckpointDir directory(folder.path());
  directory.save(checkpoint_of(2, 1));
  fs::rename(folder / "ckpt-2", folder / "ckpt-2.replaced");
  EXPECT_EQ(checked_mark(*directory.load_latest().checkpoint), 1);
  EXPECT_EQ(checked_mark(directory.load(2)), 1);
  EXPECT_THAT(directory.steps(), ElementsAre(2));
  directory.save(checkpoint_of(2, 2));
  EXPECT_EQ(checked_mark(directory.load(2)), 2);
  EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"ckpt-2", "latest"}));
}

TEST(Checkpoint, finds_none_where_there_is_none) {
  const TestFolder folder;
  const CheckpointDir missing(folder / "missing");
  EXPECT_FALSE(missing.load_latest().checkpoint);
  EXPECT_THAT(missing.steps(), IsEmpty());
  EXPECT_FALSE(fs::exists(folder / "missing"));
  expect_error(ErrorKind::InvalidArgument, HasSubstr("no checkpoint of step 3"),
               [&] { (void)missing.load(3); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("--logdir"), [] { const CheckpointDir none(""); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("contains no manifest.json"),
               [&] { (void)load_checkpoint(folder.path()); });
}

TEST(Checkpoint, leaves_other_things_alone) {
  const TestFolder folder;
  for (const char* name : {"ckpt-", "ckpt-x", "ckpt-007", "ckpt--1", "ckpt-99999999999999999999", "notes"}) {
    fs::create_directory(folder / name);
  }
  replace_file(folder / "ckpt-5", "a file");
  replace_file(folder / "events.out.tfevents.1.host.2", "");
  const auto before = names_in(folder.path());
  CheckpointDir directory(folder.path(), {.keep = 1});
  directory.save(checkpoint_of(1));
  directory.save(checkpoint_of(2));
  auto expected = before;
  expected.insert({"ckpt-2", "latest"});
  EXPECT_EQ(names_in(folder.path()), expected);
  EXPECT_THAT(directory.steps(), ElementsAre(2));
}

TEST(Checkpoint, does_not_need_the_link) {
  const TestFolder folder;
  CheckpointDir directory(folder.path());
  directory.save(checkpoint_of(1));
  for (const char* target : {"ckpt-99", "latest", "/nowhere"}) {
    fs::remove(folder / "latest");
    fs::create_symlink(target, folder / "latest");
    EXPECT_EQ(directory.load_latest().checkpoint->step, 1) << target;
  }
  fs::remove(folder / "latest");
  EXPECT_EQ(directory.load_latest().checkpoint->step, 1);
  directory.save(checkpoint_of(2));
  EXPECT_EQ(fs::read_symlink(folder / "latest"), "ckpt-2");
}

TEST(Checkpoint, removes_what_dead_writers_left) {
  const TestFolder folder;
  CheckpointDir directory(folder.path());
  fs::create_directories(folder / ".tutti-temporary-1-0/deep");
  replace_file(folder / ".tutti-temporary-1-0/weights.safetensors", "half");
  directory.save(checkpoint_of(1));
  EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"ckpt-1", "latest"}));
}

TEST(Checkpoint, refuses_what_it_could_not_give_back) {
  const TestFolder folder;
  CheckpointDir directory(folder.path());
  directory.save(checkpoint_of(1));
  Checkpoint twice = checkpoint_of(2);
  twice.optimizer.push_back(twice.optimizer.front());
  expect_error(ErrorKind::InvalidArgument, HasSubstr("step 2"), [&] { directory.save(twice); });
  Checkpoint garbled = checkpoint_of(2);
  garbled.state["text"] = "\xff";
  expect_error(ErrorKind::InvalidArgument, HasSubstr("UTF-8"), [&] { directory.save(garbled); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("-1"), [&] { directory.save(checkpoint_of(-1)); });
  EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"ckpt-1", "latest"}));
}

TEST(Checkpoint, says_which_path_is_in_the_way) {
  const TestFolder folder;
  replace_file(folder / "file", "");
  CheckpointDir below(folder / "file/run");
  expect_error(ErrorKind::InvalidArgument, HasSubstr(folder / "file/run"),
               [&] { below.save(checkpoint_of(1)); });
  CheckpointDir itself(folder / "file");
  expect_error(ErrorKind::InvalidArgument, HasSubstr(folder / "file"),
               [&] { itself.save(checkpoint_of(1)); });
}

TEST(Checkpoint, is_overloaded_and_untouched_where_no_byte_more_fits) {
  const TestFolder folder;
  CheckpointDir directory(folder.path());
  directory.save(checkpoint_of(1));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  for (const rlim_t bytes : {0, 1, 8, 100, 500, 600}) {
    const rlimit narrow{.rlim_cur = bytes, .rlim_max = before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &narrow), 0);
    expect_error(ErrorKind::Overloaded, HasSubstr("saving the checkpoint of step 2 failed"),
                 [&] { directory.save(checkpoint_of(2)); });
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"ckpt-1", "latest"}));
  }
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(checked_mark(*directory.load_latest().checkpoint), 0);
}

TEST_F(Damaged, by_a_flipped_bit_anywhere) {
  for (const char* name : {"weights.safetensors", "optimizer.safetensors", "manifest.json"}) {
    const std::string path = folder_ / "ckpt-2" + "/" + name;
    const size_t bits = 8 * fs::file_size(path);
    // 11 and 8 have no common divisor, so that all bits of a byte are tested.
    for (size_t bit = 0; bit < bits; bit += 11) {
      flip_bit(path, bit);
      expect_the_older_one_is_used(name);
      flip_bit(path, bit);
    }
  }
  EXPECT_EQ(directory_.load_latest().checkpoint->step, 2);
}

TEST_F(Damaged, by_a_file_cut_short_or_grown) {
  for (const char* name : {"weights.safetensors", "optimizer.safetensors", "manifest.json"}) {
    const std::string path = folder_ / "ckpt-2" + "/" + name;
    const std::string whole = read_file(path);
    for (const size_t length : {size_t{0}, size_t{1}, size_t{7}, whole.size() / 2, whole.size() - 1}) {
      replace_file(path, whole.substr(0, length));
      expect_the_older_one_is_used(name);
    }
    replace_file(path, whole + "x");
    expect_the_older_one_is_used(name);
    replace_file(path, whole);
  }
}

TEST_F(Damaged, by_a_missing_file_or_something_else_in_its_place) {
  for (const char* name : {"weights.safetensors", "optimizer.safetensors", "manifest.json"}) {
    const std::string path = folder_ / "ckpt-2" + "/" + name;
    fs::rename(path, folder_ / "kept");
    expect_the_older_one_is_used(name);
    fs::create_directory(path);
    expect_the_older_one_is_used(name);
    fs::remove(path);
    fs::rename(folder_ / "kept", path);
  }
}

TEST_F(Damaged, by_files_of_another_checkpoint) {
  fs::copy(folder_ / "ckpt-1/weights.safetensors", folder_ / "ckpt-2/weights.safetensors",
           fs::copy_options::overwrite_existing);
  expect_the_older_one_is_used("checksum");
}

TEST_F(Damaged, by_a_name_that_says_another_step) {
  directory_.save(checkpoint_of(3));
  fs::remove_all(folder_ / "ckpt-2");
  fs::rename(folder_ / "ckpt-3", folder_ / "ckpt-2");
  expect_the_older_one_is_used("the folder contains the checkpoint of another step, 3");
  EXPECT_EQ(load_checkpoint(folder_ / "ckpt-2").step, 3);
}

TEST_F(Damaged, all_of_them) {
  flip_bit(folder_ / "ckpt-1/manifest.json", 700);
  flip_bit(folder_ / "ckpt-2/weights.safetensors", 700);
  expect_error(ErrorKind::DataLoss,
               AllOf(HasSubstr("all of its 2"), HasSubstr("ckpt-1"), HasSubstr("ckpt-2")),
               [&] { (void)directory_.load_latest(); });
}

TEST_F(Damaged, ones_are_replaced_and_do_not_count) {
  for (const char* path : {"ckpt-1/manifest.json", "ckpt-2/manifest.json"}) flip_bit(folder_ / path, 700);
  CheckpointDir narrow(folder_.path(), {.keep = 1});
  narrow.save(checkpoint_of(1, 9));
  EXPECT_EQ(checked_mark(*narrow.load_latest().checkpoint), 9);
  EXPECT_THAT(narrow.steps(), ElementsAre(1));
}

class WrittenByHand : public testing::Test {
 protected:
  WrittenByHand() {
    CheckpointDir(folder_.path()).save(checkpoint_of(1));
    manifest_ = read_manifest(path_);
  }
  void expect_refused(ErrorKind kind, const std::string& text) {
    write_manifest(path_, manifest_);
    expect_error(kind, HasSubstr(text), [&] { (void)load_checkpoint(folder_ / "ckpt-1"); });
  }

  TestFolder folder_;
  std::string path_ = folder_ / "ckpt-1/manifest.json";
  Manifest manifest_;
};

TEST_F(WrittenByHand, a_manifest_cannot_lead_out_of_its_folder) {
  for (const char* name : {"../ckpt-1/weights.safetensors", "/etc/passwd", "..", ""}) {
    manifest_.files[0].name = name;
    expect_refused(ErrorKind::DataLoss, "not the name of a file in this folder");
  }
}

TEST_F(WrittenByHand, a_tensor_may_not_be_in_two_files) {
  fs::copy(folder_ / "ckpt-1/weights.safetensors", folder_ / "ckpt-1/more.safetensors");
  ManifestFile more = manifest_.files[0];
  more.name = "more.safetensors";
  manifest_.files.push_back(more);
  expect_refused(ErrorKind::DataLoss, "is also in another file of the checkpoint");
}

TEST_F(WrittenByHand, a_part_may_be_in_several_files) {
  const WrittenFile written =
      write_safetensors(folder_ / "ckpt-1/rows.safetensors", {{"rows", torch::ones({2})}});
  manifest_.files.push_back({"rows.safetensors", kWeightsPart, written.bytes, written.checksum});
  write_manifest(path_, manifest_);
  EXPECT_EQ(load_checkpoint(folder_ / "ckpt-1").weights.size(), 3U);
}

TEST_F(WrittenByHand, a_part_of_another_name_is_kept_apart) {
  manifest_.files[0].part = "embeddings";
  write_manifest(path_, manifest_);
  const Checkpoint checkpoint = load_checkpoint(folder_ / "ckpt-1");
  EXPECT_TRUE(checkpoint.weights.empty());
  EXPECT_EQ(checkpoint.more.at("embeddings").size(), 2U);
  manifest_.files[0].part = "";
  expect_refused(ErrorKind::DataLoss, "does not belong to a part");
}

SharedFiles rows_of(int writers, std::chrono::milliseconds timeout) {
  SharedFiles shared{.files = {}, .timeout = timeout};
  for (int writer = 0; writer < writers; ++writer)
    shared.files.push_back({.part = "rows",
                            .name = shared_file_name("rows", writer, writers),
                            .writer = fmt::format("ps/{}", writer)});
  return shared;
}

// Each task writes its file while the chief waits for all of them.
TEST(Checkpoint, is_written_by_several_tasks) {
  const TestFolder folder;
  CheckpointDir dir(folder.path());
  constexpr int kWriters = 3;
  const std::string open = dir.open();
  std::vector<std::thread> others;
  for (int writer = 0; writer < kWriters; ++writer)
    others.emplace_back([&open, writer] {
      write_shared_file(open, shared_file_name("rows", writer, kWriters),
                        {{std::to_string(writer), torch::full({2}, static_cast<double>(writer))}}, 7);
    });
  dir.save({.step = 7, .weights = {}, .optimizer = {}}, rows_of(kWriters, std::chrono::seconds(20)));
  for (std::thread& other : others) other.join();
  const auto rows = dir.load(7).more.at("rows");
  ASSERT_EQ(rows.size(), 3U);
  for (const NamedTensor& row : rows) EXPECT_EQ(row.tensor[0].item<double>(), std::stod(row.name));
  const std::set<std::string> files = {"manifest.json",         "optimizer.safetensors",
                                       "rows-1of3.safetensors", "rows-2of3.safetensors",
                                       "rows-3of3.safetensors", "weights.safetensors"};
  EXPECT_EQ(names_in(folder / "ckpt-7"), files);
}

// Has one of two tasks write its file, changes something, and expects that the checkpoint does not count.
class PartOfAnotherTask : public testing::Test {
 protected:
  void write(int64_t step) {
    write_shared_file(open_, "rows-1of2.safetensors", {{"0", torch::ones({2})}}, step);
    write_shared_file(open_, "rows-2of2.safetensors", {{"1", torch::ones({2})}}, step);
  }
  void expect_refused(ErrorKind kind, const std::string& text, SharedFiles shared = two()) {
    expect_error(kind, AllOf(HasSubstr("ps/1"), HasSubstr(file_), HasSubstr(text)),
                 [&] { dir_.save({.step = 1, .weights = {}, .optimizer = {}}, shared); });
    EXPECT_TRUE(dir_.steps().empty());
    // The next checkpoint contains none of the leftover files.
    dir_.open();
    dir_.save({.step = 2, .weights = {}, .optimizer = {}});
    EXPECT_EQ(dir_.steps(), (std::vector<int64_t>{2}));
    EXPECT_EQ(names_in(folder_ / "ckpt-2"),
              (std::set<std::string>{"manifest.json", "optimizer.safetensors", "weights.safetensors"}));
  }
  static SharedFiles two() { return rows_of(2, std::chrono::milliseconds(20)); }

  const TestFolder folder_;
  CheckpointDir dir_{folder_.path()};
  const std::string open_ = dir_.open();
  const std::string file_ = open_ + "/rows-2of2.safetensors";
};

TEST_F(PartOfAnotherTask, that_does_not_come_is_named) {
  write_shared_file(open_, "rows-1of2.safetensors", {}, 1);
  expect_refused(ErrorKind::Timeout, "within 0.02 s");
}

TEST_F(PartOfAnotherTask, is_not_waited_for_if_the_task_is_lost) {
  write_shared_file(open_, "rows-1of2.safetensors", {}, 1);
  SharedFiles shared = rows_of(2, std::chrono::hours(1));
  shared.files[1].is_lost = std::make_shared<std::atomic<bool>>(true);
  expect_refused(ErrorKind::PeerLost, "lost", shared);
}

TEST_F(PartOfAnotherTask, that_was_cut_off_is_named) {
  write(1);
  fs::resize_file(file_, fs::file_size(file_) - 1);
  expect_refused(ErrorKind::DataLoss, "were recorded");
}

TEST_F(PartOfAnotherTask, that_is_not_there_is_named) {
  write(1);
  fs::remove(file_);
  expect_refused(ErrorKind::DataLoss, "No such file");
}

TEST_F(PartOfAnotherTask, of_another_step_is_named) {
  write(1);
  write_shared_file(open_, "rows-2of2.safetensors", {{"1", torch::ones({2})}}, 3);
  expect_refused(ErrorKind::DataLoss, "is of step 3, expected 1");
}

TEST_F(PartOfAnotherTask, that_is_something_else_is_named) {
  write(1);
  std::ofstream(file_).write(std::string(fs::file_size(file_), 'x').data(),
                             static_cast<std::streamsize>(fs::file_size(file_)));
  expect_refused(ErrorKind::DataLoss, "rows-2of2");
}

TEST_F(PartOfAnotherTask, with_a_record_of_something_else_is_named) {
  write(1);
  for (const char* record : {"", "[]", "{}", R"({"bytes": "many", "checksum": 0})",
                             R"({"error": 1, "kind": 2})", R"({"error": "on fire", "kind": 1000})"}) {
    dir_.open();
    SCOPED_TRACE(record);
    const std::string open = dir_.open();
    write_shared_file(open, "rows-1of2.safetensors", {}, 1);
    std::ofstream(open + "/rows-2of2.safetensors.written") << record;
    EXPECT_THROW(dir_.save({.step = 1, .weights = {}, .optimizer = {}}, two()), Error);
    EXPECT_TRUE(dir_.steps().empty());
  }
}

TEST_F(PartOfAnotherTask, that_could_not_be_written_says_why) {
  write_shared_file(open_, "rows-1of2.safetensors", {}, 1);
  fs::create_directory(file_);
  EXPECT_THROW(write_shared_file(open_, "rows-2of2.safetensors", {}, 1), Error);
  expect_refused(ErrorKind::InvalidArgument, "", rows_of(2, std::chrono::hours(1)));
}

TEST(FolderMark, is_found_by_whoever_shares_the_folder) {
  const TestFolder folder;
  std::string path;
  {
    const FolderMark mark(folder.path());
    path = mark.path();
    EXPECT_EQ(folder_of_mark(path), folder.path());
    EXPECT_EQ(folder_of_mark(path + "0"), "");
  }
  EXPECT_EQ(folder_of_mark(path), "");
  EXPECT_TRUE(fs::is_empty(folder.path()));
  for (const char* nothing : {"", "/", "/etc/passwd", "shared-by-0"}) EXPECT_EQ(folder_of_mark(nothing), "");
}

TEST(Checkpoint, is_read_by_the_python_package) {
  TUTTI_NEEDS_ORACLES();
  const TestFolder folder;
  CheckpointDir(folder.path()).save(checkpoint_of(2, 0, 8));
  const nlohmann::json values = std::vector<double>(8, 2000);
  const nlohmann::json expected = {
      {"metadata", {{"format", "pt"}, {"step", "2"}}},
      {"tensors",
       {{"conv1.weight", {{"dtype", "F32"}, {"shape", {1, 8}}, {"values", values}}},
        {"norm.count", {{"dtype", "I64"}, {"shape", nlohmann::json::array()}, {"values", {2000}}}}}}};
  const auto answer =
      ask_oracle("check_safetensors.py", {folder / "latest/weights.safetensors", expected.dump()});
  EXPECT_EQ(answer.status, 0) << answer.output;
}

constexpr const char* kNotTestedWithoutSeccomp = "NOT TESTED: this process may not filter system calls";

// Returns the lines with which saving these steps warned.
std::vector<std::string> warnings_of_saving(const std::string& folder, const std::vector<int64_t>& steps) {
  std::vector<std::string> warnings;
  CheckpointDir directory(folder, {.warn = [&](const std::string& text) { warnings.push_back(text); }});
  for (const int64_t step : steps) directory.save(checkpoint_of(step));
  return warnings;
}

TEST(WithoutLinks, the_newest_checkpoint_is_found_and_one_warning_says_so) {
  for (const int error : {EPERM, EOPNOTSUPP, ENOSYS}) {
    const TestFolder folder;
    std::vector<std::string> warnings;
    if (!with_refused_calls(link_calls(), error, [&] {
          warnings = warnings_of_saving(folder.path(), {1, 3, 2});
        }))
      GTEST_SKIP() << kNotTestedWithoutSeccomp;
    EXPECT_THAT(warnings, ElementsAre(HasSubstr("no link '" + folder.path() + "/latest'")));
    EXPECT_FALSE(fs::exists(folder / "latest"));
    EXPECT_EQ(CheckpointDir(folder.path()).load_latest().checkpoint->step, 2);
    EXPECT_EQ(newest_checkpoint(folder.path()), folder / "ckpt-2");
  }
}

TEST(WithoutLinks, one_that_points_to_an_older_checkpoint_is_removed) {
  const TestFolder folder;
  EXPECT_THAT(warnings_of_saving(folder.path(), {1}), IsEmpty());
  EXPECT_TRUE(fs::exists(folder / "latest/manifest.json"));
  if (!with_refused_calls(link_calls(), EPERM, [&] { warnings_of_saving(folder.path(), {2}); }))
    GTEST_SKIP() << kNotTestedWithoutSeccomp;
  EXPECT_FALSE(fs::is_symlink(folder / "latest"));
  EXPECT_EQ(newest_checkpoint(folder.path()), folder / "ckpt-2");
}

// A copy of a log directory may have a folder in place of the link.
TEST(WithoutLinks, a_folder_in_their_place_stays_and_does_not_end_the_run) {
  const TestFolder folder;
  fs::create_directories(folder / "latest/old");
  EXPECT_THAT(warnings_of_saving(folder.path(), {1, 2}), ElementsAre(HasSubstr("/latest")));
  EXPECT_TRUE(fs::exists(folder / "latest/old"));
  EXPECT_EQ(newest_checkpoint(folder.path()), folder / "ckpt-2");
}

TEST(CheckpointDir, saves_where_there_are_neither_locks_nor_synced_folders) {
  for (const int error : {EOPNOTSUPP, ENOSYS, EINVAL}) {
    const TestFolder folder;
    const auto save = [&] { EXPECT_THAT(warnings_of_saving(folder.path(), {1, 2}), IsEmpty()); };
    if (!with_refused_calls({SYS_flock, SYS_fsync, SYS_fdatasync, SYS_sync_file_range, SYS_linkat}, error,
                            save))
      GTEST_SKIP() << kNotTestedWithoutSeccomp;
    EXPECT_EQ(CheckpointDir(folder.path()).load_latest().checkpoint->step, 2);
  }
}

}  // namespace
}  // namespace tutti::store

// Tests integers, lists of integers and categories from tables on their way into embeddings, in processes.
#include <filesystem>
#include <random>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/together.h"
#include "tutti/base/file.h"

namespace tutti::testing::ratings_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Beyond this, float32 does not tell neighbouring ids apart.
constexpr int64_t kExactUpTo = int64_t{1} << 24;
constexpr int64_t kUsers = kExactUpTo + 100;

class Ratings : public ::testing::Test {
 protected:
  // Writes three shards. All ids above 2^24 are odd, so that each would become a neighbour as a float32.
  void write_tables(const std::string& root, int64_t shift = 0) const {
    std::mt19937_64 random(8);
    const auto id = [&] {
      return random() % 2 == 0 ? static_cast<int64_t>(random() % 100)
                               : kExactUpTo + 1 + 2 * static_cast<int64_t>(random() % 40) + shift;
    };
    for (int shard = 0; shard < 3; ++shard) {
      std::string ratings;
      std::string seen = "liked,ID,saved\n";
      for (int row = 0; row < 40 + shard; ++row) {
        const std::string city = random() % 4 == 0 ? "" : fmt::format("city {}", random() % 30);
        ratings += fmt::format("{}\t{}\t{}\t0.{}\t{}\t{:08x}\n", 1 + random() % 5, id(), random() % 7,
                               random() % 1000, city, random() % 9);
        seen += fmt::format("\"{}, {}\",m{}-{},{}\n", id(), id(), shard, row,
                            random() % 3 == 0 ? "" : std::to_string(id()));
      }
      const std::string folder = fmt::format("{}/shard{}", root, shard);
      make_directories(folder);
      FileWriter ratings_file(folder + "/ratings.txt");
      ratings_file.write(ratings);
      ratings_file.finish();
      FileWriter seen_file(folder + "/seen.csv");
      seen_file.write(seen);
      seen_file.finish();
    }
  }
  Job job(int workers, const std::string& data, const Flags& more = {}) const {
    const Flags program = {program_path("../test/ratings_program"),
                           "--data",
                           data,
                           "--users",
                           std::to_string(kUsers),
                           "--batch",
                           "5",
                           "--lanes",
                           "4",
                           "--steps",
                           "8",
                           "--threads",
                           "1",
                           "--log-level",
                           "warning"};
    return {{{"worker", workers}}, with(program, more)};
  }
  std::string hash(int workers, const std::string& data, const Flags& more = {}) const {
    return hash_of(job(workers, data, more), folder_);
  }

  const TestFolder folder_;
};

TEST_F(Ratings, with_large_ids_give_the_same_weights_on_any_number_of_workers) {
  write_tables(folder_ / "data");
  const std::string alone = hash(1, folder_ / "data");
  EXPECT_EQ(alone.size(), 64);
  for (const int workers : {2, 3}) EXPECT_EQ(hash(workers, folder_ / "data"), alone) << workers;
  EXPECT_EQ(hash(2, folder_ / "data", {"--comm", "tcp"}), alone);
  // A float32 holds none of the large ids; their neighbours are other rows.
  write_tables(folder_ / "neighbours", -1);
  EXPECT_NE(hash(1, folder_ / "neighbours"), alone);
}

// Without copies, the rows of a lost worker are in the newest checkpoint only; a worker that joins gets its
// rows from a new one.
TEST_F(Ratings, go_back_to_a_checkpoint_without_a_lost_worker_and_take_in_another) {
  write_tables(folder_ / "data");
  const std::string straight = hash(1, folder_ / "data", {"--steps", "14"});
  for (const char* const lost : {"1@5/saved", "0@5/saved"}) {
    const TestFolder folder;
    const Flags disturbed = {
        "--steps",      "14", "--checkpoint-every", "3", "--logdir", folder / "run",
        "--misfortune", lost, "--await-world",      "3", "--report", folder / "report.json",
        "--replicas",   "0"};
    const Flags launcher = {program_path("tutti"), "run", "-n", "3", "--min", "1", "--restarts", "1", "--"};
    const ProgramResult result = run_program(with(launcher, job(1, folder_ / "data", disturbed).program));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, AllOf(HasSubstr("the others go back to the newest checkpoint"),
                                  HasSubstr("has come back: 3 go on")));
    const nlohmann::json report = json_of(folder / "report.json");
    EXPECT_EQ(report.at("weights_sha256"), straight);
    EXPECT_EQ(report.at("world"), 3);
    EXPECT_EQ(report.at("lost_steps"), 2);
  }
}

// The servers have all rows.
TEST_F(Ratings, go_on_without_a_lost_worker_from_the_rows_on_servers) {
  write_tables(folder_ / "data");
  const std::string straight = hash(1, folder_ / "data", {"--steps", "14"});
  for (const char* const lost : {"1@5/before", "0@5/lane,2@7/told"}) {
    const Flags disturbed = {"--steps",    "14",      "--misfortune", lost,
                             "--strategy", "ps-sync", "--report",     folder_ / "report.json"};
    const Flags launcher = {program_path("tutti"), "run", "-n", "3", "--ps", "2", "--min", "1", "--"};
    const ProgramResult result =
        run_program(with(launcher, job(1, folder_ / "data", disturbed).program), {}, Crashes::AskedFor);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const nlohmann::json report = json_of(folder_ / "report.json");
    EXPECT_EQ(report.at("weights_sha256"), straight);
    EXPECT_EQ(report.at("lost_steps"), 0);
  }
}

TEST_F(Ratings, continue_on_another_number_of_workers_but_not_with_other_categories) {
  write_tables(folder_ / "data");
  const std::string straight = hash(1, folder_ / "data");
  const Flags saving = {"--logdir", folder_ / "run"};
  hash(1, folder_ / "data", with(saving, {"--steps", "3"}));
  const ProgramResult other = run_job(job(2, folder_ / "data", with(saving, {"--buckets", "51"})));
  EXPECT_NE(other.exit_code, 0);
  EXPECT_THAT(other.err, HasSubstr("city"));
  EXPECT_EQ(hash(2, folder_ / "data", saving), straight);
}

TEST_F(Ratings, say_which_id_is_none) {
  write_tables(folder_ / "data");
  const std::string file = folder_ / "data/shard1/ratings.txt";
  const std::string text = read_file(file);
  const size_t tab = text.find('\t');
  FileWriter broken(file);
  broken.write(text.substr(0, tab + 1) + "1e3" + text.substr(text.find('\t', tab + 1)));
  broken.finish();
  const ProgramResult result = run_job(job(1, folder_ / "data", {"--steps", "40"}));
  EXPECT_EQ(result.exit_code, exit_code(ErrorKind::DataLoss));
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("shard1/ratings.txt:1: column '2' (2): '1e3' is not a whole number")));
}

}  // namespace
}  // namespace tutti::testing::ratings_test

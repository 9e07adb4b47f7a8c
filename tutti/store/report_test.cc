#include "tutti/store/report.h"

#include <cmath>
#include <filesystem>

#include "tutti/base/file.h"
#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"

namespace tutti::store {
namespace {

using nlohmann::json;

json written(const Report& report) {
  const TestFolder folder;
  write_report(folder / "report.json", report);
  return json::parse(read_file(folder / "report.json"));
}

TEST(Report, holds_every_key_that_scripts_rely_on) {
  Report report;
  report.strategy = "single";
  report.lanes = 4;
  report.loss = 0.25;
  report.metrics = {{"accuracy", 0.5}};
  report.weights_sha256 = "abc";
  const json read = written(report);
  for (const char* key : {"strategy", "world", "lanes", "steps", "examples", "seconds", "examples_per_second",
                          "loss", "metrics", "weights_sha256", "complete", "restarts", "lost_steps",
                          "tutti_version", "libtorch_version"}) {
    EXPECT_TRUE(read.contains(key)) << key;
  }
  EXPECT_EQ(read["strategy"], "single");
  EXPECT_EQ(read["lanes"], 4);
  EXPECT_EQ(read["loss"], 0.25);
  EXPECT_EQ(read["metrics"]["accuracy"], 0.5);
  EXPECT_FALSE(read.contains("device_seconds"));
}

TEST(Report, writes_null_for_what_is_no_number) {
  Report report;
  report.loss = std::nan("");
  report.examples_per_second = INFINITY;
  report.metrics = {{"auc", std::nullopt}, {"accuracy", -INFINITY}};
  const json read = written(report);
  EXPECT_TRUE(read["loss"].is_null());
  EXPECT_TRUE(read["examples_per_second"].is_null());
  EXPECT_TRUE(read["metrics"]["auc"].is_null());
  EXPECT_TRUE(read["metrics"]["accuracy"].is_null());
}

TEST(Report, keeps_numbers_to_the_bit) {
  Report report;
  report.loss = 0.1 + 0.2;
  report.examples = (int64_t{1} << 60) + 1;
  const json read = written(report);
  EXPECT_EQ(read["loss"].get<double>(), 0.1 + 0.2);
  EXPECT_EQ(read["examples"].get<int64_t>(), (int64_t{1} << 60) + 1);
}

TEST(Report, is_written_even_with_a_text_that_is_no_utf8) {
  Report report;
  report.device = "cuda \xff";
  report.metrics = {{"a \"quoted\" metric", 1.0}};
  EXPECT_EQ(written(report)["metrics"].size(), 1U);
}

TEST(Report, names_the_path_that_cannot_be_written) {
  const TestFolder folder;
  expect_error(ErrorKind::InvalidArgument, testing::HasSubstr(folder / "missing/report.json"),
               [&] { write_report(folder / "missing/report.json", {}); });
}

}  // namespace
}  // namespace tutti::store

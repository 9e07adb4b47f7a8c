#include "tools/bench/figures.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "tutti/base/test_errors.h"

namespace tutti::bench::figures_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Figures, reads_sizes_and_ranges_of_them) {
  EXPECT_THAT(parse_sizes("4"), ElementsAre(4));
  EXPECT_THAT(parse_sizes("4,64K,1MB,2GiB,7b"), ElementsAre(4, 64 << 10, 1 << 20, int64_t{2} << 30, 7));
  EXPECT_THAT(parse_sizes("4..256"), ElementsAre(4, 16, 64, 256));
  EXPECT_THAT(parse_sizes("1K..20K,3"), ElementsAre(1024, 4096, 16384, 20480, 3));
  EXPECT_THAT(parse_sizes("5..5"), ElementsAre(5));
}

TEST(Figures, refuses_what_is_no_size) {
  for (const char* text : {"", "0", "-4", "4x", "K", "4 K", "64..4", "..4", "17G", "9999999999G", "4,,5",
                           "4KK", "1.5M", "99999999999999999999"}) {
    expect_error(ErrorKind::InvalidArgument, HasSubstr("--sizes: '"), [&] { parse_sizes(text); });
  }
}

TEST(Figures, reads_operations_and_suggests_the_nearest) {
  EXPECT_EQ(parse_operations("all").size(), 8U);
  EXPECT_THAT(parse_operations("broadcast,all_reduce"),
              ElementsAre(Collective::Broadcast, Collective::AllReduce));
  expect_error(ErrorKind::InvalidArgument, HasSubstr("did you mean 'all_gather'?"),
               [] { parse_operations("all_gathr"); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("'' is not one of"),
               [] { parse_operations("barrier,"); });
  for (const Collective operation : all_operations())
    EXPECT_THAT(parse_operations(name_of(operation)), ElementsAre(operation));
}

// Derived by counting: of the values 0..99, 50 do not exceed 49, and 99 do not exceed 98.
TEST(Figures, counts_quantiles) {
  std::vector<double> values;
  for (int i = 99; i >= 0; --i) values.push_back(i);
  EXPECT_EQ(quantile(values, 0.5), 49);
  EXPECT_EQ(quantile(values, 0.99), 98);
  EXPECT_EQ(quantile(values, 1), 99);
  EXPECT_EQ(quantile(values, 0), 0);
  EXPECT_EQ(quantile({3}, 0.5), 3);
  EXPECT_EQ(quantile({1, 2, 9}, 0.99), 9);
}

// In a ring of n ranks each sends 2(n-1) parts of size 1/n.
TEST(Figures, bus_bandwidth_is_what_a_ring_moves) {
  const Row row{Collective::AllReduce, 8'000'000, 1, 1e-3, 1e-3};
  EXPECT_DOUBLE_EQ(algorithm_bandwidth(row), 8e9);
  EXPECT_DOUBLE_EQ(bus_bandwidth(row, 2), 8e9);
  EXPECT_DOUBLE_EQ(bus_bandwidth(row, 4), 12e9);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::AllGather, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::Broadcast, 4), 1);
  EXPECT_DOUBLE_EQ(algorithm_bandwidth({Collective::Barrier, 0, 1, 0, 0}), 0);
}

TEST(Figures, every_line_is_as_wide_as_the_heading) {
  for (const Collective operation : all_operations()) {
    for (const int64_t bytes : {int64_t{4}, int64_t{64} << 20}) {
      const Row row{operation, operation == Collective::Barrier ? 0 : bytes, 10'000, 12.5e-6, 1.234};
      EXPECT_EQ(line_of(row, 4).size(), heading().size()) << line_of(row, 4);
    }
  }
  EXPECT_THAT(line_of({Collective::AllReduce, 64 << 20, 5, 0.01, 0.02}, 2), HasSubstr(" 64 MiB "));
}

TEST(Figures, json_has_a_row_for_each) {
  const Json json = to_json({{Collective::AllGather, 4096, 7, 2e-6, 3e-6}}, 4, "tcp");
  EXPECT_EQ(json.at("ranks"), 4);
  EXPECT_EQ(json.at("comm"), "tcp");
  const Json& row = json.at("rows").at(0);
  EXPECT_EQ(row.at("operation"), "all_gather");
  EXPECT_EQ(row.at("bytes"), 4096);
  EXPECT_EQ(row.at("repetitions"), 7);
  EXPECT_DOUBLE_EQ(row.at("median_us").get<double>(), 2);
  EXPECT_DOUBLE_EQ(row.at("gb_per_s").get<double>(), 2.048);
  EXPECT_DOUBLE_EQ(row.at("bus_gb_per_s").get<double>(), 1.536);
}

}  // namespace
}  // namespace tutti::bench::figures_test

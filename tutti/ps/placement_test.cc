#include "tutti/ps/placement.h"

#include <algorithm>
#include <map>

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tutti/base/test_errors.h"

namespace tutti::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Net : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(100, 13));  // 5,200 bytes and 52
  torch::nn::Linear second = register_module("second", torch::nn::Linear(13, 3));  // 156 bytes and 12
};

std::vector<int> servers_of(const Placement& placement) {
  std::vector<int> servers;
  for (const ParameterRange& range : placement.parameter_ranges()) servers.push_back(range.server);
  return servers;
}

TEST(Placement, deals_out_parameters_in_the_order_of_creation) {
  Net net;
  const Parameters parameters(net);
  EXPECT_THAT(servers_of(Placement(parameters, 3)), ElementsAre(0, 1, 2, 0));
}

TEST(Placement, gives_each_to_the_server_with_the_fewest_bytes) {
  Net net;
  const Parameters parameters(net);
  EXPECT_THAT(servers_of(Placement(parameters, 2, parse_placement("greedy"))), ElementsAre(0, 1, 1, 1));
}

// 13 rows in ranges of at most 1,200 bytes, which are 3 rows, give ranges of 3, 3, 3, 2 and 2 rows.
TEST(Placement, cuts_large_parameters_evenly_by_rows) {
  Net net;
  const Parameters parameters(net);
  const Placement placement(parameters, 2, parse_placement("split:1200"));
  std::vector<int64_t> rows;
  for (const ParameterRange& range : placement.parameter_ranges()) {
    if (range.parameter == 0) rows.push_back((range.end - range.begin) / 100);
  }
  EXPECT_THAT(rows, ElementsAre(3, 3, 3, 2, 2));
}

TEST(Placement, covers_every_element_once_by_any_rule) {
  Net net;
  const Parameters parameters(net);
  for (const char* rule : {"round-robin", "greedy", "split:64", "split:1K", "split:1G"}) {
    for (const int servers : {1, 2, 3, 9}) {
      const Placement placement(parameters, servers, parse_placement(rule));
      int64_t elements = 0;
      std::vector<std::pair<int64_t, int64_t>> sections;
      for (int server = 0; server < servers; ++server) {
        for (const BlockRange& range : placement.block_ranges_of(server)) {
          elements += range.end - range.begin;
          sections.emplace_back(range.begin, range.end);
        }
      }
      std::sort(sections.begin(), sections.end());
      for (size_t i = 1; i < sections.size(); ++i)
        EXPECT_LE(sections[i - 1].second, sections[i].first) << rule;
      EXPECT_EQ(elements, parameters.size()) << rule << " over " << servers;
    }
  }
}

TEST(Placement, puts_pinned_parameters_where_they_are_pinned_and_deals_out_the_others) {
  Net net;
  const Parameters parameters(net);
  const PinnedServers pinned = {2, std::nullopt, std::nullopt, std::nullopt};
  EXPECT_THAT(servers_of(Placement(parameters, 3, {}, pinned)), ElementsAre(2, 0, 1, 2));
  // Pinned parameters are not cut, and count before the first of the others is placed.
  EXPECT_THAT(servers_of(Placement(parameters, 2, parse_placement("greedy"), {1, {}, {}, 1})),
              ElementsAre(1, 0, 0, 1));
  EXPECT_THAT(servers_of(Placement(parameters, 2, parse_placement("split:1200"), {1, {}, {}, {}})),
              ElementsAre(1, 0, 0, 0));
}

TEST(Placement, is_told_in_lines) {
  Net net;
  const Parameters parameters(net);
  EXPECT_EQ(Placement(parameters, 2).lines(parameters, "ps")[1],
            "first.bias: (Parameter float32[13]): /job:ps/replica:0/task:1/device:CPU:0");
  EXPECT_THAT(Placement(parameters, 2, parse_placement("split:1200")).lines(parameters, "ps")[1],
              HasSubstr("first.weight rows 3..6:"));
}

TEST(Placement, refuses_rules_that_make_no_sense) {
  for (const char* rule : {"", "random", "split", "split:", "split:0", "split:-1", "split:1X", "split:1KB"})
    EXPECT_THROW(parse_placement(rule), Error) << rule;
  EXPECT_EQ(parse_placement("split:2M").bytes, 2 << 20);
}

}  // namespace
}  // namespace tutti::ps

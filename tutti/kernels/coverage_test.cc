#include "tutti/kernels/coverage.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/base/file.h"
#include "tutti/base/test_run.h"
#include "tutti/base/text.h"
#include "tutti/kernels/operator_list.h"
#include "tutti/kernels/same_kernels.h"

namespace tutti::kernels::coverage_test {
namespace {

std::vector<std::string> reasons_of(std::string_view name) {
  std::vector<std::string> reasons;
  for (const NotCovered& each : not_covered_operators())
    if (each.name == name) reasons.push_back(each.why);
  return reasons;
}

using testing::ElementsAre;
using testing::IsEmpty;

TEST(CoverageCheck, remembers_once_which_operators_are_not_covered) {
  const SameKernels same;
  const CoverageCheck check;
  for (int i = 0; i < 3; ++i) torch::linalg_qr(torch::randn({4, 4}));
  EXPECT_THAT(reasons_of("aten::linalg_qr"), ElementsAre("LAPACK computes it"));
  at::special_bessel_j0(torch::rand({3}));
  EXPECT_THAT(reasons_of("aten::special_bessel_j0"),
              ElementsAre("LibTorch's kernel may round differently on another processor"));
}

TEST(CoverageCheck, sees_backward_passes_and_other_threads) {
  const SameKernels same;
  const CoverageCheck check;
  const at::Tensor image = torch::randn({1, 1, 4, 4}).requires_grad_();
  at::_ops::upsample_bicubic2d::call(image, {8, 8}, false, {}, {}).sum().backward();
  EXPECT_THAT(reasons_of("aten::upsample_bicubic2d"), testing::SizeIs(1));
  EXPECT_THAT(reasons_of("aten::upsample_bicubic2d_backward"), testing::SizeIs(1));
  std::thread([] { torch::polygamma(2, torch::rand({3})); }).join();
  EXPECT_THAT(reasons_of("aten::polygamma"), testing::SizeIs(1));
}

TEST(CoverageCheck, remembers_nothing_that_is_covered_and_nothing_after_its_end) {
  {
    const SameKernels same;
    const CoverageCheck check;
    const size_t before = not_covered_operators().size();
    const at::Tensor x = torch::randn({20, 30}).requires_grad_();
    torch::nn::Linear linear(30, 10);
    const at::Tensor y = torch::dropout(torch::relu(linear(x)), 0.3, true);
    const auto [values, order] = torch::cat({y, y.mul(2)}, 1).sort(1);
    values.select(1, 3).backward(torch::ones({20}));
    linear->weight.detach().add_(linear->weight.grad(), -0.1);
    torch::multinomial(torch::rand({3, 5}), 2);
    torch::randperm(9).index_select(0, order[0].clamp_max(8)).argmax();
    EXPECT_EQ(not_covered_operators().size(), before);
  }
  torch::igamma(torch::rand({2}), torch::rand({2}));
  EXPECT_THAT(reasons_of("aten::igamma"), IsEmpty());
}

const std::map<std::string, std::span<const OperatorGroup>> kLists = {
    {"Exact", exact_operators()}, {"Not covered", operators_not_covered()}};

// The names that are in LibTorch's table, in the form of the lists.
std::set<std::string> known_names() {
  std::set<std::string> names;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames())
    names.emplace(listed_name(name.name));
  return names;
}

TEST(OperatorList, has_each_operator_of_libtorch_once) {
  const SameKernels same;
  const std::set<std::string> known = known_names();
  std::set<std::string_view> names;
  for (const auto& [kind, groups] : kLists) {
    for (const OperatorGroup& group : groups) {
      for (const std::string_view name : group.names) {
        EXPECT_TRUE(names.insert(name).second) << name << " is there twice";
        const bool has_all = known.contains("_chunk_cat");
        EXPECT_TRUE(!has_all || known.contains(std::string(name))) << name;  // LibTorch 1.13 has fewer
      }
    }
  }
  for (const std::string& ours : SameKernels::operators())
    EXPECT_FALSE(names.contains(listed_name(ours))) << ours << " is ours, and in another list too";
}

TEST(OperatorList, tells_overloads_apart) {
  const SameKernels same;
  EXPECT_EQ(kind_of({"aten::mm", ""}), OperatorKind::Ours);
  EXPECT_EQ(kind_of({"aten::mul", "Tensor"}), OperatorKind::Exact);
  EXPECT_EQ(kind_of({"aten::mul_", "Scalar"}), OperatorKind::Exact);
  EXPECT_EQ(kind_of({"aten::add", "Scalar"}), OperatorKind::MadeOfOthers);
  EXPECT_EQ(kind_of({"aten::linear", ""}), OperatorKind::MadeOfOthers);
  EXPECT_EQ(kind_of({"aten::scatter", "src"}), OperatorKind::Exact);
  EXPECT_EQ(kind_of({"aten::scatter_", "reduce"}), OperatorKind::NotCovered);
  EXPECT_EQ(kind_of({"aten::linalg_qr", ""}), OperatorKind::NotCovered);
  EXPECT_EQ(kind_of({"other::mul", ""}), OperatorKind::NotCovered);
}

std::string joined(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : " ") + name;
  return text;
}

// Returns the rows of docs/kernels.md as "Exact: topic: names", with the names in order.
std::vector<std::string> rows_of_the_page() {
  std::vector<std::string> rows;
  std::string kind;
  for (const std::string& line : split(read_file(source_path("docs/kernels.md")), '\n')) {
    if (line.starts_with("#")) kind = line.starts_with("### ") ? line.substr(4) : "";
    if (kind.empty() || !line.starts_with("| ") || line.starts_with("| topic")) continue;
    const std::vector<std::string> cells = split(line, '|');
    std::set<std::string> names;
    for (const std::string& name : split(cells.at(2), ' '))
      if (!name.empty()) names.insert(name);
    const std::string topic = cells[1].substr(1, cells[1].size() - 2);
    rows.push_back(kind == "Ours" ? "Ours: " + joined(names) : kind + ": " + topic + ": " + joined(names));
  }
  return rows;
}

TEST(OperatorList, is_the_one_of_the_documentation) {
  const SameKernels same;
  std::set<std::string> expected;
  std::set<std::string> ours;
  for (const std::string& name : SameKernels::operators()) ours.emplace(listed_name(name));
  for (const auto& [kind, groups] : kLists)
    for (const OperatorGroup& group : groups)
      expected.insert(kind + ": " + std::string(group.topic) + ": " +
                      joined(std::set<std::string>(group.names.begin(), group.names.end())));
  const std::set<std::string> known = known_names();
  const bool is_newer = known.contains("_chunk_cat");  // 1.13 does not have all operators of the page
  std::set<std::string> ours_on_the_page;
  std::set<std::string> others_on_the_page;
  for (const std::string& row : rows_of_the_page()) {
    if (!row.starts_with("Ours: ")) {
      others_on_the_page.insert(row);
      continue;
    }
    for (const std::string& name : split(row.substr(6), ' '))
      if (is_newer || known.contains(name)) ours_on_the_page.insert(name);
  }
  EXPECT_THAT(others_on_the_page, testing::ContainerEq(expected));
  EXPECT_THAT(ours_on_the_page, testing::ContainerEq(ours));
}

}  // namespace
}  // namespace tutti::kernels::coverage_test

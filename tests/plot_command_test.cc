// Tests `tutti plot` from a user's point of view, and what it draws in a real browser.
#include <cmath>
#include <filesystem>

#include <gmock/gmock.h>

#include "tests/browser.h"
#include "tests/tool.h"
#include "tutti/base/file.h"
#include "tutti/base/test_folder.h"
#include "tutti/store/event_file.h"
#include "tutti/store/report.h"

namespace tutti::testing::plot_command_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kOddName = "rate <0.1> & \"more\"";

ProgramResult plot(const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {program_path("tutti"), "plot"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run_program(command);
}

void write_run(const std::string& path, double scale) {
  std::filesystem::create_directories(path);
  store::EventWriter writer(path);
  for (int64_t step = 1; step <= 3000; ++step)
    writer.scalar("loss", step, step == 1500 ? std::nan("") : scale / static_cast<double>(step));
  for (const int64_t step : {1000, 2000, 3000}) {
    writer.scalar("validation_loss", step, scale / 1000);
    writer.scalar("test_accuracy", step, 0.5);
    writer.scalar("examples_per_second", step, 12345);
  }
  writer.pr_curve("test_auc", 3000, {{9, 5, 0}, {9, 2, 0}, {0, 7, 9}, {0, 4, 9}});
}

TEST(PlotCommand, draws_the_curves_of_several_runs) {
  const TestFolder folder;
  write_run(folder / "first", 1);
  write_run(folder / kOddName, 2);
  store::Report report;
  report.steps = 3000;
  report.staleness = {{0, 3}, {1, 1}};
  store::write_report(folder / "first/report.json", report);
  for (const char* name : {"all.svg", "all.html"}) {
    const ProgramResult result = plot({folder / "first", folder / kOddName, "--out", folder / name});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out + result.err, "");
    EXPECT_THAT(
        read_file(folder / name),
        AllOf(HasSubstr(">loss<"), HasSubstr(">validation: dashed, diamonds<"), HasSubstr(">accuracy<"),
              HasSubstr(">test: dotted, rings<"), HasSubstr(">examples_per_second<"),
              HasSubstr(">staleness<"), HasSubstr(">auc: ROC curve<"), HasSubstr(">auc: PR curve<"),
              HasSubstr("rate &lt;0.1&gt; &amp; &quot;more&quot;, validation"), HasSubstr("nan at 1500"),
              Not(HasSubstr("<0.1>"))));
  }
}

TEST(PlotCommand, tells_runs_of_the_same_name_apart) {
  const TestFolder folder;
  write_run(folder / "a/run", 1);
  write_run(folder / "b/run", 2);
  ASSERT_EQ(plot({folder / "a/run", folder / "b/run", "--out", folder / "all.svg"}).exit_code, 0);
  EXPECT_THAT(read_file(folder / "all.svg"), AllOf(HasSubstr("a/run</text>"), HasSubstr("b/run</text>")));
}

TEST(PlotCommand, draws_the_charts_that_are_asked_for) {
  const TestFolder folder;
  write_run(folder / "run", 1);
  ASSERT_EQ(plot({"--log-loss", "--only", "loss", "--only", "accuracy", folder / "run", "--out",
                  folder / "some.svg"})
                .exit_code,
            0);
  EXPECT_THAT(read_file(folder / "some.svg"), AllOf(HasSubstr(">loss<"), HasSubstr(">accuracy<"),
                                                    HasSubstr(">0.01<"), Not(HasSubstr("per_second"))));
}

TEST(PlotCommand, says_what_is_wrong) {
  const TestFolder folder;
  write_run(folder / "run", 1);
  const auto error_of = [&](const std::vector<std::string>& arguments) {
    const ProgramResult result = plot(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    return result.err;
  };
  EXPECT_THAT(error_of({folder / "run", "--out", folder / "all.png"}),
              HasSubstr("has to end in .svg or .html"));
  EXPECT_THAT(error_of({folder / "none", "--out", folder / "all.svg"}), HasSubstr("does not exist"));
  EXPECT_THAT(error_of({folder.path(), "--out", folder / "all.svg"}), HasSubstr("has no event files"));
  std::filesystem::create_directories(folder / "empty");
  store::EventWriter(folder / "empty").flush();
  EXPECT_THAT(error_of({folder / "empty", "--out", folder / "all.svg"}), HasSubstr("nothing to draw"));
  EXPECT_FALSE(std::filesystem::exists(folder / "all.svg"));
}

// --- In a browser

// Every part lies inside the drawing, and texts do not lie on each other.
constexpr const char* kLook = R"(<script>
const box = document.querySelector('svg').getBoundingClientRect();
const parts = [...document.querySelectorAll('svg path, svg circle, svg text')];
const outside = parts.filter(part => {
  const b = part.getBoundingClientRect();
  return b.left < box.left - 1 || b.top < box.top - 1 || b.right > box.right + 1 || b.bottom > box.bottom + 1;
});
const texts = parts.filter(part => part.tagName === 'text' && part.textContent !== '');
const boxes = texts.map(part => part.getBoundingClientRect());
const overlap = texts.filter((_, i) => boxes.some((b, j) => i < j && boxes[i].left < b.right && b.left < boxes[i].right &&
                                                            boxes[i].top < b.bottom && b.top < boxes[i].bottom));
const words = list => list.map(part => part.textContent).join('|');
document.title = `outside [${words(outside)}] overlap [${words(overlap)}] curves ` +
  `${document.querySelectorAll('.curve').length > 0} resources ${performance.getEntriesByType('resource').length}`;
</script>)";

class PlotInABrowser : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = browser_.why_not(); !why.empty()) GTEST_SKIP() << "NOT TESTED: " << why;
  }
  void TearDown() override { EXPECT_TRUE(browser_.is_gone()); }

  void expect_readable(std::vector<std::string> runs) {
    runs.insert(runs.end(), {"--out", folder_ / "all.html"});
    const ProgramResult drawn = plot(runs);
    ASSERT_EQ(drawn.exit_code, 0) << drawn.err;
    folder_.write("looked.html", read_file(folder_ / "all.html") + kLook);
    const ProgramResult result = browser_.look_at(folder_ / "looked.html");
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const size_t title = result.out.find("<title>outside");
    ASSERT_NE(title, std::string::npos) << result.out;
    EXPECT_EQ(result.out.substr(title, result.out.find("</title>", title) - title),
              "<title>outside [] overlap [] curves true resources 0");
  }

  TestFolder folder_;
  Browser browser_;
};

TEST_F(PlotInABrowser, shows_everything_inside_the_drawing_and_loads_nothing) {
  write_run(folder_ / "first", 1e-7);
  write_run(folder_ / kOddName, 2e6);
  expect_readable({folder_ / "first", folder_ / kOddName});
}

TEST_F(PlotInABrowser, shows_long_names_and_extreme_values) {
  const std::string name(200, 'W');
  write_run(folder_ / name, 1.6e308);
  store::EventWriter(folder_ / name).scalar("validation_" + name, 1, -123456789);
  store::EventWriter(folder_ / name).scalar(name, int64_t{1} << 62, 0.123456789);
  expect_readable({folder_ / name});
}

TEST_F(PlotInABrowser, shows_many_runs) {
  std::vector<std::string> runs;
  for (int i = 0; i < 64; ++i) {
    const std::string run = folder_ / ("rate=" + std::to_string(i) + ",units=64");
    store::EventWriter writer(run);
    for (const int64_t step : {1, 2, 3}) writer.scalar("loss", step, i);
    runs.push_back(run);
  }
  expect_readable(runs);
}

}  // namespace
}  // namespace tutti::testing::plot_command_test

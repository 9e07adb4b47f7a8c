// Tests `tutti plot` from a user's point of view, and what it draws in a real browser.
#include <cmath>
#include <filesystem>

#include <gmock/gmock.h>

#include "tests/tool.h"
#include "tutti/base/file.h"
#include "tutti/base/test_folder.h"
#include "tutti/store/event_file.h"
#include "tutti/store/report.h"

namespace tutti::testing {
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
    EXPECT_THAT(read_file(folder / name),
                AllOf(HasSubstr(">loss (validation: dashed)<"), HasSubstr(">accuracy (test: dotted)<"),
                      HasSubstr(">examples_per_second<"), HasSubstr(">staleness: share of the updates<"),
                      HasSubstr("rate &lt;0.1&gt; &amp; &quot;more&quot;, validation"),
                      HasSubstr("not a finite number at 1500"), Not(HasSubstr("<0.1>"))));
  }
}

TEST(PlotCommand, tells_runs_of_the_same_name_apart) {
  const TestFolder folder;
  write_run(folder / "a/run", 1);
  write_run(folder / "b/run", 2);
  ASSERT_EQ(plot({folder / "a/run", folder / "b/run", "--out", folder / "all.svg"}).exit_code, 0);
  EXPECT_THAT(read_file(folder / "all.svg"), AllOf(HasSubstr("a/run</text>"), HasSubstr("b/run</text>")));
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

std::string browser() {
  for (const char* name : {"/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"}) {
    if (std::filesystem::exists(name)) return name;
  }
  return "";
}

// Every part lies inside the drawing, and texts of a chart do not lie on each other.
constexpr const char* kLook = R"(<script>
const box = document.querySelector('svg').getBoundingClientRect();
const parts = [...document.querySelectorAll('svg path, svg circle, svg text')];
const outside = parts.filter(part => {
  const b = part.getBoundingClientRect();
  return b.left < box.left - 1 || b.top < box.top - 1 || b.right > box.right + 1 || b.bottom > box.bottom + 1;
});
const texts = parts.filter(part => part.tagName === 'text').map(part => part.getBoundingClientRect());
const overlap = texts.filter((a, i) => texts.some((b, j) => i < j && a.left < b.right && b.left < a.right &&
                                                            a.top < b.bottom && b.top < a.bottom));
document.title = `parts ${parts.length > 50} outside ${outside.length} overlap ${overlap.length} ` +
  `curves ${document.querySelectorAll('.curve').length > 6} resources ${performance.getEntriesByType('resource').length}`;
</script>)";

TEST(PlotInABrowser, shows_everything_inside_the_drawing_and_loads_nothing) {
  if (browser().empty()) GTEST_SKIP() << "NOT TESTED: no Chromium (apt install chromium)";
  const TestFolder folder;
  write_run(folder / "first", 1e-7);
  write_run(folder / kOddName, 2e6);
  ASSERT_EQ(plot({folder / "first", folder / kOddName, "--out", folder / "all.html"}).exit_code, 0);
  replace_file(folder / "looked.html", read_file(folder / "all.html") + kLook);
  const ProgramResult result = run_program({browser(), "--headless", "--no-sandbox", "--disable-gpu",
                                            "--user-data-dir=" + (folder / "profile"), "--dump-dom",
                                            "file://" + (folder / "looked.html")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("<title>parts true outside 0 overlap 0 curves true resources 0</title>"));
}

}  // namespace
}  // namespace tutti::testing

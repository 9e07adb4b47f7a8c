// tutti plot: the curves of one or several runs.
#include "tools/plot/plot.h"

#include "tools/arguments.h"
#include "tools/commands.h"

namespace tutti {
namespace {

constexpr const char* kAboutPlot =
    "Draws the curves of one or several runs into one file, with nothing loaded from elsewhere: loss,\n"
    "validations and metrics, learning rate and speed, from the event files of a log directory, and the\n"
    "staleness of asynchronous steps, from a report (RUN/report.json, or the file of a --report).\n"
    "  tutti plot run --out run.svg\n"
    "  tutti plot rate-0.1 rate-0.01 --out rates.html";

}  // namespace

int plot_command(const std::vector<std::string>& arguments, const Environment& /*environment*/) {
  CLI::App app(kAboutPlot, "tutti plot");
  std::vector<std::string> paths;
  std::string out;
  app.add_option("RUN", paths, "A log directory, or the file of a --report")->required();
  app.add_option("--out", out, "The file to write: .svg, or .html for a page")->required();
  if (!parse_arguments(app, arguments)) return 0;
  plot::plot_runs(paths, out);
  return 0;
}

}  // namespace tutti

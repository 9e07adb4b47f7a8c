// tutti timeline: joins the files of all workers of a run into one file.
#include <fmt/core.h>

#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/trace_join.h"

namespace tutti {
namespace {

constexpr const char* kAboutTimeline =
    "Joins the files that the workers of a run wrote with --timeline. If only the file of rank 0,\n"
    "RUN.json, is given, the others are found beside it: RUN.rank1.json and so on. Files from several "
    "machines can be\n"
    "named one by one.\n"
    "  tutti timeline run.json --out all.json\n"
    "  tutti timeline a/run.json b/run.rank1.json --out all.json";

}  // namespace

int timeline_command(const std::vector<std::string>& arguments, const Environment& /*environment*/) {
  CLI::App app(kAboutTimeline, "tutti timeline");
  std::vector<std::string> paths;
  std::string out;
  app.add_option("FILE", paths, "The files of --timeline, or only the file of rank 0")->required();
  app.add_option("--out", out, "The file to write")->required();
  if (!parse_arguments(app, arguments)) return 0;
  const JoinedTraces joined = join_traces(paths, out);
  for (const std::string& warning : joined.warnings) fmt::print(stderr, "tutti timeline: {}\n", warning);
  fmt::print(
      "joined the timelines of {} of {} workers in {}: open it in ui.perfetto.dev or chrome://tracing\n",
      joined.files, joined.world, out);
  return 0;
}

}  // namespace tutti

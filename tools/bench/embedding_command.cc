#include <algorithm>
#include <optional>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tools/arguments.h"
#include "tools/bench/commands.h"
#include "tools/bench/embedding.h"
#include "tools/bench/request.h"
#include "tools/launch/cores.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/flags.h"
#include "tutti/cluster/context.h"
#include "tutti/comm/connect.h"

namespace tutti {
namespace {

constexpr const char* kEmbeddingName = "tutti bench embedding";
constexpr const char* kEmbeddingAbout =
    "Measures how fast the ranks of a job look up the rows of sharded embeddings, and train them.\n"
    "  tutti bench embedding                                   one rank per core of this machine\n"
    "  tutti run -n 4 -- tutti bench embedding                 under any launcher that starts training\n"
    "It reads the same environment variables as training: TUTTI_COMM, TUTTI_CONFIG, TF_CONFIG and so on.";

struct EmbeddingRequest : bench::Request {
  bench::EmbeddingWork work;
};

std::optional<std::string> parse_embedding(const std::vector<std::string>& arguments,
                                           const Environment& environment, EmbeddingRequest& asked) {
  auto help = parse_connection_arguments(
      kEmbeddingName, kEmbeddingAbout, arguments, environment, asked.config, [&](FlagSet& set) {
        set.group("Measurement");
        set.add("--tables", asked.work.tables, "number of tables");
        set.add("--rows", asked.work.rows, "rows of each table");
        set.add("--dim", asked.work.dim, "numbers in a row");
        set.add("--ids", asked.work.ids, "ids that each rank looks up in a step, in all tables together");
        set.add("--repetitions", asked.work.steps, "steps to measure");
        for (const char* flag : {"--tables", "--rows", "--dim", "--ids", "--repetitions"})
          set.at_least(flag, 1);
        bench::add_task_flags(set, asked);
      });
  asked.config.compute.device = "cpu";
  asked.config.output.timeline.clear();
  if (asked.work.ids < asked.work.tables)
    fail(ErrorKind::InvalidArgument, "{}: {} ids for {} tables: each table needs one", kEmbeddingName,
         asked.work.ids, asked.work.tables);
  return help;
}

int measure(const EmbeddingRequest& asked, const Context& context) {
  at::set_num_threads(context.threads());
  const auto comm = comm::connect(context);
  const bench::EmbeddingTimes times = bench::measure_embedding(*comm, asked.work);
  if (!context.is_chief()) return 0;
  const bench::EmbeddingWork& work = asked.work;
  bench::say(fmt::format(
      "{} ranks over {}, {} tables of {} rows of {} float32, {} ids per rank and step ({} rows), Adagrad",
      comm->world(), comm->name(), work.tables, work.rows, work.dim, work.ids, times.touched));
  bench::say(
      fmt::format("lookup {:.2f} ms, whole step {:.2f} ms; local index_select and copy {:.2f} ms; medians "
                  "of {} steps on rank 0",
                  times.lookup, times.step, times.local, work.steps));
  if (!asked.json.empty()) replace_file(asked.json, bench::to_json(times).dump(2) + "\n");
  return 0;
}

}  // namespace

int bench_embedding(const std::vector<std::string>& arguments, const Environment& environment) {
  EmbeddingRequest asked;
  if (const auto help = parse_embedding(arguments, environment, asked)) {
    fmt::print("{}", *help);
    return 0;
  }
  const Identity identity = discover(asked.config, environment);
  if (identity.source == Identity().source) {
    const int64_t workers = asked.workers > 0 ? asked.workers : static_cast<int64_t>(usable_cores().size());
    return bench::start_tasks("embedding", arguments, environment, {.workers = static_cast<int>(workers)});
  }
  if (identity.is_chief) bench::check_json(asked);
  return measure(asked, Context(asked.config, identity));
}

}  // namespace tutti

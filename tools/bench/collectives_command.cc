#include <algorithm>
#include <optional>
#include <unistd.h>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "tools/arguments.h"
#include "tools/bench/collectives.h"
#include "tools/bench/commands.h"
#include "tools/bench/figures.h"
#include "tools/bench/request.h"
#include "tools/launch/cores.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/flags.h"
#include "tutti/base/text.h"
#include "tutti/cluster/context.h"
#include "tutti/cluster/roles.h"
#include "tutti/comm/connect.h"

namespace tutti {
namespace {

using bench::Collective;
using bench::Row;

constexpr const char* kName = "tutti bench collectives";
constexpr const char* kAbout =
    "Measures how fast the ranks of a job exchange vectors, connected as in training, and verifies the "
    "results.\n"
    "  tutti bench collectives                                 one rank per core of this machine\n"
    "  tutti run -n 4 -- tutti bench collectives               under any launcher that starts training\n"
    "  mpirun -np 8 -H a:4,b:4 tutti bench collectives         on several machines\n"
    "It reads the same environment variables as training: TUTTI_COMM, TUTTI_CONFIG, TF_CONFIG and so on.";

struct CollectivesRequest : bench::Request {
  CollectivesRequest() : Request{.sizes = "4..64M"} {}
  std::string operations = "all";
};

void add_collectives_flags(FlagSet& set, CollectivesRequest& asked) {
  set.group("Measurement");
  std::vector<std::string> names;
  for (const Collective operation : bench::all_operations()) names.emplace_back(bench::name_of(operation));
  set.add("--operation", asked.operations,
          fmt::format("all, or a comma-separated list of {}; in_place needs ranks that share memory",
                      fmt::join(names, ", ")));
  bench::add_request_flags(set, asked);
}

// Returns the text of --help if it was given; otherwise fills `asked` and returns nullopt.
std::optional<std::string> parse(const std::vector<std::string>& arguments, const Environment& environment,
                                 CollectivesRequest& asked) {
  auto help = parse_connection_arguments(kName, kAbout, arguments, environment, asked.config,
                                         [&](FlagSet& set) { add_collectives_flags(set, asked); });
  asked.config.compute.device = "cpu";
  asked.config.output.timeline.clear();
  return help;
}

int start_ranks(const std::vector<std::string>& arguments, const Environment& environment, int64_t asked) {
  constexpr int64_t kMost = 1024;
  const int64_t workers =
      asked > 0 ? asked : std::max<int64_t>(2, static_cast<int64_t>(usable_cores().size()));
  if (workers < 2 || workers > kMost)
    fail(ErrorKind::InvalidArgument, "{}: -n {}: the number of ranks must be from 2 to {}", kName, workers,
         kMost);
  return bench::start_tasks("collectives", arguments, environment, {.workers = static_cast<int>(workers)});
}

void require_workers(const Identity& identity, int64_t workers) {
  const int world = identity.membership.world;
  if (identity.is_evaluator || is_server_job(identity.task.job))
    fail(ErrorKind::InvalidArgument, "{}: {} is not a worker; start the benchmark as workers only", kName,
         identity.task.short_name());
  if (workers > 0 && workers != world)
    fail(ErrorKind::InvalidArgument, "{}: -n {}, but there are already {} ranks (found through {}); omit -n",
         kName, workers, world, identity.source);
  if (world == 1)
    fail(ErrorKind::InvalidArgument,
         "{}: there is only one rank (found through {}), but an exchange needs at least two; start more",
         kName, identity.source);
}

// Throws if the request is invalid, before ranks wait for each other.
std::vector<Collective> operations_for(const CollectivesRequest& asked, const bench::Collectives& bench,
                                       const comm::Communicator& comm) {
  std::vector<Collective> operations = bench::parse_operations(asked.operations);
  if (asked.operations == "all")
    std::erase_if(operations, [&](Collective operation) { return !bench.can(operation); });
  for (const Collective operation : operations) {
    if (!bench.can(operation))
      fail(ErrorKind::InvalidArgument,
           "{}: {} needs memory that all ranks share, but they are connected over {}; omit it", kName,
           bench::name_of(operation), comm.name());
  }
  return operations;
}

void say_who(const Context& context, const comm::Communicator& comm) {
  const int64_t cores = sysconf(_SC_NPROCESSORS_ONLN);
  bench::say(fmt::format("{} ranks over {}, {} of them on the machine of rank 0, which has {} cores; float32",
                         comm.world(), comm.name(), context.local_world(), cores));
  if (context.local_world() > cores)
    bench::say("there are more ranks than cores: they share cores, which slows down the results below");
  bench::say("");
  bench::say(bench::heading());
}

int measure_collectives(const CollectivesRequest& asked, const Context& context,
                        const std::vector<int64_t>& sizes) {
  at::set_num_threads(context.threads());
  const auto comm = comm::connect(context);
  bench::Collectives bench(*comm, asked.seconds);
  const std::vector<Collective> operations = operations_for(asked, bench, *comm);
  if (context.is_chief()) say_who(context, *comm);
  std::vector<Row> rows;
  for (const Collective operation : operations) {
    int64_t last = -1;
    for (const int64_t size : sizes) {
      const int64_t bytes = bench.actual_bytes(operation, size);
      if (bytes == last) continue;
      last = bytes;
      rows.push_back(bench.measure(operation, bytes));
      if (context.is_chief()) bench::say(bench::line_of(rows.back(), comm->world()));
    }
  }
  if (!context.is_chief()) return 0;
  bench::say("\nall results were correct\n" + bench::legend());
  if (!asked.json.empty())
    replace_file(asked.json, bench::to_json(rows, comm->world(), comm->name()).dump(2) + "\n");
  return 0;
}

}  // namespace

int bench_collectives(const std::vector<std::string>& arguments, const Environment& environment) {
  CollectivesRequest asked;
  if (const auto help = parse(arguments, environment, asked)) {
    fmt::print("{}", *help);
    return 0;
  }
  static_cast<void>(bench::parse_operations(asked.operations));
  const std::vector<int64_t> sizes = bench::sizes_of(asked);
  const Identity identity = discover(asked.config, environment);
  if (identity.source == Identity().source) return start_ranks(arguments, environment, asked.workers);
  require_workers(identity, asked.workers);
  if (identity.is_chief) bench::check_json(asked);
  return measure_collectives(asked, Context(asked.config, identity), sizes);
}

}  // namespace tutti

#include <algorithm>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tools/arguments.h"
#include "tools/bench/commands.h"
#include "tools/bench/request.h"
#include "tools/bench/servers.h"
#include "tools/launch/cores.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/cluster/context.h"
#include "tutti/cluster/roles.h"
#include "tutti/train/run.h"

namespace tutti {
namespace {

constexpr const char* kPsName = "tutti bench ps";
constexpr const char* kPsAbout =
    "Measures how fast the workers of a job push to its parameter servers and pull from them, connected as "
    "in training, and verifies the results.\n"
    "  tutti bench ps                                          one server, and one worker per core\n"
    "  tutti run --ps 2 -n 4 -- tutti bench ps                 under any launcher that starts training\n"
    "  tutti bench ps --cluster_spec 'ps|a:2222,worker|b:2222' --job_name worker --task_index 0\n"
    "                                                          on several machines; servers run this "
    "command or tutti serve\n"
    "It reads the same environment variables as training: TUTTI_CONFIG, TUTTI_SECRET, TF_CONFIG and so on.";

struct PsRequest : bench::Request {
  PsRequest() : Request{.sizes = "4K..64M", .seconds = 0.5} {
    // Each size is a run of its own; that workers come and go between them is no news.
    config.output.log_level = "error";
  }
  std::string over = "all";
  int64_t servers = 0;
};

void add_ps_flags(FlagSet& set, PsRequest& asked) {
  set.group("Measurement");
  set.add("--over", asked.over,
          "how workers and servers exchange data: memory (shared, on one machine), network, or all");
  bench::add_request_flags(set, asked);
  set.add("--ps", asked.servers, "number of servers to start if no launcher has started them; 0: one");
  set.between("--ps", 0, 1024);
}

int start_servers_and_workers(const std::vector<std::string>& arguments, const Environment& environment,
                              const PsRequest& asked) {
  const int64_t workers =
      asked.workers > 0 ? asked.workers : std::max<int64_t>(1, std::ssize(usable_cores()));
  const int64_t servers = asked.servers > 0 ? asked.servers : 1;
  return bench::start_tasks("ps", arguments, environment,
                            {.workers = static_cast<int>(workers), .servers = static_cast<int>(servers)});
}

void require_servers(const Identity& identity, const PsRequest& asked) {
  if (!has_servers(identity.cluster))
    fail(ErrorKind::InvalidArgument,
         "{}: the cluster (found through {}) has no job 'ps'; start it with `tutti run --ps 1 -n {} -- ...`, "
         "or name servers in --cluster_spec",
         kPsName, identity.source, identity.membership.world);
  if (identity.is_evaluator)
    fail(ErrorKind::InvalidArgument, "{}: an evaluator does not use servers; start only workers and servers",
         kPsName);
  const int world = is_server_job(identity.task.job) ? static_cast<int>(workers_of(identity.cluster).size())
                                                     : identity.membership.world;
  const auto servers = std::ssize(servers_of(identity.cluster));
  if ((asked.workers > 0 && asked.workers != world) || (asked.servers > 0 && asked.servers != servers))
    fail(ErrorKind::InvalidArgument,
         "{}: there are already {} workers and {} servers (found through {}); omit -n and --ps", kPsName,
         world, servers, identity.source);
}

void measure_servers(const PsRequest& asked, const Context& context, const std::vector<int64_t>& sizes) {
  const auto servers = static_cast<int>(servers_of(context.cluster()).size());
  bench::Servers bench(context, asked.seconds);
  if (context.is_chief()) {
    bench::say(fmt::format("servers: {}, workers: {}, float32\n", servers, context.world()));
    bench::say(bench::server_heading());
  }
  std::vector<bench::ServerRow> rows;
  for (const bench::Carrier carrier : bench::parse_carriers(asked.over)) {
    for (const int64_t size : sizes) {
      rows.push_back(bench.measure(size, carrier));
      if (context.is_chief()) bench::say(bench::line_of(rows.back()));
    }
  }
  bench.end();
  if (!context.is_chief()) return;
  bench::say("\nall results were correct\n" + bench::server_legend());
  if (!asked.json.empty())
    replace_file(asked.json, bench::to_json(rows, servers, context.world()).dump(2) + "\n");
}

}  // namespace

int bench_ps(const std::vector<std::string>& arguments, const Environment& environment) {
  PsRequest asked;
  if (const auto help = parse_connection_arguments(kPsName, kPsAbout, arguments, environment, asked.config,
                                                   [&](FlagSet& set) { add_ps_flags(set, asked); })) {
    fmt::print("{}", *help);
    return 0;
  }
  asked.config.compute.device = "cpu";
  asked.config.training.strategy = "ps-async";
  asked.config.output.timeline.clear();
  static_cast<void>(bench::parse_carriers(asked.over));
  const std::vector<int64_t> sizes = bench::sizes_of(asked);
  const Identity identity = discover(asked.config, environment);
  if (identity.source == Identity().source) return start_servers_and_workers(arguments, environment, asked);
  require_servers(identity, asked);
  if (identity.is_chief && !is_server_job(identity.task.job)) bench::check_json(asked);
  const Context context(asked.config, identity);
  at::set_num_threads(context.threads());
  if (is_server_job(context.task().job)) {
    serve(context);
  } else {
    measure_servers(asked, context, sizes);
  }
  return 0;
}

}  // namespace tutti

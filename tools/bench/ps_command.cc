#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tools/bench/commands.h"
#include "tools/bench/figures.h"
#include "tools/bench/servers.h"
#include "tools/connection_arguments.h"
#include "tools/launch/cores.h"
#include "tools/launch/launcher.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/cluster/context.h"
#include "tutti/cluster/roles.h"
#include "tutti/train/serve.h"

namespace tutti {
namespace {

constexpr const char* kName = "tutti bench ps";
constexpr const char* kAbout =
    "Measures how fast the workers of a job push to its parameter servers and pull from them, connected as "
    "in "
    "training, and checks what comes out.\n"
    "  tutti bench ps                                          a server and the workers of this machine\n"
    "  tutti run --ps 2 -n 4 -- tutti bench ps                 under what starts training too\n"
    "  tutti bench ps --cluster_spec 'ps|a:2222,worker|b:2222' --job_name worker --task_index 0\n"
    "                                                          on several machines; a server is this "
    "command, "
    "or tutti serve\n"
    "Also mind what training would read: TUTTI_CONFIG, TUTTI_SECRET, TF_CONFIG and so on.";

struct Asked {
  std::string over = "all";
  std::string sizes = "4K..64M";
  double seconds = 0.5;
  int64_t servers = 0;
  int64_t workers = 0;
  std::string json;
  Flags flags;
};

void add_own_flags(FlagSet& set, Asked& asked) {
  set.group("What is measured");
  set.add("--sizes", asked.sizes, "bytes, one way: 4K,1M or 4K..64M for every fourth power of two between");
  set.add("--over", asked.over,
          "memory: that worker and server both see, where they are on one machine; network; or all");
  set.add("--seconds", asked.seconds, "about how long each size is measured");
  set.require("--seconds", "a number of seconds above 0",
              [](const std::string& text) { return std::strtod(text.c_str(), nullptr) > 0; });
  set.add("--workers,-n", asked.workers, "workers to start where no launcher has; 0: one a core");
  set.at_least("--workers", 0);
  set.add("--ps", asked.servers, "servers to start beside them; 0: one");
  set.at_least("--ps", 0);
  set.add("--json", asked.json, "write the figures to this file too");
}

// Nobody has started any: does so, each as this program with the same arguments.
int start_tasks(const std::vector<std::string>& arguments, const Environment& environment,
                const Asked& asked) {
  constexpr int64_t kMost = 1024;
  const int64_t workers =
      asked.workers > 0 ? asked.workers : std::max<int64_t>(1, std::ssize(usable_cores()));
  const int64_t servers = asked.servers > 0 ? asked.servers : 1;
  if (workers > kMost || servers > kMost)
    fail(ErrorKind::InvalidArgument, "{}: -n {} --ps {}: {} of each are the most", kName, workers, servers,
         kMost);
  std::vector<std::string> command = {std::filesystem::read_symlink("/proc/self/exe"), "bench", "ps"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return launch(command, environment,
                {.workers = static_cast<int>(workers), .servers = static_cast<int>(servers)});
}

void check_identity(const Identity& identity, const Asked& asked) {
  if (!has_servers(identity.cluster))
    fail(ErrorKind::InvalidArgument,
         "{}: the cluster (found through {}) has no job 'ps': start it with `tutti run --ps 1 -n {} -- ...`, "
         "or name servers in --cluster_spec",
         kName, identity.source, identity.membership.world);
  if (identity.is_evaluator)
    fail(ErrorKind::InvalidArgument, "{}: an evaluator has nothing to do with servers", kName);
  const int world = is_server_job(identity.task.job) ? static_cast<int>(workers_of(identity.cluster).size())
                                                     : identity.membership.world;
  const auto servers = std::ssize(servers_of(identity.cluster));
  if ((asked.workers > 0 && asked.workers != world) || (asked.servers > 0 && asked.servers != servers))
    fail(ErrorKind::InvalidArgument,
         "{}: there are {} workers and {} servers already (found through {}): leave -n and --ps out", kName,
         world, servers, identity.source);
}

void say(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

void measure(const Asked& asked, const Context& context, const std::vector<int64_t>& sizes) {
  const auto servers = static_cast<int>(servers_of(context.cluster()).size());
  bench::Servers bench(context, asked.seconds);
  if (context.is_chief()) {
    say(fmt::format("{} servers, {} workers; float32\n", servers, context.world()));
    say(bench::server_heading());
  }
  std::vector<bench::ServerRow> rows;
  for (const bench::Carrier carrier : bench::parse_carriers(asked.over)) {
    for (const int64_t size : sizes) {
      rows.push_back(bench.measure(size, carrier));
      if (context.is_chief()) say(bench::line_of(rows.back()));
    }
  }
  bench.end();
  if (!context.is_chief()) return;
  say("\nall results were right\n" + bench::server_legend());
  if (!asked.json.empty())
    replace_file(asked.json, bench::to_json(rows, servers, context.world()).dump(2) + "\n");
}

}  // namespace

int bench_ps(const std::vector<std::string>& arguments, const Environment& environment) {
  Asked asked;
  if (const auto help = parse_connection_arguments(kName, kAbout, arguments, environment, asked.flags,
                                                   [&](FlagSet& set) { add_own_flags(set, asked); })) {
    fmt::print("{}", *help);
    return 0;
  }
  asked.flags.device = "cpu";
  asked.flags.strategy = "ps-async";
  asked.flags.timeline.clear();
  static_cast<void>(bench::parse_carriers(asked.over));
  std::vector<int64_t> sizes = bench::parse_sizes(asked.sizes);
  std::sort(sizes.begin(), sizes.end());
  const Identity identity = discover(asked.flags, environment);
  if (identity.source == Identity().source) return start_tasks(arguments, environment, asked);
  check_identity(identity, asked);
  // A path that cannot be written is better heard of now.
  if (identity.is_chief && !is_server_job(identity.task.job) && !asked.json.empty())
    static_cast<void>(FileDescriptor(asked.json, O_WRONLY | O_CREAT));
  const Context context(asked.flags, identity);
  at::set_num_threads(context.threads());
  if (is_server_job(context.task().job)) {
    serve(context);
  } else {
    measure(asked, context, sizes);
  }
  return 0;
}

}  // namespace tutti

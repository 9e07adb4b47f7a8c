// Measures how fast text tables are read into tensors on one core, compared with Python's libraries: tables
// with 210 columns of floats, with integers, and the lines of a click log. Alternates between all sides in
// one run. Prints Markdown.
//   bench_tables                     all sides
//   bench_tables --side parse DIR    one side, for the parent or a profiler; DIR has shards
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/sides.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/data/batch_queue.h"
#include "tutti/data/tables/table_feed.h"

namespace {

namespace data = tutti::data;
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kColumns = 210;
constexpr int64_t kRows = 100000;
constexpr int64_t kBatch = 100;
constexpr int kRounds = 5;

const data::Schema& schema() {
  static const data::Schema kSchema = {{"desc", {"descriptors.tsv"}}, {"targ", {"targets.tsv"}}};
  return kSchema;
}

// Writes the rows of the targets in a different order.
void write_shard(const std::string& folder) {
  tutti::make_directories(folder);
  std::mt19937_64 random(1);
  std::normal_distribution<float> value;
  tutti::FileWriter descriptors(folder + "/descriptors.tsv");
  tutti::FileWriter targets(folder + "/targets.tsv");
  std::string row = "ID";
  for (int column = 0; column < kColumns; ++column) row += fmt::format("\td{}", column);
  descriptors.write(row + "\n");
  targets.write("ID\ty\n");
  for (int64_t i = 0; i < kRows; ++i) {
    row = fmt::format("m{}", i);
    for (int column = 0; column < kColumns; ++column) row += fmt::format("\t{:.6g}", value(random));
    descriptors.write(row + "\n");
    targets.write(fmt::format("m{}\t{}\n", kRows - 1 - i, i % 2));
  }
  descriptors.finish();
  targets.finish();
}

// Whole numbers of 1 to 10 digits.
void write_integers(const std::string& folder) {
  tutti::make_directories(folder);
  std::mt19937_64 random(1);
  tutti::FileWriter file(folder + "/integers.tsv");
  std::string row = "ID";
  for (int column = 0; column < kColumns; ++column) row += fmt::format("\ti{}", column);
  file.write(row + "\n");
  for (int64_t i = 0; i < kRows; ++i) {
    row = fmt::format("m{}", i);
    for (int column = 0; column < kColumns; ++column)
      row += fmt::format("\t{}", random() >> (31 + random() % 30));
    file.write(row + "\n");
  }
  file.finish();
}

constexpr int kNumbers = 13;
constexpr int kTexts = 26;

// Lines like those of Criteo's click logs: a label, 13 integers, some of which are missing, and 26
// categories.
void write_clicks(const std::string& folder) {
  tutti::make_directories(folder);
  std::mt19937_64 random(1);
  tutti::FileWriter file(folder + "/clicks.tsv");
  for (int64_t i = 0; i < kRows; ++i) {
    std::string row = std::to_string(i % 2);
    for (int k = 0; k < kNumbers; ++k) row += random() % 5 == 0 ? "\t" : fmt::format("\t{}", random() % 5000);
    for (int k = 0; k < kTexts; ++k) row += fmt::format("\t{:08x}", random() % 100000 * 42949);
    file.write(row + "\n");
  }
  file.finish();
}

double megabytes(const std::string& root) {
  double bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (entry.is_regular_file()) bytes += static_cast<double>(entry.file_size());
  }
  return bytes / 1e6;
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Reads one epoch from the files, including opening them.
int feed(const std::string& root, data::Order order) {
  const auto begin = Clock::now();
  const data::Feed feed = data::table_feed(root, schema(), {.memory = 0});
  const data::Sampler sampler(feed.size(), {.order = order, .batch = kBatch});
  data::BatchQueue queue(feed, sampler, {.end_step = sampler.steps_per_epoch()});
  int64_t rows = 0;
  while (const auto batch = queue.next()) rows += batch->size();
  if (rows != kRows) return 1;
  bench::print_measured(megabytes(root) / seconds_since(begin));
  return 0;
}

// Reads the tables of one file, without joining, into one tensor each.
int parse(const std::string& root, const data::Schema& one_file) {
  const auto begin = Clock::now();
  const auto source = data::table_source(data::shards_in(root), one_file, {.memory = 0});
  std::vector<int64_t> all(static_cast<size_t>(source->size()));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
  if (source->read(all).size() != kRows) return 1;
  bench::print_measured(megabytes(root) / seconds_since(begin));
  return 0;
}

// Each category is a table, as models with an embedding for each need it.
data::Schema clicks() {
  const data::TextFormat format = {.header = false, .ids = data::Ids::RowNumbers};
  std::vector<data::Schema::Entry> tables = {
      {"click", {"clicks.tsv", format, data::float32(), {"1"}}},
      {"numbers", {"clicks.tsv", format, data::float32(), data::numbered(2, 1 + kNumbers)}}};
  for (const std::string& column : data::numbered(2 + kNumbers, 1 + kNumbers + kTexts))
    tables.emplace_back(column, data::TableFile("clicks.tsv", format, data::categories(100000), {column}));
  return data::Schema(tables);
}

// Measures the time to the first batch, as the size of the files divided by it.
int first_batch(const std::string& root) {
  const auto begin = Clock::now();
  const data::Feed feed = data::table_feed(root, schema()).shuffle();
  const data::Sampler sampler(feed.size(), {.batch = kBatch});
  data::BatchQueue queue(feed, sampler, {.end_step = 1});
  if (!queue.next()) return 1;
  bench::print_measured(megabytes(root) / seconds_since(begin));
  return 0;
}

int run_side(const std::string& side, const std::string& root) {
  bench::pin_to_one_core();
  if (side == "parse") return parse(root, {{"desc", {"descriptors.tsv"}}});
  if (side == "integers") return parse(root, {{"integers", {"integers.tsv", data::int64()}}});
  if (side == "clicks") return parse(root, clicks());
  if (side == "sequential") return feed(root, data::Order::Sequential);
  if (side == "shuffled") return feed(root, data::Order::Shuffled);
  if (side == "first") return first_batch(root);
  fmt::print(stderr, "no such side: {}\n", side);
  return 2;
}

struct Peer {
  const char* side;
  const char* name;
};
constexpr std::array kPeers = {Peer{"pandas", "pandas, its C reader"}, Peer{"polars", "Polars"},
                               Peer{"arrow", "Arrow"}};

void print_report(const std::map<std::string, bench::Measured>& all, double size) {
  fmt::print(
      "## Tables\n\nTSV, {} rows of {} floats, and a second table of one column with its rows in another "
      "order, {:.0f} MB in all; one core, files in memory, opening them included; median of {} alternating "
      "rounds (`./dev bench tables`).\n\n| | MB/s | to reach | times pandas | to reach | peak memory, MiB "
      "|\n|---|---|---|---|---|---|\n",
      kRows, kColumns, size, kRounds);
  const auto row = [&](const std::string& side, const std::string& name, const std::string& peer,
                       const char* least, const char* times) {
    if (!all.contains(side)) return fmt::print("| {} | not here | | | | |\n", name);
    const bench::Measured& measured = all.at(side);
    const std::string ratio =
        all.contains(peer) ? fmt::format("{:.1f}", measured.per_second / all.at(peer).per_second) : "";
    fmt::print("| {} | {:.0f} | {} | {} | {} | {:.0f} |\n", name, measured.per_second, least, ratio, times,
               measured.peak_mebibytes);
  };
  row("parse", "one table to one tensor", "pandas-parse", "300", "5");
  for (const Peer& peer : kPeers)
    row(std::string(peer.side) + "-parse", std::string("  ") + peer.name, "pandas-parse", "", "");
  row("sequential", "both, joined, in batches of 100", "pandas-join", "", "3");
  row("shuffled", "the same, shuffled", "pandas-join", "", "3");
  for (const Peer& peer : kPeers)
    row(std::string(peer.side) + "-join", std::string("  ") + peer.name, "pandas-join", "", "");
  row("integers", "one table of int64 to one tensor", "", "300", "");
  row("clicks", "a click log to 28 tensors: numbers and categories", "", "", "");
  if (all.contains("first"))
    fmt::print("\nThe first batch is available after {:.2f} s for each GB (to reach: 1 s).\n",
               1000 / all.at("first").per_second);
}

// Prints how often, and for how long in total, a step of examples/05_descriptors waits for its batch with two
// workers after the first second. Its readers share two cores with the training.
void print_waits_of_example(const fs::path& bin, const std::string& root) {
  const std::string data = root + "/example";
  const std::string trace = root + "/trace.json";
  const std::string make = fmt::format("{}/descriptors --data {} --make-data", bin.string(), data);
  const std::string train = fmt::format(
      "{0}/tutti run -n 2 -- {0}/descriptors --data {1} --starts 1 --steps 10000 --timeline {2} >/dev/null "
      "2>&1",
      bin.string(), data, trace);
  if (std::system(make.c_str()) != 0 || std::system(train.c_str()) != 0) return;
  const auto events = nlohmann::json::parse(tutti::read_file(trace)).at("traceEvents");
  double first = -1;  // microseconds
  double last = 0;
  for (const auto& event : events) {
    if (event.value("name", "") != "step") continue;
    const double begin = event.at("ts");
    first = first < 0 ? begin : std::min(first, begin);
    last = std::max(last, begin + event.at("dur").get<double>());
  }
  constexpr double kSecond = 1e6;
  int64_t waits = 0;
  double waited = 0;
  int64_t steps = 0;
  for (const auto& event : events) {
    if (!event.contains("dur") || event.at("ts") < first + kSecond) continue;
    if (event.value("name", "") == "step") ++steps;
    if (event.value("name", "") != "wait for a batch") continue;
    ++waits;
    waited += event.at("dur").get<double>();
  }
  fmt::print(
      "\nThe example of descriptors with two workers, after its first second: {} steps of each worker in "
      "{:.1f} s, {} waits for a batch, {:.2f} % of the time (to reach: none).\n",
      steps, (last - first) / kSecond - 1, waits, 100 * waited / (2 * (last - first - kSecond)));
}

int measure_all() {
  const fs::path self = fs::read_symlink("/proc/self/exe");
  const bench::Scratch scratch(fs::exists("/dev/shm") ? "/dev/shm" : "/tmp");
  const std::string root = scratch.path() + "/floats";
  write_shard(root + "/shard0");
  write_integers(scratch.path() + "/integers/shard0");
  write_clicks(scratch.path() + "/clicks/shard0");
  std::vector<bench::Side> sides;
  for (const std::string side : {"integers", "clicks"})
    sides.push_back({side, {self.string(), "--side", side, scratch.path() + "/" + side}});
  for (const char* side : {"parse", "sequential", "shuffled", "first"})
    sides.push_back({side, {self.string(), "--side", side, root}});
  const std::string script = (bench::folder() / "peers/tables.py").string();
  // The distribution's Python has pandas, in case nothing can be downloaded.
  const std::string python = bench::peer_python("tables").value_or("/usr/bin/python3");
  for (const char* side : {"parse", "join"}) {
    for (const Peer& p : kPeers)
      sides.push_back({fmt::format("{}-{}", p.side, side), {python, script, p.side, side, root}});
  }
  print_report(bench::measure(sides, kRounds), megabytes(root));
  print_waits_of_example(self.parent_path(), root);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return argc == 4 && std::string(argv[1]) == "--side" ? run_side(argv[2], argv[3]) : measure_all();
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_tables: {}\n", error.what());
    return 1;
  }
}

// Reads a text table that is larger than the memory allowed for it in random order. Prints Markdown.
//   bench_large_table [GIGABYTES [FOLDER]]   10, /var/tmp
//   bench_large_table --side FOLDER          the measured side, for the parent
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>

#include <fmt/format.h>

#include "bench/sides.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/text.h"
#include "tutti/data/batch_queue.h"
#include "tutti/data/tables/table_feed.h"

namespace {

namespace data = tutti::data;
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kColumns = 210;
constexpr int64_t kBatch = 100;
constexpr int64_t kBatches = 2000;

// All IDs are different; the numbers of a few thousand rows are repeated.
void write_table(const std::string& file, double bytes) {
  constexpr int kRows = 4096;
  std::mt19937_64 random(1);
  std::normal_distribution<float> value;
  std::vector<std::string> rows;
  for (int i = 0; i < kRows; ++i) {
    std::string row;
    for (int column = 0; column < kColumns; ++column) row += fmt::format("\t{:.6g}", value(random));
    rows.push_back(row + "\n");
  }
  std::string text = "ID";
  for (int column = 0; column < kColumns; ++column) text += fmt::format("\td{}", column);
  text += "\n";
  tutti::FileWriter writer(file);
  for (int64_t row = 0; static_cast<double>(writer.bytes()) < bytes; ++row) {
    text += fmt::format("m{}{}", row, rows[static_cast<size_t>(row) % rows.size()]);
    if (text.size() < size_t{1} << 20) continue;
    writer.write(text);
    text.clear();
  }
  writer.write(text);
  writer.finish();
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Prints the examples per second after the first batch.
int read_table(const std::string& root) {
  bench::pin_to_one_core();
  const data::Schema schema = {{"desc", {"descriptors.tsv"}}};
  const auto begin = Clock::now();
  const data::Feed feed = data::table_feed(root, schema, {.memory = uint64_t{256} << 20}).shuffle();
  const data::Sampler sampler(feed.size(), {.batch = kBatch});
  data::BatchQueue queue(feed, sampler, {.end_step = kBatches});
  int64_t examples = queue.next()->size();
  fmt::print(stderr, "the first of {} rows after {:.2f} s\n", feed.size(), seconds_since(begin));
  const auto first = Clock::now();
  while (const auto batch = queue.next()) examples += batch->size();
  bench::print_measured(static_cast<double>(examples) / seconds_since(first));
  return 0;
}

int measure(double gigabytes, const std::string& parent) {
  const double bytes = 1e9 * gigabytes;
  if (static_cast<double>(fs::space(parent).available) < 1.1 * bytes)
    tutti::fail(tutti::ErrorKind::Overloaded, "no room for {} GB in {}", gigabytes, parent);
  const bench::Scratch scratch(parent);
  const std::string& root = scratch.path();
  tutti::make_directories(root + "/shard0");
  write_table(root + "/shard0/descriptors.tsv", bytes);
  const std::string self = fs::read_symlink("/proc/self/exe").string();
  const auto all = bench::measure({{"read", {self, "--side", root}}}, 1);
  if (!all.contains("read")) return 1;
  fmt::print(
      "## A table larger than memory\n\nTSV of {:.0f} GB, rows of {} floats, {} batches of {} in random "
      "order, with a cache of 256 MiB; one core, one run (`./dev bench large_table`).\n\n| | measured | to "
      "reach |\n|---|---|---|\n| peak memory, MiB | {:.0f} | 1024 |\n| examples/s | {:.0f} | |\n",
      gigabytes, kColumns, kBatches, kBatch, all.at("read").peak_mebibytes, all.at("read").per_second);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc == 3 && std::string(argv[1]) == "--side") return read_table(argv[2]);
    const double gigabytes = argc > 1 ? tutti::parse_double(argv[1]).value_or(0) : 10;
    if (argc > 3 || gigabytes <= 0)
      tutti::fail(tutti::ErrorKind::InvalidArgument, "usage: bench_large_table [GIGABYTES [FOLDER]]");
    return measure(gigabytes, argc > 2 ? argv[2] : "/var/tmp");
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_large_table: {}\n", error.what());
    return 1;
  }
}

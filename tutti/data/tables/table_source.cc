#include "tutti/data/tables/table_source.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <optional>
#include <utility>

#include <ATen/Functions.h>
#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/data/tables/text_table.h"

namespace tutti::data {
namespace {

// The numbers of a table that were read before. Thread-safe.
class KeptRows {
 public:
  KeptRows(int64_t rows, size_t columns)
      : columns_(columns),
        numbers_(std::make_unique_for_overwrite<float[]>(static_cast<size_t>(rows) * columns)),
        states_(static_cast<size_t>(rows)) {}

  static uint64_t bytes(int64_t rows, size_t columns) {
    return static_cast<uint64_t>(rows) * (columns * sizeof(float) + 1);
  }

  bool find(int64_t row, float* numbers) const {
    if (states_[static_cast<size_t>(row)].load(std::memory_order_acquire) != kThere) return false;
    std::copy_n(place(row), columns_, numbers);
    return true;
  }
  void keep(int64_t row, const float* numbers) {
    uint8_t expected = kNone;
    std::atomic<uint8_t>& state = states_[static_cast<size_t>(row)];
    if (!state.compare_exchange_strong(expected, kBeingWritten)) return;
    std::copy_n(numbers, columns_, place(row));
    state.store(kThere, std::memory_order_release);
  }

 private:
  enum : uint8_t { kNone, kBeingWritten, kThere };
  float* place(int64_t row) const { return numbers_.get() + static_cast<size_t>(row) * columns_; }

  const size_t columns_;
  const std::unique_ptr<float[]> numbers_;
  std::vector<std::atomic<uint8_t>> states_;
};

// One table of one shard.
struct Part {
  std::unique_ptr<TextTable> table;
  std::vector<int64_t> rows;  // by the master's row; empty: the same
  std::unique_ptr<KeptRows> kept;

  void read(int64_t master_row, float* numbers, std::string& buffer) const {
    const int64_t row = rows.empty() ? master_row : rows[static_cast<size_t>(master_row)];
    if (kept && kept->find(row, numbers)) return;
    table->read(row, numbers, buffer);
    if (kept) kept->keep(row, numbers);
  }
};

struct Shard {
  int64_t begin;            // number of its first example
  std::vector<Part> parts;  // as the schema has the tables
};

class TableSource final : public Source {
 public:
  TableSource(const std::vector<std::string>& shards, const Schema& schema, const TableSourceOptions& options)
      : schema_(schema), master_(master_of(schema, options.master_table)) {
    for (const std::string& shard : shards) add(shard);
    if (size_ == 0) fail(ErrorKind::InvalidArgument, "no shards to read");
    keep_what_fits(options.memory);
  }

  int64_t size() const override { return size_; }
  Batch read(std::span<const int64_t> examples) const override;

 private:
  static size_t master_of(const Schema& schema, const std::string& name);
  void add(const std::string& folder);
  void require_columns_of_first(const Shard& shard) const;
  void join(const TextTable& master, Part& part) const;
  void keep_what_fits(uint64_t memory);
  const Shard& shard_of(int64_t example) const;

  const Schema schema_;
  const size_t master_;
  std::vector<Shard> shards_;
  int64_t size_ = 0;
};

size_t TableSource::master_of(const Schema& schema, const std::string& name) {
  if (name.empty()) return 0;
  static_cast<void>(schema[name]);  // or an error
  const auto& tables = schema.tables();
  return static_cast<size_t>(
      std::find_if(tables.begin(), tables.end(), [&](const auto& t) { return t.first == name; }) -
      tables.begin());
}

void TableSource::add(const std::string& folder) {
  Shard shard{size_, {}};
  for (const auto& [name, file] : schema_.tables()) {
    const std::string path = (std::filesystem::path(folder) / file.file).string();
    if (!path_exists(path))
      fail(ErrorKind::InvalidArgument, "{}: there is no {}, which the schema's table '{}' is in", folder,
           file.file, name);
    shard.parts.push_back({std::make_unique<TextTable>(path, file.format), {}, {}});
  }
  const TextTable& master = *shard.parts[master_].table;
  if (master.size() == 0) fail(ErrorKind::DataLoss, "{}: no rows: a shard has to have some", master.path());
  require_columns_of_first(shard);
  for (Part& part : shard.parts) join(master, part);
  size_ += master.size();
  shards_.push_back(std::move(shard));
}

void TableSource::require_columns_of_first(const Shard& shard) const {
  if (shards_.empty()) return;
  for (size_t i = 0; i < shard.parts.size(); ++i) {
    const TextTable& first = *shards_[0].parts[i].table;
    const TextTable& table = *shard.parts[i].table;
    if (table.columns() == first.columns()) continue;
    const auto [here, there] = std::mismatch(table.columns().begin(), table.columns().end(),
                                             first.columns().begin(), first.columns().end());
    const auto shown = [](auto at, auto end) { return at == end ? "none" : fmt::format("'{}'", *at); };
    fail(ErrorKind::DataLoss,
         "{} and {} have different columns: {} and {}; the first that differs is {} here, {} there",
         table.path(), first.path(), table.columns().size(), first.columns().size(),
         shown(here, table.columns().end()), shown(there, first.columns().end()));
  }
}

void TableSource::join(const TextTable& master, Part& part) const {
  const TextTable& table = *part.table;
  if (table.ids().is_aligned_with(master.ids())) return;
  IdIndex::Joined joined = master.ids().join(table.ids());
  const auto require = [](const std::optional<int64_t>& alone, const TextTable& has,
                          const TextTable& has_not) {
    if (alone)
      fail(ErrorKind::DataLoss,
           "{}: there is no row of ID '{}', which {} has: every table has to have every ID", has_not.path(),
           has.id(*alone), has.path());
  };
  require(joined.alone_here, master, table);
  require(joined.alone_there, table, master);
  part.rows = std::move(joined.rows);
}

void TableSource::keep_what_fits(uint64_t memory) {
  for (Shard& shard : shards_) {
    for (Part& part : shard.parts) {
      const uint64_t bytes = KeptRows::bytes(part.table->size(), part.table->columns().size());
      if (bytes > memory) continue;
      memory -= bytes;
      part.kept = std::make_unique<KeptRows>(part.table->size(), part.table->columns().size());
    }
  }
}

const Shard& TableSource::shard_of(int64_t example) const {
  return *std::prev(std::upper_bound(shards_.begin(), shards_.end(), example,
                                     [](int64_t e, const Shard& shard) { return e < shard.begin; }));
}

Batch TableSource::read(std::span<const int64_t> examples) const {
  check_examples(examples, size_, "the tables");
  Batch::Tensors tensors;
  std::string buffer;
  for (size_t i = 0; i < schema_.tables().size(); ++i) {
    const size_t columns = shards_[0].parts[i].table->columns().size();
    const torch::Tensor numbers =
        at::empty({static_cast<int64_t>(examples.size()), static_cast<int64_t>(columns)}, at::kFloat);
    float* to = static_cast<float*>(numbers.data_ptr());
    for (const int64_t example : examples) {
      const Shard& shard = shard_of(example);
      shard.parts[i].read(example - shard.begin, to, buffer);
      to += columns;
    }
    tensors.emplace_back(schema_.tables()[i].first, numbers);
  }
  return Batch(std::move(tensors));
}

}  // namespace

std::shared_ptr<const Source> table_source(const std::vector<std::string>& shards, const Schema& schema,
                                           const TableSourceOptions& options) {
  return std::make_shared<TableSource>(shards, schema, options);
}

}  // namespace tutti::data

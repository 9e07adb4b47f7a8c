#include "tutti/data/tables/table_source.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <optional>
#include <unistd.h>
#include <utility>

#include <ATen/Functions.h>
#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/data/tables/shards.h"
#include "tutti/data/tables/table_facts.h"
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
  std::string folder;
  int64_t begin;                 // number of its first example
  int64_t rows;                  // -1: not known before it is opened
  std::once_flag once = {};      // opened
  std::vector<Part> parts = {};  // as the schema has the tables
};

// What two shards have to have in common: the columns of each table, and where they were seen first.
struct Columns {
  std::vector<std::string> names;
  std::string path;
};

class TableSource final : public Source {
 public:
  TableSource(const std::vector<std::string>& shards, const Schema& schema, const TableSourceOptions& options)
      : schema_(schema), master_(master_of(schema, options.master_table)), memory_(options.memory) {
    if (!options.rows.empty() && options.rows.size() != shards.size())
      fail(ErrorKind::InvalidArgument, "the rows of {} shards are known, but there are {}",
           options.rows.size(), shards.size());
    for (size_t i = 0; i < shards.size(); ++i) {
      shards_.emplace_back(shards[i], size_, options.rows.empty() ? -1 : options.rows[i]);
      if (options.rows.empty()) open(shards_.back());
      size_ += shards_.back().rows;
    }
    if (size_ == 0) fail(ErrorKind::InvalidArgument, "no shards to read");
    if (options.rows.empty()) require_ids_in_one_shard();
  }

  int64_t size() const override { return size_; }
  Batch read(std::span<const int64_t> examples) const override;
  std::string id(int64_t example) const override;
  std::string place_of(int64_t example) const override { return shard_of(example).folder; }
  TableStatistics statistics(const std::string& name) const override;

 private:
  static size_t master_of(const Schema& schema, const std::string& name);
  void open(Shard& shard) const;
  const Shard& opened(int64_t example) const;
  void require_columns_of_first(const Shard& shard) const;
  void require_ids_in_one_shard() const;
  void join(const TextTable& master, Part& part) const;
  void keep_if_it_fits(Part& part) const;
  Shard& shard_of(int64_t example) const;

  const Schema schema_;
  const size_t master_;
  mutable std::deque<Shard> shards_;
  int64_t size_ = 0;

  mutable std::mutex mutex_;
  mutable std::vector<Columns> columns_;  // of each table; guarded by mutex_
  mutable uint64_t memory_;               // that is left; likewise
};

size_t TableSource::master_of(const Schema& schema, const std::string& name) {
  if (name.empty()) return 0;
  static_cast<void>(schema[name]);  // or an error
  const auto& tables = schema.tables();
  return static_cast<size_t>(
      std::find_if(tables.begin(), tables.end(), [&](const auto& t) { return t.first == name; }) -
      tables.begin());
}

void TableSource::open(Shard& shard) const {
  std::call_once(shard.once, [&] {
    shard.parts.clear();
    for (const auto& [name, file] : schema_.tables())
      shard.parts.push_back(
          {std::make_unique<TextTable>(path_in(shard.folder, name, file), file.format), {}, {}});
    const TextTable& master = *shard.parts[master_].table;
    if (master.size() == 0) fail(ErrorKind::DataLoss, "{}: no rows: a shard has to have some", master.path());
    if (shard.rows >= 0 && shard.rows != master.size())
      fail(ErrorKind::DataLoss, "{} has {} rows, and had {}: it was changed meanwhile", master.path(),
           master.size(), shard.rows);
    shard.rows = master.size();
    for (Part& part : shard.parts) join(master, part);
    const std::lock_guard lock(mutex_);
    require_columns_of_first(shard);
    for (Part& part : shard.parts) keep_if_it_fits(part);
  });
}

void TableSource::require_columns_of_first(const Shard& shard) const {
  if (columns_.empty()) {
    for (const Part& part : shard.parts) columns_.push_back({part.table->columns(), part.table->path()});
    return;
  }
  for (size_t i = 0; i < shard.parts.size(); ++i) {
    const std::vector<std::string>& first = columns_[i].names;
    const TextTable& table = *shard.parts[i].table;
    if (table.columns() == first) continue;
    const auto [here, there] =
        std::mismatch(table.columns().begin(), table.columns().end(), first.begin(), first.end());
    const auto shown = [](auto at, auto end) { return at == end ? "none" : fmt::format("'{}'", *at); };
    fail(ErrorKind::DataLoss,
         "{} and {} have different columns: {} and {}; the first that differs is {} here, {} there",
         table.path(), columns_[i].path, table.columns().size(), first.size(),
         shown(here, table.columns().end()), shown(there, first.end()));
  }
}

void TableSource::require_ids_in_one_shard() const {
  std::vector<const IdIndex*> indices;
  for (const Shard& shard : shards_) indices.push_back(&shard.parts[master_].table->ids());
  const auto shared = find_shared(indices);
  if (!shared) return;
  const auto& [here, there] = *shared;
  const TextTable& table = *shards_[here.index].parts[master_].table;
  fail(ErrorKind::DataLoss, "the ID '{}' is in {} and in {}: expected one row an ID", table.id(here.row),
       table.path(), shards_[there.index].parts[master_].table->path());
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

void TableSource::keep_if_it_fits(Part& part) const {
  const size_t columns = part.table->columns().size();
  const uint64_t bytes = KeptRows::bytes(part.table->size(), columns);
  if (bytes > memory_) return;
  memory_ -= bytes;
  part.kept = std::make_unique<KeptRows>(part.table->size(), columns);
}

Shard& TableSource::shard_of(int64_t example) const {
  return *std::prev(std::upper_bound(shards_.begin(), shards_.end(), example,
                                     [](int64_t e, const Shard& shard) { return e < shard.begin; }));
}

const Shard& TableSource::opened(int64_t example) const {
  Shard& shard = shard_of(example);
  open(shard);
  return shard;
}

Batch TableSource::read(std::span<const int64_t> examples) const {
  check_examples(examples, size_, "the tables");
  std::vector<const Shard*> shards;
  for (const int64_t example : examples) shards.push_back(&opened(example));
  Batch::Tensors tensors;
  std::string buffer;
  for (size_t i = 0; i < schema_.tables().size(); ++i) {
    const size_t columns = shards.empty() ? 0 : shards[0]->parts[i].table->columns().size();
    const torch::Tensor numbers =
        at::empty({static_cast<int64_t>(examples.size()), static_cast<int64_t>(columns)}, at::kFloat);
    float* to = static_cast<float*>(numbers.data_ptr());
    for (size_t row = 0; row < examples.size(); ++row) {
      shards[row]->parts[i].read(examples[row] - shards[row]->begin, to, buffer);
      to += columns;
    }
    tensors.emplace_back(schema_.tables()[i].first, numbers);
  }
  return Batch(std::move(tensors));
}

std::string TableSource::id(int64_t example) const {
  check_examples({&example, 1}, size_, "the tables");
  const Shard& shard = opened(example);
  return shard.parts[master_].table->id(example - shard.begin);
}

// Workers that begin at once begin at different shards, and so share what is not known yet.
TableStatistics TableSource::statistics(const std::string& name) const {
  const TableFile& file = schema_[name];
  std::vector<TableStatistics> of_each(shards_.size());
  const auto first = static_cast<size_t>(getpid());
  for (size_t i = 0; i < shards_.size(); ++i) {
    const size_t shard = (first + i) % shards_.size();
    of_each[shard] = statistics_of(path_in(shards_[shard].folder, name, file), file.format);
  }
  TableStatistics all;
  for (const TableStatistics& one : of_each) all.merge(one);
  return all;
}

}  // namespace

std::shared_ptr<const Source> table_source(const std::vector<std::string>& shards, const Schema& schema,
                                           const TableSourceOptions& options) {
  return std::make_shared<TableSource>(shards, schema, options);
}

}  // namespace tutti::data

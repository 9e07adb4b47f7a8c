#include "tutti/data/tables/table_source.h"

#include <algorithm>
#include <deque>
#include <filesystem>
#include <mutex>
#include <optional>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/crc32c.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/data/idx.h"
#include "tutti/data/tables/shards.h"
#include "tutti/data/tables/table.h"
#include "tutti/data/tables/table_part.h"

namespace tutti::data {
namespace {

struct Shard {
  std::string folder;
  int64_t begin;                      // number of its first example
  int64_t rows;                       // -1: unknown until it is opened
  std::once_flag once = {};           // set once it is opened
  std::vector<TablePart> parts = {};  // in the order of the schema's tables
};

class JoinedTables final : public TableSource {
 public:
  JoinedTables(const std::vector<std::string>& shards, const Schema& schema,
               const TableSourceOptions& options)
      : schema_(schema),
        master_(options.master_table.empty() ? 0 : schema.index_of(options.master_table)),
        bad_rows_(options.bad_rows),
        memory_(options.memory) {
    const bool known = !options.rows.empty() && options.bad_rows == BadRows::Error;
    if (known && options.rows.size() != shards.size())
      fail(ErrorKind::InvalidArgument, "the numbers of rows of {} shards were given, but there are {} shards",
           options.rows.size(), shards.size());
    for (size_t i = 0; i < shards.size(); ++i) {
      shards_.emplace_back(shards[i], size_, known ? options.rows[i] : -1);
      if (!known) open(shards_.back());
      size_ += shards_.back().rows;
    }
    if (size_ == 0) fail(ErrorKind::InvalidArgument, "there are no shards to read");
    if (!known) require_ids_in_one_shard();
  }

  int64_t size() const override { return size_; }
  Batch read(std::span<const int64_t> examples) const override;
  std::string id(int64_t example) const override;
  std::string place_of(int64_t example) const override { return shard_of(example).folder; }
  LeftOut left_out() const override { return left_out_; }
  std::string parts() const override;
  void open(const std::vector<ExampleRange>& ranges) const override {
    for (Shard& shard : shards_) {
      const auto overlaps = [&](const ExampleRange& examples) {
        return shard.begin < examples.end && examples.begin < shard.begin + shard.rows;
      };
      if (std::any_of(ranges.begin(), ranges.end(), overlaps)) open(shard);
    }
    require_ids_in_one_shard();
  }
  std::vector<int64_t> rows_of_shards() const override {
    std::vector<int64_t> rows;
    for (const Shard& shard : shards_) rows.push_back(shard.rows);
    return rows;
  }
  TableStatistics statistics(const std::string& name) const override;

 private:
  void open(Shard& shard) const;
  const Shard& opened(int64_t example) const;
  void require_columns_of_first(const Shard& shard) const;
  void require_ids_in_one_shard() const;
  TablePart open(const std::string& shard, const std::string& name, const TableFile& file) const;
  const TableFile& master_file() const { return schema_.tables()[master_].second; }
  int64_t join_all(Shard& shard) const;
  int64_t join_complete_rows(Shard& shard) const;
  void keep_if_it_fits(TablePart& part) const;
  Shard& shard_of(int64_t example) const;

  const Schema schema_;
  const size_t master_;
  const BadRows bad_rows_;
  mutable std::deque<Shard> shards_;
  int64_t size_ = 0;

  mutable std::mutex mutex_;
  mutable std::vector<TableColumns> columns_;  // of each table; guarded by mutex_
  mutable uint64_t memory_;                    // bytes left; guarded by mutex_
  mutable LeftOut left_out_;                   // complete when all shards are open
};

// Uses only the names of the folders, since their location may differ between hosts.
std::string JoinedTables::parts() const {
  if (shards_.size() == 1) return {};
  std::string names;
  for (const Shard& shard : shards_) names += std::filesystem::path(shard.folder).filename().string() + "\n";
  return fmt::format("{} shards in an order with checksum {:08x}", shards_.size(), crc32c(as_bytes(names)));
}

void JoinedTables::open(Shard& shard) const {
  std::call_once(shard.once, [&] {
    shard.parts.clear();
    for (const auto& [name, file] : schema_.tables()) shard.parts.push_back(open(shard.folder, name, file));
    const int64_t rows = join_all(shard);
    const std::string path = path_in(shard.folder, schema_.tables()[master_].first, master_file());
    if (rows == 0)
      fail(ErrorKind::DataLoss, "{}: the table has no rows; every shard must have at least one", path);
    if (shard.rows >= 0 && shard.rows != rows)
      fail(ErrorKind::DataLoss, "{} has {} rows, but had {} before: the file was changed while it was in use",
           path, rows, shard.rows);
    shard.rows = rows;
    const std::lock_guard lock(mutex_);
    require_columns_of_first(shard);
    for (TablePart& part : shard.parts) keep_if_it_fits(part);
  });
}

TablePart JoinedTables::open(const std::string& shard, const std::string& name, const TableFile& file) const {
  const std::string path = path_in(shard, name, file);
  if (!file.is_idx()) return {open_table(path, file.format, file.kind, bad_rows_), {}, {}, {}};
  torch::Tensor tensor = read_idx(path);
  if (tensor.dim() == 0) tensor = tensor.unsqueeze(0);
  return {{}, std::move(tensor), {}, {}};
}

// Returns the number of examples.
int64_t JoinedTables::join_all(Shard& shard) const {
  TablePart& master = shard.parts[master_];
  for (size_t i = 0; i < shard.parts.size(); ++i) {
    const TablePart& part = shard.parts[i];
    if ((!part.table || !master.table) && part.size() != master.size())
      fail(ErrorKind::DataLoss,
           "{}: {} has {} rows, but {} has {}; an IDX file has no IDs, so both must have the same rows in "
           "the same order",
           shard.folder, schema_.tables()[i].second.file, part.size(), master_file().file, master.size());
  }
  if (bad_rows_ == BadRows::Skip && master.table) return join_complete_rows(shard);
  for (TablePart& part : shard.parts) {
    if (part.table && master.table && !part.table->ids().is_aligned_with(master.table->ids()))
      part.rows = rows_with_same_ids(*master.table, *part.table);
  }
  return master.size();
}

// Keeps the rows of the master table whose ID is in every table. Returns their number.
int64_t JoinedTables::join_complete_rows(Shard& shard) const {
  const Table& master = *shard.parts[master_].table;
  std::vector<bool> whole(static_cast<size_t>(master.size()), true);
  int64_t most = 0;  // rows of a table
  std::string why;
  for (TablePart& part : shard.parts) {
    if (!part.table) continue;
    most = std::max(most, part.table->rows_in_file());
    if (why.empty()) why = part.table->left_out().why;
    part.rows = master.ids().join_some(part.table->ids());
    for (size_t row = 0; row < whole.size(); ++row) whole[row] = whole[row] && part.rows[row] >= 0;
  }
  std::vector<int64_t> kept;
  for (size_t row = 0; row < whole.size(); ++row) {
    if (whole[row]) kept.push_back(static_cast<int64_t>(row));
  }
  for (TablePart& part : shard.parts) {
    std::vector<int64_t> rows;
    for (const int64_t row : kept) rows.push_back(part.table ? part.rows[static_cast<size_t>(row)] : row);
    part.rows = std::move(rows);
  }
  const auto examples = static_cast<int64_t>(kept.size());
  if (examples == most) return examples;
  left_out_.examples += most - examples;
  if (why.empty()) why = fmt::format("{}: some IDs are in one table only", shard.folder);
  if (left_out_.why.empty()) left_out_.why = why;
  return examples;
}

void JoinedTables::require_columns_of_first(const Shard& shard) const {
  for (size_t i = 0; i < shard.parts.size(); ++i) {
    const auto& [name, file] = schema_.tables()[i];
    TableColumns own{shard.parts[i].columns(), path_in(shard.folder, name, file)};
    if (i < columns_.size()) {
      require_same_columns(own, columns_[i]);
    } else {
      columns_.push_back(std::move(own));
    }
  }
}

// Checks the shards that are open.
void JoinedTables::require_ids_in_one_shard() const {
  std::vector<const IdIndex*> indices;
  std::vector<const Table*> tables;
  for (const Shard& shard : shards_) {
    if (shard.parts.empty()) continue;
    const TablePart& master = shard.parts[master_];
    if (!master.table) return;
    tables.push_back(master.table.get());
    indices.push_back(&master.table->ids());
  }
  const auto shared = find_shared(indices);
  if (!shared) return;
  const auto& [here, there] = *shared;
  const Table& table = *tables[here.index];
  fail(ErrorKind::DataLoss, "the ID '{}' occurs in both {} and {}; IDs must be unique", table.id(here.row),
       table.path(), tables[there.index]->path());
}

void JoinedTables::keep_if_it_fits(TablePart& part) const {
  if (!part.table || !part.table->is_dense()) return;
  const size_t columns = part.table->columns().size();
  const uint64_t bytes = KeptRows::bytes(part.table->size(), columns);
  if (bytes > memory_) return;
  memory_ -= bytes;
  part.kept = std::make_unique<KeptRows>(part.table->size(), columns);
}

Shard& JoinedTables::shard_of(int64_t example) const {
  return *std::prev(std::upper_bound(shards_.begin(), shards_.end(), example,
                                     [](int64_t e, const Shard& shard) { return e < shard.begin; }));
}

const Shard& JoinedTables::opened(int64_t example) const {
  Shard& shard = shard_of(example);
  open(shard);
  return shard;
}

Batch JoinedTables::read(std::span<const int64_t> examples) const {
  check_examples(examples, size_, "the tables");
  if (examples.empty()) return {};
  std::vector<const Shard*> shards;
  for (const int64_t example : examples) shards.push_back(&opened(example));
  Batch::Tensors tensors;
  std::vector<RowPlace> places(examples.size());
  for (size_t i = 0; i < schema_.tables().size(); ++i) {
    for (size_t k = 0; k < examples.size(); ++k) {
      const TablePart& part = shards[k]->parts[i];
      places[k] = {&part, part.row_of(examples[k] - shards[k]->begin)};
    }
    append_rows(schema_.tables()[i].first, schema_.tables()[i].second.kind, places, tensors);
  }
  return Batch(std::move(tensors));
}

// Without IDs in the master table, the ID consists of the shard and the row.
std::string JoinedTables::id(int64_t example) const {
  check_examples({&example, 1}, size_, "the tables");
  const Shard& shard = opened(example);
  const TablePart& master = shard.parts[master_];
  const int64_t row = master.row_of(example - shard.begin);
  if (master.table) return master.table->id(row);
  return fmt::format("{}/{}", std::filesystem::path(shard.folder).filename().string(), row);
}

// Workers that start at the same time begin at different shards, and so share the unfinished work.
TableStatistics JoinedTables::statistics(const std::string& name) const {
  const TableFile& file = schema_[name];
  // Values that the file does not contain literally must be computed example by example.
  if (file.is_idx() || file.kind.form != TableKind::Form::Dense || bad_rows_ == BadRows::Skip)
    return Source::statistics(name);
  // The order must not depend on the partition of shards among workers.
  std::vector<std::string> folders;
  for (const Shard& shard : shards_) folders.push_back(shard.folder);
  std::sort(folders.begin(), folders.end());
  std::vector<TableStatistics> of_each(folders.size());
  const auto first = static_cast<size_t>(getpid());
  for (size_t i = 0; i < folders.size(); ++i) {
    const size_t shard = (first + i) % folders.size();
    of_each[shard] = statistics_of(path_in(folders[shard], name, file), file.format);
  }
  TableStatistics all;
  for (const TableStatistics& one : of_each) all.merge(one);
  return all;
}

}  // namespace

void require_same_columns(const TableColumns& own, const TableColumns& first) {
  if (own.names == first.names) return;
  const auto [here, there] =
      std::mismatch(own.names.begin(), own.names.end(), first.names.begin(), first.names.end());
  const auto shown = [](auto at, auto end) { return at == end ? "none" : fmt::format("'{}'", *at); };
  fail(ErrorKind::DataLoss,
       "{} and {} have different columns ({} and {} columns); the first difference is {} in the former and "
       "{} in the latter",
       own.path, first.path, own.names.size(), first.names.size(), shown(here, own.names.end()),
       shown(there, first.names.end()));
}

std::shared_ptr<const TableSource> table_source(const std::vector<std::string>& shards, const Schema& schema,
                                                const TableSourceOptions& options) {
  return std::make_shared<JoinedTables>(shards, schema, options);
}

}  // namespace tutti::data

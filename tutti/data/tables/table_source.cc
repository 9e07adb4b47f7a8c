#include "tutti/data/tables/table_source.h"

#include <algorithm>
#include <deque>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <optional>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/hashes.h"
#include "tutti/data/idx.h"
#include "tutti/data/tables/once.h"
#include "tutti/data/tables/shard_file.h"
#include "tutti/data/tables/shards.h"
#include "tutti/data/tables/table.h"
#include "tutti/data/tables/table_facts.h"

namespace tutti::data {
namespace {

struct Shard {
  std::string folder;
  int64_t begin = 0;  // number of its first example
  int64_t rows = -1;  // -1: unknown until it is opened
  Once opening;
  std::vector<ShardFile> files;  // in the order of the schema's files
};

class JoinedTables final : public TableSource {
 public:
  JoinedTables(const std::vector<std::string>& shards, const Schema& schema,
               const TableSourceOptions& options)
      : schema_(schema),
        master_(options.master_table.empty() ? 0 : file_of(schema, options.master_table)),
        bad_rows_(options.bad_rows),
        memory_(options.memory) {
    const bool known = !options.rows.empty() && options.bad_rows == BadRows::Error;
    if (known && options.rows.size() != shards.size())
      fail(ErrorKind::InvalidArgument, "the numbers of rows of {} shards were given, but there are {} shards",
           options.rows.size(), shards.size());
    const OnBytes on_bytes = known ? OnBytes() : counted_in(shards, options.on_progress);
    for (size_t i = 0; i < shards.size(); ++i) {
      Shard& shard = shards_.emplace_back();
      shard.folder = shards[i];
      shard.begin = size_;
      if (known)
        shard.rows = options.rows[i];
      else
        open(shard, on_bytes);
      size_ += shard.rows;
    }
    if (size_ == 0) fail(ErrorKind::InvalidArgument, "there are no shards to read");
    if (!known) require_ids_in_one_shard();
  }

  int64_t size() const override { return size_; }
  Batch read(std::span<const int64_t> examples) const override;
  std::string id(int64_t example) const override;
  std::string place_of(int64_t example) const override;
  LeftOut left_out() const override { return left_out_; }
  std::string parts() const override;
  void open(const std::vector<ExampleRange>& ranges, const OnProgress& on_progress) const override {
    std::vector<Shard*> wanted;
    std::vector<std::string> folders;
    for (Shard& shard : shards_) {
      const auto overlaps = [&](const ExampleRange& examples) {
        return shard.begin < examples.end && examples.begin < shard.begin + shard.rows;
      };
      if (std::none_of(ranges.begin(), ranges.end(), overlaps)) continue;
      wanted.push_back(&shard);
      if (!shard.opening.is_done()) folders.push_back(shard.folder);
    }
    const OnBytes on_bytes = counted_in(folders, on_progress);
    for (Shard* const shard : wanted) open(*shard, on_bytes);
    require_ids_in_one_shard();
  }
  std::vector<int64_t> rows_of_shards() const override {
    std::vector<int64_t> rows;
    for (const Shard& shard : shards_) rows.push_back(shard.rows);
    return rows;
  }
  TableStatistics statistics(const std::string& name) const override;

 private:
  using FileTables = std::vector<size_t>;  // of a file, as Schema::files() has them

  static size_t file_of(const Schema& schema, const std::string& table);
  const TableFile& table(size_t index) const { return schema_.tables()[index].second; }
  std::string path_of(const std::string& shard, const FileTables& tables) const {
    return path_in(shard, schema_.tables()[tables.front()].first, table(tables.front()));
  }
  OnBytes counted_in(const std::vector<std::string>& shards, const OnProgress& on_progress) const {
    return on_progress ? counted(on_progress, bytes_in(shards, schema_)) : OnBytes();
  }
  const FileTables& master_tables() const { return schema_.files()[master_]; }
  void open(Shard& shard, const OnBytes& on_bytes = {}) const;
  const Shard& opened(int64_t example) const;
  void require_columns_of_first(const Shard& shard) const;
  void require_ids_in_one_shard() const;
  ShardFile open(const std::string& shard, const FileTables& tables, const OnBytes& on_bytes) const;
  void require_as_many_rows(const Shard& shard) const;
  const ShardFile* file_with_ids(const Shard& shard) const;
  std::vector<int64_t> rows_beside_master(const Shard& shard, const ShardFile& file) const;
  int64_t join_all(Shard& shard) const;
  int64_t join_complete_rows(Shard& shard) const;
  void keep_if_it_fits(ShardFile& file) const;
  Shard& shard_of(int64_t example) const;

  const Schema schema_;
  const size_t master_;  // index of the file with the master table
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

size_t JoinedTables::file_of(const Schema& schema, const std::string& table) {
  const size_t index = schema.index_of(table);
  const auto has_it = [&](const FileTables& tables) {
    return std::find(tables.begin(), tables.end(), index) != tables.end();
  };
  return static_cast<size_t>(std::find_if(schema.files().begin(), schema.files().end(), has_it) -
                             schema.files().begin());
}

void JoinedTables::open(Shard& shard, const OnBytes& on_bytes) const {
  shard.opening([&] {
    shard.files.clear();
    for (const FileTables& tables : schema_.files())
      shard.files.push_back(open(shard.folder, tables, on_bytes));
    require_as_many_rows(shard);
    const int64_t rows = bad_rows_ == BadRows::Skip ? join_complete_rows(shard) : join_all(shard);
    const std::string path = path_of(shard.folder, master_tables());
    if (rows == 0)
      fail(ErrorKind::DataLoss, "{}: the table has no rows; every shard must have at least one", path);
    if (shard.rows >= 0 && shard.rows != rows)
      fail(ErrorKind::DataLoss, "{} has {} rows, but had {} before: the file was changed while it was in use",
           path, rows, shard.rows);
    shard.rows = rows;
    const std::lock_guard lock(mutex_);
    require_columns_of_first(shard);
    for (ShardFile& file : shard.files) keep_if_it_fits(file);
  });
}

ShardFile JoinedTables::open(const std::string& shard, const FileTables& tables,
                             const OnBytes& on_bytes) const {
  const std::string path = path_of(shard, tables);
  const TableFile& first = table(tables.front());
  if (first.is_idx()) {
    torch::Tensor tensor = read_idx(path);
    if (on_bytes) on_bytes(static_cast<int64_t>(std::filesystem::file_size(path)));
    if (tensor.dim() == 0) tensor = tensor.unsqueeze(0);
    return {{}, std::move(tensor), {}, {}};
  }
  std::vector<TableView> views;
  for (const size_t index : tables) views.push_back({table(index).kind, table(index).columns});
  return {open_table(path, first.format, views, bad_rows_, on_bytes), {}, {}, {}};
}

// Returns the file to which others are joined by ID: the file of the master table or, if that has no IDs, the
// first file with IDs, which has its rows in the order of the master table. Null if no file has IDs.
const ShardFile* JoinedTables::file_with_ids(const Shard& shard) const {
  if (shard.files[master_].has_ids()) return &shard.files[master_];
  const auto found = std::find_if(shard.files.begin(), shard.files.end(),
                                  [](const ShardFile& file) { return file.has_ids(); });
  return found == shard.files.end() ? nullptr : &*found;
}

// Rows of files that are not joined by ID are found by their number.
void JoinedTables::require_as_many_rows(const Shard& shard) const {
  const ShardFile& master = shard.files[master_];
  const ShardFile* const joined_by = file_with_ids(shard);
  for (size_t i = 0; i < shard.files.size(); ++i) {
    const ShardFile& file = shard.files[i];
    const bool is_joined_by_id = file.has_ids() && &file != joined_by;
    if (is_joined_by_id || file.rows_in_file() == master.rows_in_file()) continue;
    const std::string& name = table(schema_.files()[i].front()).file;
    const std::string& master_name = table(master_tables().front()).file;
    fail(
        ErrorKind::DataLoss,
        "{}: {} has {} rows, but {} has {}; {} has no IDs, so both must have the same rows in the same order",
        shard.folder, name, file.rows_in_file(), master_name, master.rows_in_file(),
        file.has_ids() ? master_name : name);
  }
}

// Returns the number of examples.
int64_t JoinedTables::join_all(Shard& shard) const {
  const ShardFile* const by = file_with_ids(shard);
  for (ShardFile& file : shard.files) {
    if (file.has_ids() && !file.table->ids().is_aligned_with(by->table->ids()))
      file.rows = matching_rows(*by->table, *file.table);
  }
  return shard.files[master_].size();
}

// Returns for each row of the master table the row of a file that belongs to it, or -1.
std::vector<int64_t> JoinedTables::rows_beside_master(const Shard& shard, const ShardFile& file) const {
  const ShardFile& master = shard.files[master_];
  const ShardFile* const by = file_with_ids(shard);
  if (!file.has_ids() || by == &master || by == &file) return rows_beside(master, file);
  std::vector<int64_t> rows = rows_beside(master, *by);
  const std::vector<int64_t> by_id = rows_beside(*by, file);
  for (int64_t& row : rows) row = row < 0 ? row : by_id[static_cast<size_t>(row)];
  return rows;
}

// Keeps the rows of the master table that are in every table. Returns their number.
int64_t JoinedTables::join_complete_rows(Shard& shard) const {
  const ShardFile& master = shard.files[master_];
  std::vector<bool> whole(static_cast<size_t>(master.size()), true);
  int64_t most = 0;  // rows of a file
  std::string why;
  for (ShardFile& file : shard.files) {
    most = std::max(most, file.rows_in_file());
    if (why.empty() && file.table) why = file.table->left_out().why;
    file.rows = rows_beside_master(shard, file);
    for (size_t row = 0; row < whole.size(); ++row) whole[row] = whole[row] && file.rows[row] >= 0;
  }
  const auto examples = static_cast<int64_t>(std::count(whole.begin(), whole.end(), true));
  for (ShardFile& file : shard.files) {
    size_t kept = 0;
    for (size_t row = 0; row < whole.size(); ++row) {
      if (whole[row]) file.rows[kept++] = file.rows[row];
    }
    file.rows.resize(kept);
  }
  if (examples == most) return examples;
  left_out_.examples += most - examples;
  if (why.empty()) why = fmt::format("{}: some IDs are in one table only", shard.folder);
  if (left_out_.why.empty()) left_out_.why = why;
  return examples;
}

void JoinedTables::require_columns_of_first(const Shard& shard) const {
  std::vector<TableColumns> columns(schema_.tables().size());
  for (size_t file = 0; file < shard.files.size(); ++file) {
    const FileTables& tables = schema_.files()[file];
    for (size_t view = 0; view < tables.size(); ++view)
      columns[tables[view]] = {shard.files[file].columns(view), path_of(shard.folder, tables)};
  }
  for (size_t i = 0; i < columns_.size(); ++i) require_same_columns(columns[i], columns_[i]);
  if (columns_.empty()) columns_ = std::move(columns);
}

// Checks the shards that are open.
void JoinedTables::require_ids_in_one_shard() const {
  std::vector<const IdIndex*> indices;
  std::vector<const Table*> tables;
  for (const Shard& shard : shards_) {
    if (shard.files.empty()) continue;
    const ShardFile& master = shard.files[master_];
    if (!master.has_ids()) return;
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

void JoinedTables::keep_if_it_fits(ShardFile& file) const {
  const size_t row_bytes = file.row_bytes();
  const uint64_t bytes = KeptRows::bytes(file.size(), row_bytes);
  if (row_bytes == 0 || bytes > memory_) return;
  memory_ -= bytes;
  file.kept = std::make_unique<KeptRows>(file.size(), row_bytes);
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
  std::vector<Batch::Tensors> of_tables(schema_.tables().size());
  std::vector<RowPlace> places(examples.size());
  for (size_t i = 0; i < schema_.files().size(); ++i) {
    for (size_t k = 0; k < examples.size(); ++k) {
      const ShardFile& file = shards[k]->files[i];
      places[k] = {&file, file.row_of(examples[k] - shards[k]->begin)};
    }
    const FileTables& tables = schema_.files()[i];
    if (!places[0].file->table) {
      of_tables[tables[0]] = {{schema_.tables()[tables[0]].first, tensor_rows(places)}};
      continue;
    }
    std::vector<CellBuffer> buffers = read_rows(places);
    for (size_t view = 0; view < tables.size(); ++view)
      buffers[view].move_to(schema_.tables()[tables[view]].first, of_tables[tables[view]]);
  }
  Batch::Tensors tensors;
  for (Batch::Tensors& own : of_tables) std::move(own.begin(), own.end(), std::back_inserter(tensors));
  return Batch(std::move(tensors));
}

// Returns the file and line of a table's row. With several files, it is unknown which one an error is about,
// so all are named. Neither opens nor reads a file, since the error about a reader that hangs has this text.
std::string JoinedTables::place_of(int64_t example) const {
  const Shard& shard = shard_of(example);
  if (!shard.opening.is_done()) return shard.folder;
  std::vector<std::string> places;
  for (const ShardFile& file : shard.files) {
    if (file.table) places.push_back(file.table->place_of(file.row_of(example - shard.begin)));
  }
  return places.empty() ? shard.folder : fmt::format("{}", fmt::join(places, ", "));
}

// Without IDs in the master table, the ID consists of the shard and the row in its file.
std::string JoinedTables::id(int64_t example) const {
  check_examples({&example, 1}, size_, "the tables");
  const Shard& shard = opened(example);
  const ShardFile& master = shard.files[master_];
  const int64_t row = master.row_of(example - shard.begin);
  if (master.has_ids()) return master.table->id(row);
  return fmt::format("{}/{}", std::filesystem::path(shard.folder).filename().string(),
                     master.row_in_file(row));
}

// Workers that start at the same time begin at different shards, and so share the unfinished work.
TableStatistics JoinedTables::statistics(const std::string& name) const {
  const TableFile& file = schema_[name];
  const bool has_lists_of_integers = !file.kind.is_dense() && !file.kind.cells.is_float();
  if (file.kind.cells.is == CellType::Is::Category || has_lists_of_integers)
    fail(ErrorKind::InvalidArgument,
         "the table '{}' has no statistics: it contains {}. Only tables with one number per cell have them",
         name, has_lists_of_integers ? "lists of ids" : "categories");
  // Values that the file does not contain literally must be computed example by example.
  if (file.is_idx() || !file.kind.is_dense() || bad_rows_ == BadRows::Skip) return Source::statistics(name);
  // The order must not depend on the partition of shards among workers.
  std::vector<std::string> folders;
  for (const Shard& shard : shards_) folders.push_back(shard.folder);
  std::sort(folders.begin(), folders.end());
  std::vector<TableStatistics> of_each(folders.size());
  const auto first = static_cast<size_t>(getpid());
  for (size_t i = 0; i < folders.size(); ++i) {
    const size_t shard = (first + i) % folders.size();
    of_each[shard] =
        statistics_of(path_in(folders[shard], name, file), file.format, {file.kind, file.columns});
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

#include <algorithm>
#include <arrow/record_batch.h>
#include <arrow/type.h>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <fcntl.h>
#include <functional>
#include <mutex>
#include <new>
#include <numeric>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/schema.h>
#include <span>
#include <string>
#include <string_view>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tutti/base/environment.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/data/tables/arrow_values.h"
#include "tutti/data/tables/cells.h"
#include "tutti/data/tables/table.h"

namespace tutti::data {
namespace {

constexpr int64_t kBatchBytes = int64_t{4} << 20;  // bytes that are unpacked at once (at least one row)

using Floats = std::vector<float>;

// An unnamed file in TMPDIR or else /var/tmp, which is removed with this object. Thread-safe.
class Spool {
 public:
  Spool() {
    const std::string folder = Environment::of_process().get("TMPDIR").value_or("/var/tmp");
    what_ = fmt::format("unpacked Parquet in {} (set TMPDIR to use another folder)", folder);
    std::string path = folder + "/tutti-XXXXXX";  // the template for mkostemp(3)
    const int fd = mkostemp(path.data(), O_CLOEXEC);
    if (fd < 0) fail_errno(errno, what_);
    fd_ = FileDescriptor(fd);
    unlink(path.c_str());
  }

  // Reserves space for `bytes` bytes and returns its offset.
  uint64_t reserve(uint64_t bytes) { return end_.fetch_add(bytes); }
  void write(uint64_t at, std::span<const std::byte> bytes) const { write_at(fd_, what_, at, bytes); }
  uint64_t append(std::string_view bytes) {
    const uint64_t at = reserve(bytes.size());
    write(at, as_bytes(bytes));
    return at;
  }

  void read_at(uint64_t offset, std::span<std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t count = pread(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) fail_errno(count < 0 ? errno : EIO, what_);
      bytes = bytes.subspan(static_cast<size_t>(count));
      offset += static_cast<uint64_t>(count);
    }
  }

 private:
  std::string what_;  // for error messages
  FileDescriptor fd_;
  std::atomic<uint64_t> end_ = 0;
};

class ParquetTable final : public Table {
 public:
  ParquetTable(const std::string& path, const std::string& id, const TableKind& kind, BadRows bad);

  std::string id(int64_t row) const override { return id_in_file(row_in_file(row)); }
  int64_t rows_in_file() const override { return metadata_->num_rows(); }
  using Table::read;
  void read(int64_t begin, int64_t end, float* numbers, std::string& buffer) const override;
  void read_lists(int64_t row, std::vector<float>& numbers, std::vector<int64_t>& lengths,
                  std::string& buffer) const override;

 private:
  // A row group. Once one of its rows was read, all are in the spool: for each row its floats, or the lengths
  // of its lists followed by their numbers.
  struct Group {
    int64_t begin = 0;  // number of its first row in the file
    int64_t end = 0;
    std::once_flag once = {};
    std::vector<uint64_t> places = {};  // in the spool: of each row, or of the first if all have one size
  };
  using Batches = std::function<void(int64_t first, const arrow::RecordBatch&)>;

  // Runs `body` and converts Arrow's exceptions about unreadable files to Errors.
  template <class Body>
  auto reading(Body&& body) const {
    try {
      return body();
    } catch (const parquet::ParquetException& error) {
      fail(ErrorKind::DataLoss, "{}: {}", path_, error.what());
    }
  }
  std::unique_ptr<parquet::arrow::FileReader> open() const;
  void read_schema(const std::string& id);
  void read_batches(const std::vector<int>& groups, const std::vector<int>& leaves, int64_t batch,
                    const Batches& visit) const;
  void read_ids(const std::vector<bool>& bad);
  [[noreturn]] void fail_twice(const IdIndex::Twice& rows) const override;
  std::vector<bool> rows_that_are_bad();
  int64_t row_in_file(int64_t row) const { return kept_.empty() ? row : kept_[static_cast<size_t>(row)]; }
  std::string id_in_file(int64_t row) const;
  const Group& spooled(int64_t row_in_file) const;
  void spool(Group& group, int number, const ReportProblem& wrong) const;
  void spool_dense(Group& group, int64_t first, const arrow::RecordBatch& batch,
                   const ReportProblem& wrong) const;
  void spool_lists(Group& group, int64_t first, const arrow::RecordBatch& batch,
                   const ReportProblem& wrong) const;
  [[noreturn]] void fail_at(int64_t row_in_file, const std::string& why) const;

  std::shared_ptr<parquet::FileMetaData> metadata_;
  std::vector<int> id_leaf_;          // index of the ID column, as Parquet counts
  std::vector<int> leaves_;           // indices of all other columns
  mutable std::deque<Group> groups_;  // in file order
  mutable Spool spool_;
  std::vector<uint64_t> ids_at_;  // positions in the spool: of each row of the file, and of the end
  std::vector<int64_t> kept_;     // rows of the file that are kept; empty: all
};

ParquetTable::ParquetTable(const std::string& path, const std::string& id, const TableKind& kind, BadRows bad)
    : Table(path, kind) {
  static_cast<void>(FileReader(path));  // throws the usual error
  metadata_ = reading([&] { return parquet::ParquetFileReader::OpenFile(path)->metadata(); });
  read_schema(id);
  int64_t end = 0;
  for (int i = 0; i < metadata_->num_row_groups(); ++i) {
    const int64_t rows = metadata_->RowGroup(i)->num_rows();
    if (rows < 0) fail(ErrorKind::DataLoss, "{}: a row group declares {} rows", path, rows);
    Group& group = groups_.emplace_back();
    group.begin = std::exchange(end, end + rows);
    group.end = end;
  }
  if (end != metadata_->num_rows())
    fail(ErrorKind::DataLoss, "{}: the row groups have {} rows, but the metadata declares {}", path, end,
         metadata_->num_rows());
  read_ids(bad == BadRows::Skip ? rows_that_are_bad() : std::vector<bool>());
  finish_ids(bad);
}

std::unique_ptr<parquet::arrow::FileReader> ParquetTable::open() const {
  parquet::ReaderProperties properties;
  properties.enable_buffered_stream();
  parquet::ArrowReaderProperties batches;
  batches.set_pre_buffer(false);  // would read a whole group of rows at once
  parquet::arrow::FileReaderBuilder builder;
  builder.properties(batches);
  PARQUET_THROW_NOT_OK(builder.OpenFile(path_, false, properties, metadata_));
  std::unique_ptr<parquet::arrow::FileReader> reader;
  PARQUET_THROW_NOT_OK(builder.Build(&reader));
  reader->set_use_threads(false);
  return reader;
}

void ParquetTable::read_schema(const std::string& id) {
  std::shared_ptr<arrow::Schema> schema;
  reading([&] { PARQUET_THROW_NOT_OK(open()->GetSchema(&schema)); });
  const parquet::SchemaDescriptor& leaves = *metadata_->schema();
  std::vector<std::string> names;
  for (const auto& field : schema->fields()) names.push_back(field->name());
  if (names.empty()) fail(ErrorKind::DataLoss, "{}: the table has no columns", path_);
  const auto id_at = static_cast<int>(set_columns(std::move(names), id, path_));
  for (int i = 0; i < schema->num_fields(); ++i) {
    const arrow::DataType& type = *schema->field(i)->type();
    if (i == id_at) {
      if (!can_be_id(type))
        fail(ErrorKind::DataLoss, "{}: the ID column '{}' has type {}; expected text or whole numbers{}",
             path_, id_column_, type.ToString(),
             id.empty() ? ". If another column contains the IDs, give its name" : "");
      continue;
    }
    const bool has_lists = is_list(type) && is_number(*type.field(0)->type());
    if (!is_number(type) && !(has_lists && !is_dense()))
      fail(ErrorKind::DataLoss, "{}: the column '{}' has type {}; expected numbers{}", path_,
           schema->field(i)->name(), type.ToString(), is_dense() ? "" : " or lists of numbers");
  }
  for (int leaf = 0; leaf < leaves.num_columns(); ++leaf) {
    const bool is_id = leaves.group_node()->FieldIndex(*leaves.GetColumnRoot(leaf)) == id_at;
    (is_id ? id_leaf_ : leaves_).push_back(leaf);
  }
}

// Calls `visit` for each batch with the number of its first row in the file. The groups must be consecutive.
void ParquetTable::read_batches(const std::vector<int>& groups, const std::vector<int>& leaves, int64_t batch,
                                const Batches& visit) const {
  if (groups.empty()) return;
  reading([&] {
    const auto file = open();
    file->set_batch_size(batch);
    PARQUET_ASSIGN_OR_THROW(auto batches, file->GetRecordBatchReader(groups, leaves));
    int64_t row = groups_[static_cast<size_t>(groups.front())].begin;
    const int64_t end = groups_[static_cast<size_t>(groups.back())].end;
    for (;;) {
      std::shared_ptr<arrow::RecordBatch> next;
      PARQUET_THROW_NOT_OK(batches->ReadNext(&next));
      if (next == nullptr) break;
      PARQUET_THROW_NOT_OK(next->ValidateFull());
      if (next->num_rows() > end - row)
        fail(ErrorKind::DataLoss, "{}: the file has more rows than its metadata declares", path_);
      visit(row, *next);
      row += next->num_rows();
    }
    if (row != end)
      fail(ErrorKind::DataLoss, "{}: the file has fewer rows than its metadata declares: it ends at row {}",
           path_, row);
  });
}

void ParquetTable::read_ids(const std::vector<bool>& bad) {
  std::vector<int> all(groups_.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
  constexpr int64_t kRows = 1 << 16;
  ids_at_.push_back(0);
  std::string texts;
  read_batches(all, id_leaf_, kRows, [&](int64_t first, const arrow::RecordBatch& batch) {
    texts.clear();
    std::vector<size_t> sizes;
    for (int64_t i = 0; i < batch.num_rows(); ++i) {
      const std::string id = text_of(*batch.column(0), i);
      const int64_t row = first + i;
      texts += id;
      sizes.push_back(id.size());
      if (!bad.empty() && bad[static_cast<size_t>(row)]) continue;
      const std::string problem = problem_of_id(id);
      if (problem.empty()) {
        ids_.add(id);
        if (!bad.empty()) kept_.push_back(row);
      } else if (bad.empty()) {
        fail(ErrorKind::DataLoss, "{}: row {}: {}", path_, row + 1, problem);
      } else {
        leave_out(fmt::format("{}: row {}: {}", path_, row + 1, problem));
      }
    }
    uint64_t at = spool_.append(texts);
    ids_at_.back() = at;
    for (const size_t size : sizes) ids_at_.push_back(at += size);
  });
  if (static_cast<int64_t>(kept_.size()) == rows_in_file()) kept_ = {};
}

void ParquetTable::fail_twice(const IdIndex::Twice& rows) const {
  fail(ErrorKind::DataLoss, "{}: row {}: the ID {} already occurs in row {}; IDs must be unique", path_,
       rows.second + 1, shown(id(rows.second)), rows.first + 1);
}

std::vector<bool> ParquetTable::rows_that_are_bad() {
  std::vector<bool> bad(static_cast<size_t>(rows_in_file()));
  for (size_t i = 0; i < groups_.size(); ++i) {
    Group& group = groups_[i];
    std::call_once(group.once, [&] {
      spool(group, static_cast<int>(i), [&](int64_t row, const std::string& why) {
        if (bad[static_cast<size_t>(row)]) return;
        bad[static_cast<size_t>(row)] = true;
        leave_out(fmt::format("{}: row {}: {}", path_, row + 1, why));
      });
    });
  }
  return bad;
}

void ParquetTable::fail_at(int64_t row_in_file, const std::string& why) const {
  fail(ErrorKind::DataLoss, "{}: row {} (ID {}): {}", path_, row_in_file + 1, shown(id_in_file(row_in_file)),
       why);
}

std::string ParquetTable::id_in_file(int64_t row) const {
  const auto place = static_cast<size_t>(row);
  std::string id(ids_at_[place + 1] - ids_at_[place], '\0');
  spool_.read_at(ids_at_[place], std::as_writable_bytes(std::span(id)));
  return id;
}

const ParquetTable::Group& ParquetTable::spooled(int64_t row_in_file) const {
  const auto group = std::prev(std::upper_bound(groups_.begin(), groups_.end(), row_in_file,
                                                [](int64_t row, const Group& g) { return row < g.begin; }));
  std::call_once(group->once, [&] {
    spool(*group, static_cast<int>(group - groups_.begin()),
          [this](int64_t row, const std::string& why) { fail_at(row, why); });
  });
  return *group;
}

void ParquetTable::spool(Group& group, int number, const ReportProblem& wrong) const {
  group.places.clear();
  const int64_t rows = group.end - group.begin;
  if (columns_.empty() || rows == 0) return;
  const auto floats = static_cast<int64_t>(columns_.size() * sizeof(float));
  // Reserves one contiguous piece, even if other threads write other groups to the spool meanwhile.
  if (is_dense()) group.places.push_back(spool_.reserve(static_cast<uint64_t>(rows * floats)));
  const int64_t row_bytes = std::max(floats, metadata_->RowGroup(number)->total_byte_size() / rows);
  const int64_t batch = std::max<int64_t>(1, kBatchBytes / row_bytes);
  read_batches({number}, leaves_, batch, [&](int64_t first, const arrow::RecordBatch& batch) {
    if (is_dense()) {
      spool_dense(group, first, batch, wrong);
    } else {
      spool_lists(group, first, batch, wrong);
    }
  });
}

void ParquetTable::spool_dense(Group& group, int64_t first, const arrow::RecordBatch& batch,
                               const ReportProblem& wrong) const {
  const auto columns = columns_.size();
  Floats all(static_cast<size_t>(batch.num_rows()) * columns);
  Floats column;
  for (size_t c = 0; c < columns; ++c) {
    column.clear();
    append_floats(*batch.column(static_cast<int>(c)), column, [&](int64_t i, const std::string& why) {
      wrong(first + i, fmt::format("column '{}': {}", columns_[c], why));
    });
    for (size_t row = 0; row < column.size(); ++row) all[row * columns + c] = column[row];
  }
  const uint64_t row_bytes = columns * sizeof(float);
  spool_.write(group.places[0] + static_cast<uint64_t>(first - group.begin) * row_bytes,
               std::as_bytes(std::span(all)));
}

void ParquetTable::spool_lists(Group& group, int64_t first, const arrow::RecordBatch& batch,
                               const ReportProblem& wrong) const {
  std::vector<ListColumn> columns;
  for (size_t c = 0; c < columns_.size(); ++c) {
    columns.emplace_back(*batch.column(static_cast<int>(c)), [&](int64_t i, const std::string& why) {
      wrong(first + i, fmt::format("column '{}': {}", columns_[c], why));
    });
  }
  std::string bytes;
  std::vector<uint64_t> begins;
  Floats numbers;
  for (int64_t row = 0; row < batch.num_rows(); ++row) {
    numbers.clear();
    begins.push_back(bytes.size());
    for (size_t c = 0; c < columns_.size(); ++c) {
      const auto before = static_cast<ptrdiff_t>(numbers.size());
      for (const float number : columns[c][row]) {
        // A missing value is not an index.
        if (kind_.form == TableKind::Form::Indices && std::isnan(number)) continue;
        numbers.push_back(number);
      }
      const int64_t length = static_cast<ptrdiff_t>(numbers.size()) - before;
      try {
        require_list(numbers.data() + before, length);
      } catch (const Error& error) {
        wrong(first + row, fmt::format("column '{}': {}", columns_[c], error.what()));
      }
      bytes.append(reinterpret_cast<const char*>(&length), sizeof length);
    }
    bytes.append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float));
  }
  const uint64_t at = spool_.append(bytes);
  for (const uint64_t begin : begins) group.places.push_back(at + begin);
}

void ParquetTable::read(int64_t begin, int64_t end, float* numbers, std::string&) const {
  const size_t columns = columns_.size();
  if (columns == 0) return;
  for (int64_t row = begin; row < end;) {
    const int64_t from = row_in_file(row);
    const Group& group = spooled(from);
    int64_t count = 1;
    while (row + count < end && from + count < group.end && row_in_file(row + count) == from + count) ++count;
    const std::span to(numbers, static_cast<size_t>(count) * columns);
    const uint64_t before = static_cast<uint64_t>(from - group.begin) * columns * sizeof(float);
    spool_.read_at(group.places[0] + before, std::as_writable_bytes(to));
    numbers += to.size();
    row += count;
  }
}

void ParquetTable::read_lists(int64_t row, std::vector<float>& numbers, std::vector<int64_t>& lengths,
                              std::string&) const {
  const int64_t from = row_in_file(row);
  const Group& group = spooled(from);
  lengths.resize(columns_.size());
  numbers.clear();
  if (columns_.empty()) return;
  const uint64_t at = group.places[static_cast<size_t>(from - group.begin)];
  spool_.read_at(at, std::as_writable_bytes(std::span(lengths)));
  numbers.resize(static_cast<size_t>(std::accumulate(lengths.begin(), lengths.end(), int64_t{0})));
  spool_.read_at(at + lengths.size() * sizeof(int64_t), std::as_writable_bytes(std::span(numbers)));
}

}  // namespace

std::unique_ptr<Table> open_parquet(const std::string& path, const std::string& id, const TableKind& kind,
                                    BadRows bad) {
  try {
    return std::make_unique<ParquetTable>(path, id, kind, bad);
  } catch (const std::bad_alloc&) {
    fail(ErrorKind::Overloaded, "{}: not enough memory for the IDs of the table", path);
  }
}

}  // namespace tutti::data

#include <algorithm>
#include <arrow/record_batch.h>
#include <arrow/type.h>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <functional>
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
#include "tutti/data/tables/cell_values.h"
#include "tutti/data/tables/once.h"
#include "tutti/data/tables/table.h"

namespace tutti::data {
namespace {

constexpr int64_t kBatchBytes = int64_t{4} << 20;  // bytes that are unpacked at once (at least one row)

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
  ParquetTable(const std::string& path, const TextFormat& format, const std::vector<TableView>& views,
               BadRows bad, const OnBytes& on_bytes = {});

  std::string id(int64_t row) const override { return id_in_file(row_in_file(row)); }
  std::string place_of(int64_t row) const override {
    return fmt::format("{}, row {}", path_, row_in_file(row) + 1);
  }
  int64_t rows_in_file() const override { return metadata_->num_rows(); }
  void read(int64_t begin, int64_t end, std::span<CellBuffer> to, std::string& scratch) const override;
  void each_text_of_all(const VisitText& visit) const;

 private:
  // A row group. Once one of its rows was read, all are in the spool. A row consists of a fixed part, with
  // the cells of dense views and the lengths of lists, and of the values of all its lists.
  struct Group {
    int64_t begin = 0;  // number of its first row in the file
    int64_t end = 0;
    Once spooling = {};
    std::vector<uint64_t> places = {};  // in the spool: of each row, or of the first if no view has lists
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
  void read_schema();
  void require_types(const arrow::Schema& schema) const;
  void lay_out_rows();
  std::vector<int> all_groups() const;
  void read_batches(const std::vector<int>& groups, const std::vector<int>& leaves, int64_t batch,
                    const Batches& visit) const;
  void add_rows(const std::vector<bool>& bad);
  void read_ids(const std::vector<bool>& bad, const OnBytes& on_bytes);
  [[noreturn]] void fail_twice(const IdIndex::Twice& rows) const override;
  std::vector<bool> rows_that_are_bad();
  int64_t bytes_before(int64_t row_in_file) const {
    const double share = static_cast<double>(row_in_file) / static_cast<double>(rows_in_file());
    return static_cast<int64_t>(share * static_cast<double>(bytes_));
  }
  std::string id_in_file(int64_t row) const;
  const Group& spooled(int64_t row_in_file) const;
  void spool(Group& group, int number, const ReportProblem& wrong) const;
  void spool_batch(Group& group, int64_t first, const arrow::RecordBatch& batch,
                   const ReportProblem& wrong) const;
  template <class Value>
  void append_dense(size_t view, const arrow::RecordBatch& batch, std::string& fixed,
                    const ReportProblem& wrong) const;
  template <class Value>
  void append_lists(size_t view, const arrow::RecordBatch& batch, std::string& fixed,
                    std::vector<std::string>& values, const ReportProblem& wrong) const;
  ReportProblem in_column(size_t column, const ReportProblem& wrong) const;
  void copy_fixed(const std::byte* row, std::span<CellBuffer> to) const;
  void read_lists(uint64_t at, std::span<CellBuffer> to, std::string& scratch) const;
  [[noreturn]] void fail_at(int64_t row_in_file, const std::string& why) const;

  const TextFormat format_;
  const uint64_t bytes_;  // of the file
  std::shared_ptr<parquet::FileMetaData> metadata_;
  std::vector<int> id_leaf_;  // index of the ID column, as Parquet counts
  std::vector<int> leaves_;   // indices of the columns of all views
  bool has_lists_ = false;
  size_t fixed_bytes_ = 0;            // of a row
  std::vector<size_t> views_at_;      // of each view, its position in the fixed part
  mutable std::deque<Group> groups_;  // in file order
  mutable Spool spool_;
  std::vector<uint64_t> ids_at_;  // positions in the spool: of each row of the file, and of the end
};

ParquetTable::ParquetTable(const std::string& path, const TextFormat& format,
                           const std::vector<TableView>& views, BadRows bad, const OnBytes& on_bytes)
    : Table(path, views), format_(format), bytes_(FileReader(path).size()) {
  metadata_ = reading([&] { return parquet::ParquetFileReader::OpenFile(path)->metadata(); });
  read_schema();
  lay_out_rows();
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
  const std::vector<bool> bad_rows = bad == BadRows::Skip ? rows_that_are_bad() : std::vector<bool>();
  if (has_ids()) {
    read_ids(bad_rows, on_bytes);
  } else {
    add_rows(bad_rows);
    if (on_bytes) on_bytes(static_cast<int64_t>(bytes_));
  }
  finish_rows(bad);
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

void ParquetTable::read_schema() {
  std::shared_ptr<arrow::Schema> schema;
  reading([&] { PARQUET_THROW_NOT_OK(open()->GetSchema(&schema)); });
  std::vector<std::string> names;
  for (const auto& field : schema->fields()) names.push_back(field->name());
  if (names.empty()) fail(ErrorKind::DataLoss, "{}: the table has no columns", path_);
  set_columns(std::move(names), format_, path_);
  require_types(*schema);
  std::vector<bool> is_used(names_.size());
  for (const auto& columns : view_columns_) {
    for (const size_t column : columns) is_used[column] = true;
  }
  const parquet::SchemaDescriptor& leaves = *metadata_->schema();
  for (int leaf = 0; leaf < leaves.num_columns(); ++leaf) {
    const auto column = static_cast<size_t>(leaves.group_node()->FieldIndex(*leaves.GetColumnRoot(leaf)));
    if (has_ids() && column == id_at_) id_leaf_.push_back(leaf);
    if (is_used.at(column)) leaves_.push_back(leaf);
  }
}

void ParquetTable::require_types(const arrow::Schema& schema) const {
  const auto type_of = [&](size_t column) -> const arrow::DataType& {
    return *schema.field(static_cast<int>(column))->type();
  };
  if (has_ids() && !can_be_id(type_of(id_at_)))
    fail(ErrorKind::DataLoss, "{}: the ID column '{}' has type {}; expected text or whole numbers{}", path_,
         id_column(), type_of(id_at_).ToString(),
         format_.id.empty() ? ". If another column contains the IDs, give its name" : "");
  for (size_t view = 0; view < views_.size(); ++view) {
    for (const size_t column : view_columns_[view]) {
      const std::string expected = expected_instead(type_of(column), views_[view].kind);
      if (!expected.empty())
        fail(ErrorKind::DataLoss, "{}: the column '{}' has type {}; expected {}", path_, names_[column],
             type_of(column).ToString(), expected);
    }
  }
}

void ParquetTable::lay_out_rows() {
  for (const CellBuffer& buffer : buffers(0)) {
    views_at_.push_back(fixed_bytes_);
    const bool is_dense = buffer.kind().is_dense();
    has_lists_ = has_lists_ || !is_dense;
    fixed_bytes_ += is_dense ? buffer.row_bytes() : buffer.columns() * sizeof(int64_t);
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

std::vector<int> ParquetTable::all_groups() const {
  std::vector<int> all(groups_.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// For a file without IDs.
void ParquetTable::add_rows(const std::vector<bool>& bad) {
  for (int64_t row = 0; row < rows_in_file(); ++row) {
    if (!bad.empty() && bad[static_cast<size_t>(row)])
      skip_row();
    else
      add_row();
  }
}

void ParquetTable::read_ids(const std::vector<bool>& bad, const OnBytes& on_bytes) {
  constexpr int64_t kRows = 1 << 16;
  ids_at_.push_back(0);
  std::string texts;
  std::string scratch;
  read_batches(all_groups(), id_leaf_, kRows, [&](int64_t first, const arrow::RecordBatch& batch) {
    texts.clear();
    std::vector<size_t> sizes;
    for (int64_t i = 0; i < batch.num_rows(); ++i) {
      const std::string_view id = text_of(*batch.column(0), i, scratch);
      const int64_t row = first + i;
      texts += id;
      sizes.push_back(id.size());
      if (!bad.empty() && bad[static_cast<size_t>(row)]) {
        skip_row();
        continue;
      }
      const std::string problem = problem_of_id(id);
      if (problem.empty()) {
        add_row(id);
      } else if (bad.empty()) {
        fail(ErrorKind::DataLoss, "{}: row {}: {}", path_, row + 1, problem);
      } else {
        leave_out(fmt::format("{}: row {}: {}", path_, row + 1, problem));
        skip_row();
      }
    }
    uint64_t at = spool_.append(texts);
    ids_at_.back() = at;
    for (const size_t size : sizes) ids_at_.push_back(at += size);
    // The bytes of whole rows, of which only the IDs are read.
    if (on_bytes) on_bytes(bytes_before(first + batch.num_rows()) - bytes_before(first));
  });
}

void ParquetTable::fail_twice(const IdIndex::Twice& rows) const {
  fail(ErrorKind::DataLoss, "{}: row {}: the ID {} already occurs in row {}; IDs must be unique", path_,
       rows.second + 1, shown(id(rows.second)), rows.first + 1);
}

std::vector<bool> ParquetTable::rows_that_are_bad() {
  std::vector<bool> bad(static_cast<size_t>(rows_in_file()));
  for (size_t i = 0; i < groups_.size(); ++i) {
    Group& group = groups_[i];
    group.spooling([&] {
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
  const std::string id = has_ids() ? fmt::format(" (ID {})", shown(id_in_file(row_in_file))) : "";
  fail(ErrorKind::DataLoss, "{}: row {}{}: {}", path_, row_in_file + 1, id, why);
}

std::string ParquetTable::id_in_file(int64_t row) const {
  if (!has_ids()) return std::to_string(row);
  const auto place = static_cast<size_t>(row);
  std::string id(ids_at_[place + 1] - ids_at_[place], '\0');
  spool_.read_at(ids_at_[place], std::as_writable_bytes(std::span(id)));
  return id;
}

const ParquetTable::Group& ParquetTable::spooled(int64_t row_in_file) const {
  const auto group = std::prev(std::upper_bound(groups_.begin(), groups_.end(), row_in_file,
                                                [](int64_t row, const Group& g) { return row < g.begin; }));
  group->spooling([&] {
    spool(*group, static_cast<int>(group - groups_.begin()),
          [this](int64_t row, const std::string& why) { fail_at(row, why); });
  });
  return *group;
}

void ParquetTable::spool(Group& group, int number, const ReportProblem& wrong) const {
  group.places.clear();
  const int64_t rows = group.end - group.begin;
  if (fixed_bytes_ == 0 || rows == 0) return;
  const auto fixed = static_cast<int64_t>(fixed_bytes_);
  // Reserves one contiguous piece, even if other threads write other groups to the spool meanwhile.
  if (!has_lists_) group.places.push_back(spool_.reserve(static_cast<uint64_t>(rows * fixed)));
  const int64_t row_bytes = std::max(fixed, metadata_->RowGroup(number)->total_byte_size() / rows);
  const int64_t batch = std::max<int64_t>(1, kBatchBytes / row_bytes);
  read_batches({number}, leaves_, batch, [&](int64_t first, const arrow::RecordBatch& batch) {
    spool_batch(group, first, batch, [&](int64_t i, const std::string& why) { wrong(first + i, why); });
  });
}

void ParquetTable::spool_batch(Group& group, int64_t first, const arrow::RecordBatch& batch,
                               const ReportProblem& wrong) const {
  const auto rows = static_cast<size_t>(batch.num_rows());
  std::string fixed(rows * fixed_bytes_, '\0');
  std::vector<std::string> values(has_lists_ ? rows : 0);
  for (size_t view = 0; view < views_.size(); ++view) {
    with_type_of(views_[view].kind.cells, [&](auto zero) {
      using Value = decltype(zero);
      if (views_[view].kind.is_dense())
        append_dense<Value>(view, batch, fixed, wrong);
      else
        append_lists<Value>(view, batch, fixed, values, wrong);
    });
  }
  if (!has_lists_) {
    const uint64_t before = static_cast<uint64_t>(first - group.begin) * fixed_bytes_;
    return spool_.write(group.places[0] + before, as_bytes(fixed));
  }
  std::string bytes;
  std::vector<uint64_t> begins;
  for (size_t row = 0; row < rows; ++row) {
    begins.push_back(bytes.size());
    bytes.append(fixed, row * fixed_bytes_, fixed_bytes_);
    bytes += values[row];
  }
  const uint64_t at = spool_.append(bytes);
  for (const uint64_t begin : begins) group.places.push_back(at + begin);
}

ReportProblem ParquetTable::in_column(size_t column, const ReportProblem& wrong) const {
  return [this, column, &wrong](int64_t row, const std::string& why) {
    wrong(row, fmt::format("column '{}': {}", names_[column], why));
  };
}

template <class Value>
void ParquetTable::append_dense(size_t view, const arrow::RecordBatch& batch, std::string& fixed,
                                const ReportProblem& wrong) const {
  std::vector<Value> values;
  char* to = fixed.data() + views_at_[view];
  for (const size_t column : view_columns_[view]) {
    values.clear();
    append_values(*batch.GetColumnByName(names_[column]), views_[view].kind.cells, format_, values,
                  in_column(column, wrong));
    for (size_t row = 0; row < values.size(); ++row)
      std::memcpy(to + row * fixed_bytes_, &values[row], sizeof(Value));
    to += sizeof(Value);
  }
}

template <class Value>
void ParquetTable::append_lists(size_t view, const arrow::RecordBatch& batch, std::string& fixed,
                                std::vector<std::string>& values, const ReportProblem& wrong) const {
  const TableKind& kind = views_[view].kind;
  char* to = fixed.data() + views_at_[view];
  for (const size_t column : view_columns_[view]) {
    const ReportProblem report = in_column(column, wrong);
    const ListColumn<Value> lists(*batch.GetColumnByName(names_[column]), kind, format_, report);
    for (size_t row = 0; row < values.size(); ++row) {
      const std::span<const Value> list = lists[static_cast<int64_t>(row)];
      try {
        require_list(kind, list);
      } catch (const Error& error) {
        report(static_cast<int64_t>(row), error.what());
      }
      const auto length = static_cast<int64_t>(list.size());
      std::memcpy(to + row * fixed_bytes_, &length, sizeof length);
      values[row].append(reinterpret_cast<const char*>(list.data()), list.size_bytes());
    }
    to += sizeof(int64_t);
  }
}

void ParquetTable::read(int64_t begin, int64_t end, std::span<CellBuffer> to, std::string& scratch) const {
  if (fixed_bytes_ == 0) {
    for (CellBuffer& buffer : to) buffer.end_rows(end - begin);
    return;
  }
  for (int64_t row = begin; row < end;) {
    const int64_t from = row_in_file(row);
    const Group& group = spooled(from);
    if (has_lists_) {
      read_lists(group.places[static_cast<size_t>(from - group.begin)], to, scratch);
      ++row;
      continue;
    }
    int64_t count = 1;
    while (row + count < end && from + count < group.end && row_in_file(row + count) == from + count) ++count;
    row += count;
    const uint64_t at = group.places[0] + static_cast<uint64_t>(from - group.begin) * fixed_bytes_;
    const size_t bytes = static_cast<size_t>(count) * fixed_bytes_;
    if (to.size() == 1) {
      spool_.read_at(at, {to[0].row<std::byte>(), bytes});
      to[0].end_rows(count);
      continue;
    }
    scratch.resize(bytes);
    spool_.read_at(at, std::as_writable_bytes(std::span(scratch)));
    for (size_t offset = 0; offset < bytes; offset += fixed_bytes_) {
      copy_fixed(as_bytes(scratch).data() + offset, to);
      for (CellBuffer& buffer : to) buffer.end_rows();
    }
  }
}

// Copies the cells of dense views.
void ParquetTable::copy_fixed(const std::byte* row, std::span<CellBuffer> to) const {
  for (size_t view = 0; view < to.size(); ++view) {
    if (to[view].kind().is_dense())
      std::copy_n(row + views_at_[view], to[view].row_bytes(), to[view].row<std::byte>());
  }
}

// Reads a row of views some of which have lists.
void ParquetTable::read_lists(uint64_t at, std::span<CellBuffer> to, std::string& scratch) const {
  scratch.resize(fixed_bytes_);
  spool_.read_at(at, std::as_writable_bytes(std::span(scratch)));
  at += fixed_bytes_;
  copy_fixed(as_bytes(scratch).data(), to);
  for (size_t view = 0; view < to.size(); ++view) {
    CellBuffer& buffer = to[view];
    if (!buffer.kind().is_dense()) {
      std::vector<int64_t> lengths(buffer.columns());
      std::memcpy(lengths.data(), scratch.data() + views_at_[view], lengths.size() * sizeof(int64_t));
      with_type_of(buffer.kind().cells, [&](auto zero) {
        auto& values = buffer.values<decltype(zero)>();
        size_t begin = values.size();
        values.resize(begin +
                      static_cast<size_t>(std::accumulate(lengths.begin(), lengths.end(), int64_t{0})));
        const auto bytes = std::as_writable_bytes(std::span(values).subspan(begin));
        spool_.read_at(at, bytes);
        at += bytes.size();
        for (size_t column = 0; column < lengths.size(); ++column) {
          buffer.add_list(column, begin, lengths[column]);
          begin += static_cast<size_t>(lengths[column]);
        }
      });
    }
    buffer.end_rows();
  }
}

void ParquetTable::each_text_of_all(const VisitText& visit) const {
  constexpr int64_t kRows = 1 << 12;
  std::vector<int> leaves(static_cast<size_t>(metadata_->num_columns()));
  std::iota(leaves.begin(), leaves.end(), 0);
  read_batches(all_groups(), leaves, kRows, [&](int64_t, const arrow::RecordBatch& batch) {
    for (int column = 0; column < batch.num_columns(); ++column)
      each_text(*batch.column(column),
                [&](std::string_view text) { visit(static_cast<size_t>(column), text); });
  });
}

}  // namespace

std::unique_ptr<Table> open_parquet(const std::string& path, const TextFormat& format,
                                    const std::vector<TableView>& views, BadRows bad,
                                    const OnBytes& on_bytes) {
  try {
    return std::make_unique<ParquetTable>(path, format, views, bad, on_bytes);
  } catch (const std::bad_alloc&) {
    fail(ErrorKind::Overloaded, "{}: not enough memory for the IDs of the table", path);
  }
}

void each_parquet_text(const std::string& path, const VisitText& visit) {
  TextFormat format;
  format.ids = Ids::RowNumbers;
  ParquetTable(path, format, {}, BadRows::Error).each_text_of_all(visit);
}

}  // namespace tutti::data

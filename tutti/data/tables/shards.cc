#include "tutti/data/tables/shards.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/data/tables/text_table.h"

namespace tutti::data {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Removes a number from the front of the text and returns it without leading zeros.
std::string_view take_number(std::string_view& text) {
  size_t end = 0;
  while (end < text.size() && is_digit(text[end])) ++end;
  std::string_view number = text.substr(0, end);
  text.remove_prefix(end);
  while (number.size() > 1 && number.front() == '0') number.remove_prefix(1);
  return number;
}

// Compares names; digits in them are compared as numbers.
bool comes_before(std::string_view a, std::string_view b) {
  const std::string_view whole_a = a;
  const std::string_view whole_b = b;
  while (!a.empty() && !b.empty()) {
    if (is_digit(a.front()) && is_digit(b.front())) {
      const std::string_view x = take_number(a);
      const std::string_view y = take_number(b);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
    } else {
      if (a.front() != b.front()) return a.front() < b.front();
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  if (a.empty() != b.empty()) return a.empty();
  return whole_a < whole_b;
}

}  // namespace

std::vector<std::string> shards_in(const std::string& root) {
  if (root.empty())
    fail(ErrorKind::InvalidArgument,
         "no folder of shards was given; if it comes from --data, --data is empty");
  std::error_code error;
  std::vector<std::string> names;
  for (auto entry = std::filesystem::directory_iterator(root, error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::error_code ignored;
    if (!name.starts_with('.') && entry->is_directory(ignored)) names.push_back(name);
  }
  if (error) fail(ErrorKind::InvalidArgument, "{}: {}; expected a folder of shards", root, error.message());
  if (names.empty())
    fail(ErrorKind::InvalidArgument,
         "{}: it contains no folders; expected a folder for each shard, as `tutti shard` makes them", root);
  std::sort(names.begin(), names.end(), comes_before);
  for (std::string& name : names) name = (std::filesystem::path(root) / name).string();
  return names;
}

std::string path_in(const std::string& shard, const std::string& name, const TableFile& table) {
  std::string path = (std::filesystem::path(shard) / table.file).string();
  if (!path_exists(path))
    fail(ErrorKind::InvalidArgument, "{}: there is no file {}, which contains the schema's table '{}'", shard,
         table.file, name);
  return path;
}

int64_t bytes_in(const std::vector<std::string>& shards, const Schema& schema) {
  uintmax_t bytes = 0;
  for (const std::string& shard : shards) {
    for (const std::vector<size_t>& tables : schema.files()) {
      const auto& [name, table] = schema.tables()[tables.front()];
      std::error_code ignored;
      const uintmax_t size = std::filesystem::file_size(path_in(shard, name, table), ignored);
      if (!ignored) bytes += size;
    }
  }
  return static_cast<int64_t>(bytes);
}

namespace {

namespace fs = std::filesystem;
using Tables = std::vector<std::unique_ptr<TextTable>>;

constexpr int64_t kRowsBetweenReports = 4096;

std::string name_of(const TableFile& table) { return fs::path(table.file).filename().string(); }

void require_different_names(const std::vector<TableFile>& tables) {
  for (size_t i = 0; i < tables.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (name_of(tables[i]) == name_of(tables[j]))
        fail(ErrorKind::InvalidArgument,
             "{} and {} would become the same file in a shard: rename one of them", tables[j].file,
             tables[i].file);
    }
  }
}

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

void require_nothing_in(const std::string& out) {
  std::error_code error;
  if (!fs::exists(out, error)) return;
  if (!fs::is_directory(out, error) || !fs::is_empty(out, error))
    fail(ErrorKind::InvalidArgument, "{} exists already; the output must be a new or an empty folder", out);
}

// Returns for each row of the first table the number of its shard. Shards consist of consecutive rows and
// have nearly the same weight.
std::vector<int64_t> cut(const std::vector<uint64_t>& weights, int64_t shards) {
  const uint64_t whole = std::accumulate(weights.begin(), weights.end(), uint64_t{0});
  const auto rows = static_cast<int64_t>(weights.size());
  std::vector<int64_t> shard_of(weights.size());
  uint64_t before = 0;
  int64_t shard = 0;
  int64_t in_shard = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const auto due =
        static_cast<int64_t>(static_cast<unsigned __int128>(before) * static_cast<uint64_t>(shards) / whole);
    // Every shard gets at least one row, and must leave one for each shard that follows.
    const bool is_last_for_others = rows - row <= shards - 1 - shard;
    if (in_shard > 0 && shard + 1 < shards && (due > shard || is_last_for_others)) {
      ++shard;
      in_shard = 0;
    }
    shard_of[static_cast<size_t>(row)] = shard;
    before += weights[static_cast<size_t>(row)];
    ++in_shard;
  }
  return shard_of;
}

// Writes a file row by row.
class RowWriter {
 public:
  explicit RowWriter(const std::string& path) : writer_(path) {}
  void write(std::string_view row) {
    constexpr size_t kEnough = 1 << 16;
    buffer_.append(row);
    buffer_ += '\n';
    if (buffer_.size() >= kEnough) flush();
  }
  // Returns the number of bytes written.
  uint64_t finish() {
    flush();
    writer_.finish();
    return writer_.bytes();
  }

 private:
  void flush() {
    writer_.write(buffer_);
    buffer_.clear();
  }
  FileWriter writer_;
  std::string buffer_;
};

// The output folder, which has a temporary name while it is written, so that an incomplete one is never used.
class Unfinished {
 public:
  explicit Unfinished(const std::string& out) : out_(out), path_(out + ".unfinished") {
    fs::remove_all(path_);
  }
  ~Unfinished() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;

  std::string folder(const std::string& shard) const { return (fs::path(path_) / shard).string(); }
  void finish() const { rename_path(path_, out_); }

 private:
  const std::string out_;
  const std::string path_;
};

Tables opened(const std::vector<TableFile>& files, const OnProgress& on_progress) {
  uint64_t bytes = 0;
  for (const TableFile& file : files) bytes += FileReader(file.file).size();
  const OnBytes on_bytes = counted(on_progress, static_cast<int64_t>(bytes));
  Tables tables;
  for (const TableFile& file : files)
    tables.push_back(std::make_unique<TextTable>(file.file, file.format, std::vector<TableView>(),
                                                 BadRows::Error, on_bytes));
  return tables;
}

}  // namespace

std::vector<CutShard> shard_tables(const std::vector<TableFile>& files, const std::string& folder,
                                   const ShardOptions& options) {
  const std::string out = without_slash(folder);
  if (files.empty()) fail(ErrorKind::InvalidArgument, "there are no tables to split");
  require_different_names(files);
  require_nothing_in(out);
  for (const TableFile& file : files) {
    if (is_parquet(file.file))
      fail(ErrorKind::InvalidArgument,
           "{}: only text tables can be split. Shards may contain Parquet if the program that writes it "
           "writes one file for each shard",
           file.file);
  }
  const Tables tables = opened(files, options.reading);
  const TextTable& first = *tables[0];
  if (options.shards < 1 || options.shards > first.size())
    fail(ErrorKind::InvalidArgument, "{} has {} rows, which cannot be split into {} shards", first.path(),
         first.size(), options.shards);

  std::vector<std::vector<int64_t>> in_first(tables.size());
  for (size_t i = 1; i < tables.size(); ++i) in_first[i] = matching_rows(*tables[i], first);
  const auto row_in_first = [&](size_t table, int64_t row) {
    return table == 0 ? row : in_first[table][static_cast<size_t>(row)];
  };
  std::string buffer;
  std::vector<uint64_t> weights(static_cast<size_t>(first.size()), 1);
  if (options.by == ShardOptions::By::Bytes) {
    for (size_t i = 0; i < tables.size(); ++i) {
      for (int64_t row = 0; row < tables[i]->size(); ++row)
        weights[static_cast<size_t>(row_in_first(i, row))] += tables[i]->text(row, buffer).size();
    }
  }
  const std::vector<int64_t> shard_of = cut(weights, options.shards);

  const Unfinished unfinished(out);
  std::vector<CutShard> shards;
  for (int64_t shard = 0; shard < options.shards; ++shard) {
    const std::string name = fmt::format("shard{}", shard);
    shards.push_back({.folder = (fs::path(out) / name).string()});
    make_directories(unfinished.folder(name));
  }
  for (const int64_t shard : shard_of) ++shards[static_cast<size_t>(shard)].rows;
  int64_t written = 0;
  int64_t all = 0;
  for (const auto& table : tables) all += table->size();
  for (size_t i = 0; i < tables.size(); ++i) {
    std::vector<std::unique_ptr<RowWriter>> writers;
    for (int64_t shard = 0; shard < options.shards; ++shard) {
      const fs::path folder = unfinished.folder(fmt::format("shard{}", shard));
      writers.push_back(std::make_unique<RowWriter>((folder / name_of(files[i])).string()));
      if (files[i].format.header) writers.back()->write(tables[i]->header(buffer));
    }
    for (int64_t row = 0; row < tables[i]->size(); ++row) {
      const int64_t shard = shard_of[static_cast<size_t>(row_in_first(i, row))];
      writers[static_cast<size_t>(shard)]->write(tables[i]->text(row, buffer));
      if (++written % kRowsBetweenReports == 0 && options.writing) options.writing(written, all);
    }
    for (size_t shard = 0; shard < shards.size(); ++shard) shards[shard].bytes += writers[shard]->finish();
  }
  unfinished.finish();
  return shards;
}

}  // namespace tutti::data

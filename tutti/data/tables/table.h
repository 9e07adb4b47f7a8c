#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/tables/id_index.h"
#include "tutti/data/tables/table_kind.h"
#include "tutti/data/tables/text_format.h"

namespace tutti::data {

// A file as a table of numbers: a row an example, found by its ID. When it is opened its IDs are looked
// through, its numbers are read when they are asked for. Thread-safe once opened.
//
// What is wrong is a DataLoss that names file, row, column and ID, and says what was expected. Or rows that
// are wrong are left out: then all of them are read when it is opened.
class Table {
 public:
  virtual ~Table() = default;
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  const std::string& path() const { return path_; }
  const std::string& id_column() const { return id_column_; }
  // Without that of the IDs.
  const std::vector<std::string>& columns() const { return columns_; }
  int64_t size() const { return ids_.size(); }
  bool is_dense() const { return kind_.form == TableKind::Form::Dense; }

  virtual std::string id(int64_t row) const = 0;
  // Which row has which.
  const IdIndex& ids() const { return ids_; }

  // Rows that were left out, and what was wrong with one of them.
  struct LeftOut {
    int64_t rows = 0;
    std::string why = {};
  };
  const LeftOut& left_out() const { return left_out_; }
  // All that it was made of.
  virtual int64_t rows_in_file() const = 0;

  // The numbers of neighbours, one row behind the other, each as many as columns; those that are missing are
  // NaN. `buffer` is for one thread to use again.
  virtual void read(int64_t begin, int64_t end, float* numbers, std::string& buffer) const = 0;
  void read(int64_t row, float* numbers, std::string& buffer) const { read(row, row + 1, numbers, buffer); }
  // A row's lists, one behind the other, and how long each is.
  virtual void read_lists(int64_t row, std::vector<float>& numbers, std::vector<int64_t>& lengths,
                          std::string& buffer) const = 0;

 protected:
  Table(std::string path, const TableKind& kind) : path_(std::move(path)), kind_(kind) {}
  void leave_out(const std::string& why) {
    if (left_out_.rows++ == 0) left_out_.why = why;
  }
  // One of a row's lists, as the kind wants it to be: else an InvalidArgument says what it is not.
  void require_list(const float* numbers, int64_t length) const;

  const std::string path_;
  const TableKind kind_;
  std::string id_column_;
  std::vector<std::string> columns_;
  IdIndex ids_;
  LeftOut left_out_;
};

bool is_parquet(std::string_view path);

// As its name ends: .parquet (parquet_table.h), else text (text_table.h), written in that format.
std::unique_ptr<Table> open_table(const std::string& path, const TextFormat& format,
                                  const TableKind& kind = {}, BadRows bad = BadRows::Error);

// An ID or a cell, as much of it as fits into a line.
std::string shown(std::string_view text);

}  // namespace tutti::data

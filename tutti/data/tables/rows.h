#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/file.h"
#include "tutti/base/progress.h"

namespace tutti::data {

// The positions of the rows of a text file, which are found in one pass and then used to read rows by number.
// Stores the position of every n-th row, with n large enough that this takes at most 32 MiB for any file.
// Thread-safe after construction.
//
// A row ends at the end of its line, unless that is inside quotes. Empty lines at the end of the file are not
// rows. A row that never ends, or contains a NUL byte, is a DataLoss that names file and line.
class Rows {
 public:
  struct Row {
    int64_t number = 0;  // from 0
    int64_t line = 0;    // the line where it begins, from 1
    std::string_view text;
  };
  // Calls `visit` for every row once, in order.
  Rows(const std::string& path, bool quotes, const std::function<void(const Row&)>& visit,
       const OnBytes& on_bytes = {});

  int64_t size() const { return size_; }
  const std::string& path() const { return file_.path(); }
  uint64_t bytes() const { return file_.size(); }

  // Returns the line where a row begins, if it is known without reading the file: nullopt for some rows of a
  // file with quotes and millions of rows.
  std::optional<int64_t> line_of(int64_t number) const;
  // Reads one row. Its text is stored in `buffer`, which a thread may reuse.
  Row read(int64_t number, std::string& buffer) const;
  // Reads the rows [begin, end) one after the other, many per read of the file.
  void read(int64_t begin, int64_t end, std::string& buffer,
            const std::function<void(const Row&)>& visit) const;

 private:
  struct LineStart {
    uint64_t offset;
    int64_t line;
  };
  void add_start(const LineStart& start);
  [[noreturn]] void fail_changed(int64_t row) const;

  const FileReader file_;
  const bool quotes_;
  int64_t size_ = 0;
  int64_t stride_ = 1;
  std::vector<LineStart> starts_;  // of the rows 0, stride, 2 stride, ...; the last one is the end
};

}  // namespace tutti::data

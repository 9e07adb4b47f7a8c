#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/file.h"

namespace tutti::data {

// Where the rows of a text file are: found once, from front to back, and then again by number. Of every n-th
// row the place is kept, n so large that it takes 32 MiB at most whatever the size of the file. Thread-safe
// once made.
//
// A row ends with its line, unless that is inside of quotes. Lines without anything at the file's end are
// none. A row that never ends, or holds a NUL byte, is a DataLoss that names file and line.
class Rows {
 public:
  struct Row {
    int64_t number = 0;  // from 0
    int64_t line = 0;    // where it begins, from 1
    std::string_view text;
  };
  // `visit` sees every row once, in order.
  Rows(const std::string& path, bool quotes, const std::function<void(const Row&)>& visit);

  int64_t size() const { return size_; }
  const std::string& path() const { return file_.path(); }
  uint64_t bytes() const { return file_.size(); }

  // The text is in `buffer`, which is for one thread to use again.
  Row read(int64_t number, std::string& buffer) const;
  // Those from `begin` to before `end`, one after the other, many with one look at the file.
  void read(int64_t begin, int64_t end, std::string& buffer,
            const std::function<void(const Row&)>& visit) const;

 private:
  struct Place {
    uint64_t offset;
    int64_t line;
  };
  void keep(const Place& place);
  [[noreturn]] void fail_changed(int64_t row) const;

  const FileReader file_;
  const bool quotes_;
  int64_t size_ = 0;
  int64_t stride_ = 1;
  std::vector<Place> places_;  // of the rows 0, stride, 2 stride, ...; behind the last, of the end
};

}  // namespace tutti::data

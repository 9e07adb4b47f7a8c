#include "tutti/data/tables/rows.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "tutti/base/error.h"

namespace tutti::data {
namespace {

constexpr size_t kChunk = size_t{1} << 18;
constexpr size_t kLongestRow = size_t{64} << 20;
constexpr size_t kMostStarts = (size_t{32} << 20) / 16;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// Returns the position after the row's end of line in `text`, or nullopt if `text` does not contain it.
std::optional<size_t> end_of_row(std::string_view text, bool quotes) {
  size_t open = 0;  // number of quotes so far
  for (size_t from = 0;;) {
    const auto* end = static_cast<const char*>(std::memchr(text.data() + from, '\n', text.size() - from));
    if (end == nullptr) return std::nullopt;
    const size_t next = static_cast<size_t>(end - text.data()) + 1;
    if (!quotes) return next;
    open += static_cast<size_t>(std::count(text.begin() + from, text.begin() + next, '"'));
    if (open % 2 == 0) return next;
    from = next;
  }
}

std::string_view without_line_end(std::string_view text) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  if (text.ends_with('\r')) text.remove_suffix(1);
  return text;
}

// Reads a file row by row, in parts.
class Scanner {
 public:
  Scanner(const FileReader& file, bool quotes, const OnBytes& on_bytes)
      : file_(file), quotes_(quotes), on_bytes_(on_bytes) {}

  // Returns the next row with its end of line, "" at the end of the file. Valid until the next call.
  std::string_view next(int64_t line) {
    for (;;) {
      const std::string_view rest = std::string_view(buffer_).substr(at_);
      if (const auto end = end_of_row(rest, quotes_)) return take_bytes(*end);
      if (rest.size() > kLongestRow) {
        fail(ErrorKind::DataLoss,
             "{}:{}: a row is longer than {} MiB{}. Is this a text table, and is its format correct?",
             file_.path(), line, kLongestRow >> 20, quotes_ ? ", or a quote is never closed" : "");
      }
      if (read_to_ == file_.size()) return take_bytes(rest.size());
      buffer_.erase(0, at_);
      at_ = 0;
      read_more();
    }
  }
  uint64_t offset() const { return read_to_ - (buffer_.size() - at_); }

 private:
  std::string_view take_bytes(size_t size) {
    const std::string_view row = std::string_view(buffer_).substr(at_, size);
    at_ += size;
    return row;
  }

  void read_more() {
    const size_t had = buffer_.size();
    const size_t more = std::min<uint64_t>(std::max(kChunk, had), file_.size() - read_to_);
    buffer_.resize(had + more);
    file_.read_at(read_to_, std::as_writable_bytes(std::span(buffer_).subspan(had)));
    read_to_ += more;
    if (on_bytes_) on_bytes_(static_cast<int64_t>(more));
  }

  const FileReader& file_;
  const bool quotes_;
  const OnBytes& on_bytes_;
  std::string buffer_;
  size_t at_ = 0;
  uint64_t read_to_ = 0;
};

int64_t lines_in(std::string_view text) { return std::count(text.begin(), text.end(), '\n'); }

}  // namespace

Rows::Rows(const std::string& path, bool quotes, const std::function<void(const Row&)>& visit,
           const OnBytes& on_bytes)
    : file_(path), quotes_(quotes) {
  Scanner scanner(file_, quotes, on_bytes);
  int64_t line = 1;
  std::optional<Row> empty;  // the first of the empty lines that may end the file
  for (;;) {
    const LineStart start{scanner.offset(), line};
    std::string_view text = scanner.next(line);
    if (text.empty()) break;
    line += quotes ? lines_in(text) : 1;
    text = without_line_end(text);
    if (start.offset == 0 && text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
    if (std::memchr(text.data(), 0, text.size()) != nullptr)
      fail(ErrorKind::DataLoss, "{}:{}: there is a NUL byte: this is not a text table", path, start.line);
    add_start(start);
    const Row row{size_++, start.line, text};
    if (text.empty()) {
      if (!empty) empty = row;
      continue;
    }
    if (empty) fail(ErrorKind::DataLoss, "{}:{}: there is an empty line between rows", path, empty->line);
    visit(row);
  }
  if (empty) size_ = empty->number;
  const auto kept = static_cast<size_t>((size_ + stride_ - 1) / stride_);
  starts_.resize(kept);
  starts_.push_back({file_.size(), line});
  starts_.shrink_to_fit();
}

void Rows::add_start(const LineStart& start) {
  if (size_ % stride_ != 0) return;
  if (starts_.size() == kMostStarts) {
    for (size_t i = 0; i < starts_.size() / 2; ++i) starts_[i] = starts_[2 * i];
    starts_.resize(starts_.size() / 2);
    stride_ *= 2;
    if (size_ % stride_ != 0) return;
  }
  starts_.push_back(start);
}

std::optional<int64_t> Rows::line_of(int64_t number) const {
  if (number % stride_ == 0) return starts_.at(static_cast<size_t>(number / stride_)).line;
  return quotes_ ? std::nullopt : std::optional(number + 1);
}

Rows::Row Rows::read(int64_t number, std::string& buffer) const {
  Row found;
  read(number, number + 1, buffer, [&](const Row& row) { found = row; });
  return found;
}

void Rows::read(int64_t begin, int64_t end, std::string& buffer,
                const std::function<void(const Row&)>& visit) const {
  constexpr uint64_t kAtOnce = uint64_t{1} << 18;
  for (int64_t next = begin; next < end;) {
    const auto from = static_cast<size_t>(next / stride_);
    const auto last = static_cast<size_t>((end - 1) / stride_);
    size_t to = from + 1;
    while (to <= last && starts_[to + 1].offset - starts_[from].offset <= kAtOnce) ++to;
    buffer.resize(starts_[to].offset - starts_[from].offset);
    file_.read_at(starts_[from].offset, std::as_writable_bytes(std::span(buffer)));
    std::string_view rest = buffer;
    int64_t line = starts_[from].line;
    for (int64_t row = static_cast<int64_t>(from) * stride_; row < static_cast<int64_t>(to) * stride_;
         ++row) {
      if (row == end) return;
      const size_t size = end_of_row(rest, quotes_).value_or(rest.size());
      if (size == 0) fail_changed(row);
      std::string_view text = rest.substr(0, size);
      if (row == next) {
        std::string_view shown = without_line_end(text);
        if (row == 0 && shown.starts_with(kByteOrderMark)) shown.remove_prefix(kByteOrderMark.size());
        visit({row, line, shown});
        ++next;
      }
      line += quotes_ ? lines_in(text) : 1;
      rest.remove_prefix(size);
    }
  }
}

void Rows::fail_changed(int64_t row) const {
  fail(ErrorKind::DataLoss, "{}: row {} is no longer where it was: the file was changed while it was in use",
       path(), row);
}

}  // namespace tutti::data

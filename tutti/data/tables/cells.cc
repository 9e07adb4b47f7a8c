#include "tutti/data/tables/cells.h"

#include <algorithm>
#include <cstdint>

#include "tutti/base/error.h"

namespace tutti::data {

std::optional<std::string_view> Cells::next() {
  if (done_) return std::nullopt;
  if (format_.quotes && rest_.starts_with('"')) return quoted();
  const size_t end = rest_.find(format_.separator);
  done_ = end == std::string_view::npos;
  const std::string_view cell = rest_.substr(0, end);
  rest_.remove_prefix(done_ ? rest_.size() : end + 1);
  return cell;
}

std::string_view Cells::quoted() {
  unquoted_.clear();
  rest_.remove_prefix(1);
  for (;;) {
    const size_t end = rest_.find('"');
    if (end == std::string_view::npos) fail(ErrorKind::InvalidArgument, "a quote is not closed");
    unquoted_ += rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    if (!rest_.starts_with('"')) break;
    unquoted_ += '"';
    rest_.remove_prefix(1);
  }
  done_ = rest_.empty();
  if (!done_ && rest_.front() != format_.separator) {
    fail(ErrorKind::InvalidArgument,
         "the quoted cell \"{}\" is followed by '{}'; expected a separator or the end of the row", unquoted_,
         rest_.substr(0, std::min<size_t>(rest_.find(format_.separator), 20)));
  }
  if (!done_) rest_.remove_prefix(1);
  return unquoted_;
}

std::string_view trimmed(std::string_view text) {
  const auto is_blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

bool is_missing(std::string_view cell, const TextFormat& format) {
  return cell.empty() ||
         std::find(format.missing.begin(), format.missing.end(), cell) != format.missing.end();
}

// Follows RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view text) {
  const auto byte = [&](size_t at) { return static_cast<uint8_t>(text[at]); };
  for (size_t i = 0; i < text.size();) {
    const uint8_t first = byte(i++);
    if (first < 0x80) continue;
    if (first < 0xC2 || first > 0xF4) return false;
    const size_t more = first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
    if (text.size() - i < more) return false;
    const int least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;  // of the second byte
    const int most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    if (byte(i) < least || byte(i) > most) return false;
    for (size_t k = i + 1; k < i + more; ++k) {
      if (byte(k) < 0x80 || byte(k) > 0xBF) return false;
    }
    i += more;
  }
  return true;
}

}  // namespace tutti::data

#include "tutti/data/tables/shards.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "tutti/base/error.h"
#include "tutti/base/file.h"

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

}  // namespace tutti::data

#include "tutti/store/weight_hashes.h"

#include <cerrno>
#include <fcntl.h>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/text.h"

namespace tutti::store {
namespace {

constexpr size_t kDigits = 64;

std::string path_in(const std::string& logdir) { return logdir + "/hashes.tsv"; }

std::string line_of(int64_t step, const std::string& sha256) { return fmt::format("{}\t{}\n", step, sha256); }

}  // namespace

WeightHashes::WeightHashes(const std::string& logdir, int64_t step) : path_(path_in(logdir)) {
  make_directories(logdir);
  std::string text;
  for (const auto& [each, sha256] : read_weight_hashes(logdir))
    if (each <= step) text += line_of(each, sha256);
  replace_file(path_, text);
}

void WeightHashes::add(int64_t step, const std::string& sha256) {
  FileDescriptor file(path_, O_WRONLY | O_APPEND | O_CREAT);
  const std::string line = line_of(step, sha256);
  const auto written = ::write(file.get(), line.data(), line.size());
  if (written != static_cast<ssize_t>(line.size()))
    fail_errno(written < 0 ? errno : ENOSPC, "writing " + path_);
  file.close(path_);
}

std::map<int64_t, std::string> read_weight_hashes(const std::string& logdir) {
  std::map<int64_t, std::string> hashes;
  if (!path_exists(path_in(logdir))) return hashes;
  for (const std::string& line : split(read_file(path_in(logdir)), '\n')) {
    const std::vector<std::string> cells = split(line, '\t');
    if (cells.size() != 2 || cells[1].size() != kDigits) continue;
    if (const auto step = parse_int(cells[0])) hashes[*step] = cells[1];
  }
  return hashes;
}

}  // namespace tutti::store

#include "tutti/transport/job_board.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tutti/base/address.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/hashes.h"
#include "tutti/base/json.h"
#include "tutti/base/net.h"
#include "tutti/base/this_host.h"

namespace tutti::comm {

std::string members_secret(const std::string& launch, const std::string& secret) {
  Sha256 hash;
  hash.update(as_bytes(fmt::format("members\n{}\n{}", launch, secret)));
  return hash.hex();
}

std::string address_from_here(const JobBoard& board) {
  Address at = parse_address(board.address);
  if (is_loopback(at.host) && board.host != host_name()) at.host = board.host;
  return to_string(at);
}

void write_job_board(const std::string& folder, const JobBoard& board) {
  const std::string path = folder + "/" + kJobBoardName;
  const std::string text =
      Json{{"address", board.address}, {"host", board.host}, {"secret", board.secret}}.dump() + "\n";
  const std::string temporary = fmt::format("{}.{}", path, getpid());
  ::unlink(temporary.c_str());
  const FileDescriptor file(
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (file.get() < 0) fail_errno(errno, "creating " + temporary);
  write_at(file, temporary, 0, as_bytes(text));
  rename_path(temporary, path);
}

std::optional<JobBoard> read_job_board(const std::string& folder) {
  const std::string path = folder + "/" + kJobBoardName;
  if (!path_exists(path)) return std::nullopt;
  const Json json = parse_json(read_file(path), path, ErrorKind::DataLoss);
  if (!json.is_object()) fail(ErrorKind::DataLoss, "{}: not an object", path);
  return JobBoard{.address = value_in<std::string>(json, "address", path),
                  .host = value_in<std::string>(json, "host", path),
                  .secret = value_in<std::string>(json, "secret", path)};
}

}  // namespace tutti::comm

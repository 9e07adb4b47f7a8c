#include "tutti/net/credentials.h"

#include <string_view>

#include "tutti/base/error.h"
#include "tutti/base/file.h"

namespace tutti::net {
namespace {

// Returns the text of a PEM file that has to contain a `what`, such as "CERTIFICATE".
std::string read_pem(const char* flag, const std::string& path, std::string_view what) {
  if (path.empty()) return "";
  std::string text = read_file(path);
  const size_t begin = text.find("-----BEGIN ");
  const size_t end = begin == std::string::npos ? begin : text.find('\n', begin);
  const bool is_pem = end != std::string::npos &&
                      std::string_view(text).substr(begin, end - begin).find(what) != std::string_view::npos;
  if (!is_pem)
    fail(ErrorKind::InvalidArgument,
         "{} {}: the file contains no {} in PEM (a text that begins with -----BEGIN)", flag, path, what);
  return text;
}

Checksums checksums_of(const std::string& flag) {
  return flag == "on" ? Checksums::Always : flag == "off" ? Checksums::Never : Checksums::BetweenHosts;
}

}  // namespace

Credentials credentials_of(const RunConfig& config) {
  if (config.security.tls_cert.empty() != config.security.tls_key.empty())
    fail(ErrorKind::InvalidArgument, "--tls-cert and --tls-key belong together: give both, or neither");
  return {config.security.secret, read_pem("--tls-cert", config.security.tls_cert, "CERTIFICATE"),
          read_pem("--tls-key", config.security.tls_key, "PRIVATE KEY"),
          read_pem("--tls-ca", config.security.tls_ca, "CERTIFICATE"),
          checksums_of(config.network.message_checksums)};
}

}  // namespace tutti::net

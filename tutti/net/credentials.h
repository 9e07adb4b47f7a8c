#pragma once

#include <string>

#include "tutti/base/config.h"

namespace tutti::net {

// Whether the messages of a connection have checksums (records.h), unless TLS authenticates them.
enum class Checksums { BetweenHosts, Always, Never };

// The credentials by which tasks authenticate one another, and what else protects their messages. Both ends
// have the same.
struct Credentials {
  // Every connection begins with a proof of it; a caller with another secret is refused. "": none.
  std::string secret = {};
  // PEM. With a certificate and a key, a server uses TLS; with an authority too, it requires a certificate
  // from every caller (mutual TLS). A caller uses TLS if it has an authority.
  std::string certificate = {};
  std::string key = {};
  std::string authority = {};
  Checksums checksums = Checksums::BetweenHosts;
};

// Returns the credentials given by --tls-cert, --tls-key, --tls-ca, --secret and --message-checksums. A file
// that cannot be read or is not PEM throws an InvalidArgument that names it.
Credentials credentials_of(const RunConfig& config);

}  // namespace tutti::net

#pragma once

#include <string>

#include "tutti/base/flags.h"

namespace tutti::rpc {

// With what a task shows who it is, and how it knows the others. Both ends have the same.
struct Credentials {
  // Every call carries a proof of it; a caller that has another is refused. "": none.
  std::string secret;
  // PEM. With a certificate and a key a server speaks TLS; with an authority too it asks every caller for a
  // certificate (mutual TLS). A caller speaks TLS where it has an authority.
  std::string certificate;
  std::string key;
  std::string authority;
};

// As --tls-cert, --tls-key, --tls-ca and --secret say. A file that cannot be read, or is no PEM, is an
// InvalidArgument that names it.
Credentials credentials_of(const Flags& flags);

}  // namespace tutti::rpc

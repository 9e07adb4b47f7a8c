#pragma once

#include <cstdlib>
#include <string>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/test_folder.h"

namespace tutti::net {

// For tests: certificates by name, of authorities and of the tasks that they signed, made by openssl.
class Certificates {
 public:
  Certificates() {
    for (const char* authority : {"ca", "other-ca"})
      openssl("req -x509 {0} -keyout {1}.key -out {1}.pem -subj /CN={1} -days 2", authority);
    sign("server", "ca", "IP:127.0.0.1,DNS:localhost");
    sign("worker", "ca", "DNS:worker");
    sign("unknown-peer", "other-ca", "IP:127.0.0.1");
    sign("expired", "ca", "IP:127.0.0.1", "-1");
  }
  std::string path(const std::string& name) const { return folder_ / name; }
  std::string text(const std::string& name) const { return read_file(path(name)); }

 private:
  void sign(const std::string& name, const std::string& authority, const std::string& names,
            const std::string& days = "2") {
    openssl("req {0} -keyout {1}.key -out {1}.csr -subj /CN={1}", name);
    folder_.write(name + ".ext", "subjectAltName=" + names + "\n");
    openssl("x509 -req -in {1}.csr -CA " + authority + ".pem -CAkey " + authority +
                ".key -CAcreateserial -days " + days + " -extfile {1}.ext -out {1}.pem",
            name);
  }
  void openssl(const std::string& words, const std::string& name) {
    const std::string command =
        fmt::format(fmt::runtime(words), "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes", name);
    const std::string line = fmt::format("cd {} && openssl {} >>openssl.log 2>&1", folder_.path(), command);
    if (std::system(line.c_str()) != 0)  // NOLINT(cert-env33-c,bugprone-command-processor): a fixed command
      fail(ErrorKind::InvalidArgument, "{}: {}", line, read_file(path("openssl.log")));
  }

  TestFolder folder_;
};

}  // namespace tutti::net

#include "tests/launchers/sshd.h"

#include <filesystem>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "tests/launchers/training.h"
#include "tutti/base/file.h"
#include "tutti/base/ports.h"

namespace tutti::testing {
namespace {

constexpr const char* kServer = "/usr/sbin/sshd";

void make_key(const std::string& path) {
  const ProgramResult result = run_program({"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

// The sshd of root insists on an empty folder, which a package makes when the machine is booted. If there is
// none, it gets one that nobody else sees.
std::vector<std::string> command(const std::string& config) {
  std::vector<std::string> server = {kServer, "-D", "-e", "-f", config};
  if (geteuid() != 0 || path_exists("/run/sshd")) return server;
  return std::vector<std::string>{
             "unshare", "--mount", "sh", "-c", "mount -t tmpfs none /run && mkdir /run/sshd && exec \"$@\"",
             "sh"} +
         server;
}

}  // namespace

Sshd::Sshd(const std::string& mark, const std::vector<std::string>& addresses,
           const std::vector<std::string>& where) {
  const int port = free_ports(1).front();
  make_key(folder_ / "host_key");
  make_key(folder_ / "key");
  std::string known;
  std::string listen;
  for (const std::string& address : addresses) {
    known += fmt::format("[{}]:{} {}", address, port, read_file(folder_ / "host_key.pub"));
    listen += fmt::format("ListenAddress {}\n", address);
  }
  folder_.write("known", known);
  const std::string server = folder_.write(
      "sshd_config",
      fmt::format(
          "Port {}\n{}HostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\nUsePAM no\n"
          "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\nSetEnv {}\n"
          "LogLevel ERROR\n",
          port, listen, folder_ / "host_key", folder_ / "key.pub", mark));
  folder_.write("config",
                fmt::format("Host *\nPort {}\nIdentityFile {}\nIdentitiesOnly yes\nIdentityAgent none\n"
                            "UserKnownHostsFile {}\nGlobalKnownHostsFile none\n"
                            "StrictHostKeyChecking yes\nLogLevel ERROR\n",
                            port, folder_ / "key", folder_ / "known"));
  server_ = std::make_unique<RunningProgram>(where + command(server));
  for (const std::string& address : addresses) {
    EXPECT_TRUE(eventually([&] {
      return run_program(where + Words{"ssh", "-F", folder_ / "config", address, "true"}).exit_code == 0;
    })) << "no sshd at "
        << address;
  }
}

std::string Sshd::ssh(const std::string& options) const {
  return fmt::format("ssh {} -F {}", options, folder_ / "config");
}

std::string Sshd::why_not() {
  if (access(kServer, X_OK) != 0) return "there is no sshd (apt-get install openssh-server)";
  return is_installed("ssh") ? "" : "there is no ssh (apt-get install openssh-client)";
}

}  // namespace tutti::testing

#include "tools/launch/ssh.h"

#include <gmock/gmock.h>

#include "tutti/base/test_errors.h"

namespace tutti::ssh_test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(RemoteShell, is_ssh_that_asks_nothing_unless_the_user_says_otherwise) {
  const RemoteShell usual = RemoteShell::parse("", "/opt/tutti");
  EXPECT_TRUE(usual.is_ssh());
  const auto words = usual.command("b", {"run-host", "3"});
  EXPECT_THAT(words, AllOf(Contains("ssh"), Contains("BatchMode=yes"), Contains("ServerAliveInterval=15")));
  EXPECT_EQ(words[words.size() - 2], "b");
  EXPECT_EQ(words.back(), "/opt/tutti run-host 3");

  const auto own = RemoteShell::parse("/usr/bin/ssh  -p 22", "").command("b", {"run-host", "1"});
  EXPECT_EQ((std::vector<std::string>{own.begin(), own.begin() + 4}),
            (std::vector<std::string>{"/usr/bin/ssh", "-p", "22", "-T"}));
  EXPECT_THAT(own.back(), HasSubstr("plain_tests run-host 1"));
}

TEST(RemoteShell, may_be_another_program) {
  EXPECT_THAT(RemoteShell::parse("agent --x", "/opt/my tutti").command("b", {"run-host", "1"}),
              ElementsAre("agent", "--x", "b", "'/opt/my tutti' run-host 1"));
  expect_error(ErrorKind::InvalidArgument, HasSubstr("--rsh '  ' names no program"),
               [] { RemoteShell::parse("  ", ""); });
}

}  // namespace
}  // namespace tutti::ssh_test

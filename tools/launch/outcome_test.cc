#include "tools/launch/outcome.h"

#include <signal.h>

#include <gmock/gmock.h>

#include "tutti/base/error.h"

namespace tutti::outcome_test {
namespace {

// Build statuses as wait(2) encodes them on Linux.
Outcome exited(int code) { return Outcome(code << 8); }
Outcome killed_by(int signal) { return Outcome(signal); }

TEST(Outcome, names_the_signal) {
  EXPECT_EQ(killed_by(SIGSEGV).describe(), "was killed by SIGSEGV (Segmentation fault)");
  EXPECT_EQ(killed_by(SIGKILL).exit_code(), 137);
  EXPECT_FALSE(killed_by(SIGKILL).success());
}

TEST(Outcome, names_a_real_time_signal_by_its_number) {
  EXPECT_EQ(killed_by(SIGRTMIN + 1).describe(), "was killed by signal " + std::to_string(SIGRTMIN + 1));
}

TEST(Outcome, names_the_kind_of_tuttis_exit_codes) {
  EXPECT_EQ(exited(exit_code(ErrorKind::Timeout)).describe(), "ended with exit code 11 (Timeout)");
  EXPECT_EQ(exited(exit_code(ErrorKind::InvalidArgument)).describe(),
            "ended with exit code 2 (InvalidArgument)");
  EXPECT_EQ(exited(1).describe(), "ended with exit code 1 (an error of the program)");
  EXPECT_EQ(exited(137).describe(), "ended with exit code 137 (SIGKILL)");
  EXPECT_EQ(exited(3).describe(), "ended with exit code 3");
  EXPECT_TRUE(exited(0).success());
}

TEST(Outcome, prefers_the_cause_to_what_followed_from_it) {
  const Outcome peer_lost = exited(exit_code(ErrorKind::PeerLost));
  EXPECT_GT(killed_by(SIGKILL).weight(), exited(1).weight());
  EXPECT_GT(exited(1).weight(), peer_lost.weight());
  EXPECT_GT(peer_lost.weight(), exited(0).weight());
}

}  // namespace
}  // namespace tutti::outcome_test

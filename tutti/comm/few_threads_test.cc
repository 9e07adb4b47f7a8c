// Tests what happens if the system cannot start more threads.

#include <array>
#include <cerrno>
#include <cstddef>
#include <functional>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <thread>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/test_errors.h"
#include "tutti/comm/collectives.h"
#include "tutti/transport/failures.h"
#include "tutti/transport/inproc/inproc.h"
#include "tutti/transport/test_messages.h"
#include "tutti/transport/test_network.h"

namespace tutti::comm::few_threads_test {
namespace {

using ::testing::HasSubstr;
using testing::kLong;

// Makes the system refuse every thread that this thread starts from now on, as at the limit of processes.
void refuse_threads() {
  const std::array<sock_filter, 5> rules = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog program{static_cast<uint16_t>(rules.size()), const_cast<sock_filter*>(rules.data())};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  ASSERT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

void without_threads(const std::function<void()>& body) {
  std::thread([&] {
    refuse_threads();
    body();
  }).join();
}

TEST(FewThreads, a_board_is_overloaded) {
  without_threads([] {
    expect_error(ErrorKind::Overloaded, HasSubstr("cannot start more threads"),
                 [] { testing::serve_board(); });
  });
}

TEST(FewThreads, what_watches_for_failures_is_overloaded) {
  without_threads([] {
    expect_error(ErrorKind::Overloaded, HasSubstr("cannot start more threads"),
                 [] { Failures(std::make_shared<LocalRendezvous>(), {.rank = 0, .world = 2}, [] {}); });
  });
}

TEST(FewThreads, a_rank_that_cannot_begin_tells_the_others) {
  auto transports = inproc_transports(2, kLong);
  const auto outcomes = testing::as_ranks(2, [&](int rank) {
    Collectives comm(std::move(transports[static_cast<size_t>(rank)]), kLong);
    if (rank == 1) refuse_threads();
    comm.all_reduce(torch::zeros({3}), ReduceOp::Sum, {.run = rank == 1 ? Run::Behind : Run::Here}).wait();
  });
  ASSERT_TRUE(outcomes[0] && outcomes[1]);
  EXPECT_EQ(outcomes[1]->kind(), ErrorKind::Overloaded);
  EXPECT_THAT(outcomes[0]->what(), HasSubstr("cannot start more threads"));
}

}  // namespace
}  // namespace tutti::comm::few_threads_test

#include "tutti/comm/connect.h"

#include <functional>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/ports.h"
#include "tutti/base/test_errors.h"
#include "tutti/cluster/roles.h"
#include "tutti/comm/test_network.h"

namespace tutti::comm {
namespace {

using testing::as_ranks;
using ::testing::HasSubstr;
using testing::Outcome;

struct Start {
  std::string launch = "";
  std::string secret = "";
};

void meet_all(const Context& context) { connect(context)->barrier(); }

// Ranks that were told of the same addresses, each by a start of its own.
std::vector<Outcome> connect_ranks(const std::vector<Start>& starts,
                                   const std::function<void(const Context&)>& body = meet_all) {
  const std::vector<int> ports = free_ports(static_cast<int>(starts.size()));
  ClusterSpec::Tasks tasks;
  for (size_t i = 0; i < ports.size(); ++i)
    tasks.emplace(static_cast<int>(i), fmt::format("127.0.0.1:{}", ports[i]));
  const ClusterSpec cluster({{"worker", tasks}});
  return as_ranks(static_cast<int>(starts.size()), [&](int rank) {
    Flags flags;
    flags.log_level = "error";
    flags.timeout = 3;
    flags.threads = 1;
    flags.device = "cpu";
    flags.secret = starts[static_cast<size_t>(rank)].secret;
    Identity identity = identity_in(cluster, {.job = "worker", .index = rank}, "a test");
    identity.launch = starts[static_cast<size_t>(rank)].launch;
    body(Context(flags, identity));
  });
}

TEST(Connect, those_of_one_launch_meet) {
  testing::expect_no_errors(connect_ranks({{}, {}}));
  testing::expect_no_errors(connect_ranks({{"one", "open"}, {"one", "open"}, {"one", "open"}}));
}

TEST(Connect, those_of_another_launch_are_told_so_and_take_nobodys_place) {
  for (const Start& other : {Start{"two", "open"}, Start{"one", "shut"}, Start{"", ""}}) {
    const auto outcomes = connect_ranks({{"one", "open"}, other});
    ASSERT_TRUE(outcomes[0] && outcomes[1]);
    EXPECT_EQ(outcomes[1]->kind(), ErrorKind::InvalidArgument);
    EXPECT_THAT(outcomes[1]->what(), HasSubstr("another job meets"));
    EXPECT_EQ(outcomes[0]->kind(), ErrorKind::Timeout);
    EXPECT_THAT(outcomes[0]->what(), HasSubstr("connect failed: nothing from worker/1"));
  }
}

TEST(Connect, a_program_connects_once_and_splits_that_for_more) {
  testing::expect_no_errors(connect_ranks({{}, {}}, [](const Context& context) {
    const auto comm = connect(context);
    const Context copy = context;
    expect_error(ErrorKind::InvalidArgument, HasSubstr("split(0)"), [&] { connect(copy); });
    const auto first = comm->split(0);
    const auto second = comm->split(0);
    for (const auto* group : {&first, &second, &first}) {
      const torch::Tensor one = torch::ones({1});
      (*group)->all_reduce(one, ReduceOp::Sum).wait();
      EXPECT_EQ(one.item<float>(), 2);
    }
  }));
}

}  // namespace
}  // namespace tutti::comm

#include "tutti/comm/connect.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/address.h"
#include "tutti/base/net.h"
#include "tutti/base/ports.h"
#include "tutti/base/test_errors.h"
#include "tutti/base/this_host.h"
#include "tutti/base/torch_compat.h"
#include "tutti/cluster/roles.h"
#include "tutti/transport/test_messages.h"
#include "tutti/transport/test_network.h"

namespace tutti::comm::connect_test {
namespace {

using ::testing::AllOf;
using testing::as_ranks;
using ::testing::HasSubstr;
using testing::Outcome;

struct Start {
  std::string launch = "";
  std::string secret = "";
};

void meet_all(const Context& context) { comm::connect(context)->barrier(); }

// Connects one rank for each of `starts`; all know the same addresses. `change` may modify the identity of
// each rank.
std::vector<Outcome> connect_ranks(
    const std::vector<Start>& starts, const std::function<void(const Context&)>& body = meet_all,
    const std::function<void(Identity&)>& change = [](Identity&) {}) {
  const std::vector<int> ports = free_ports(static_cast<int>(starts.size()));
  ClusterSpec::Tasks tasks;
  for (size_t i = 0; i < ports.size(); ++i)
    tasks.emplace(static_cast<int>(i), fmt::format("127.0.0.1:{}", ports[i]));
  const ClusterSpec cluster({{"worker", tasks}});
  return as_ranks(static_cast<int>(starts.size()), [&](int rank) {
    RunConfig config;
    config.output.log_level = "error";
    config.network.timeout = 3;
    config.compute.threads = 1;
    config.compute.device = "cpu";
    config.security.secret = starts[static_cast<size_t>(rank)].secret;
    Identity identity = identity_in(cluster, {.job = "worker", .index = rank}, "a test");
    identity.launch = starts[static_cast<size_t>(rank)].launch;
    change(identity);
    body(Context(config, identity));
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
    EXPECT_THAT(outcomes[1]->what(), HasSubstr("another job uses"));
    EXPECT_EQ(outcomes[0]->kind(), ErrorKind::Timeout);
    EXPECT_THAT(outcomes[0]->what(), AllOf(HasSubstr("connect failed: nothing from worker/1"),
                                           HasSubstr("callers that this task has refused: "),
                                           HasSubstr("have different secrets")));
  }
}

TEST(Connect, a_program_on_one_worker_connects_once_as_well) {
  const Context context(RunConfig{}, Identity{});
  const auto comm = comm::connect(context);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("split(0)"), [&] { comm::connect(context); });
  EXPECT_EQ(comm->split(0)->world(), 1);
}

TEST(Connect, a_program_connects_once_and_splits_that_for_more) {
  testing::expect_no_errors(connect_ranks({{}, {}}, [](const Context& context) {
    const auto comm = comm::connect(context);
    const Context copy = context;
    expect_error(ErrorKind::InvalidArgument, HasSubstr("split(0)"), [&] { comm::connect(copy); });
    const auto first = comm->split(0);
    const auto second = comm->split(0);
    for (const auto* group : {&first, &second, &first}) {
      const torch::Tensor one = torch::ones({1});
      (*group)->all_reduce(one, ReduceOp::Sum).wait();
      EXPECT_EQ(one.item<float>(), 2);
    }
  }));
}

// Returns the addresses at which this process listens, in the kernel's notation.
std::set<std::string> listening_addresses() {
  std::set<std::string> sockets;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    sockets.insert(std::filesystem::read_symlink(entry, gone).string());
  }
  std::set<std::string> addresses;
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(path);
    std::string line;
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::array<std::string, 10>
          columns;  // the second is the address, the fourth the state, the last the inode
      for (std::string& column : columns) words >> column;
      if (columns[3] == "0A" && sockets.contains(fmt::format("socket:[{}]", columns[9])))
        addresses.insert(columns[1].substr(0, columns[1].find(':')));
    }
  }
  return addresses;
}

TEST(Connect, a_job_on_one_machine_listens_at_the_loopback_alone) {
  for (const char* comm : {"auto", "tcp"}) {
    testing::expect_no_errors(connect_ranks({{}, {}}, [&](const Context& context) {
      RunConfig config = context.config();
      config.network.backend = comm;
      const auto communicator = comm::connect(Context(config, context.identity()));
      communicator->barrier().wait();
      EXPECT_EQ(listening_addresses(), std::set<std::string>{"0100007F"}) << comm;
      communicator->barrier().wait();
    }));
  }
}

// The name of the host would lead others to it.
TEST(Connect, a_job_on_one_machine_with_a_name_and_no_secret_listens_at_the_loopback_alone) {
  const std::vector<std::string> own = own_addresses();
  if (own.empty()) GTEST_SKIP() << "NOTHING IS TESTED HERE: this machine has no network";
  const auto named = [&](Identity& identity) {
    const int port = parse_address(identity.board_address).port;
    identity.board_address = to_string(Address{own.front(), port});
  };
  testing::expect_no_errors(connect_ranks(
      {{}, {}, {}},
      [&](const Context& context) {
        const auto communicator = comm::connect(context);
        communicator->barrier().wait();
        EXPECT_EQ(listening_addresses(), std::set<std::string>{"0100007F"});
        communicator->barrier().wait();
      },
      named));
}

TEST(Connect, jobs_of_slurm_do_not_mix) {
  const auto outcomes = connect_ranks({{}, {}}, meet_all, [](Identity& identity) {
    identity.job = identity.membership.rank == 0 ? "Slurm job 7 step 0" : "Slurm job 8 step 0";
  });
  ASSERT_TRUE(outcomes[1]);
  EXPECT_THAT(outcomes[1]->what(), HasSubstr("another job uses"));
}

TEST(Connect, a_host_whose_name_resolves_to_the_loopback_can_be_reached) {
  const auto two_hosts = [](Identity& identity) {
    identity.membership.local_world = 1;
    identity.membership.local_rank = 0;
    identity.board_address.replace(0, identity.board_address.find(':'), "localhost");
  };
  for (const Outcome& outcome : connect_ranks({{}}, meet_all, [&](Identity& identity) {
         identity.membership.world = 2;
         two_hosts(identity);
       })) {
    ASSERT_TRUE(outcome);
    EXPECT_EQ(outcome->kind(), ErrorKind::InvalidArgument);
    EXPECT_THAT(outcome->what(),
                HasSubstr("no task may listen at all addresses of this machine without a secret"));
  }
  testing::expect_no_errors(connect_ranks(
      {{"", "open"}, {"", "open"}},
      [&](const Context& context) {
        const auto communicator = comm::connect(context);
        const int port = parse_address(context.identity().board_address).port;
        for (const std::string& host : own_addresses())
          EXPECT_EQ(connect_within(resolve(host, port).addresses.at(0), testing::kLong).error, 0) << host;
        communicator->barrier().wait();
      },
      two_hosts));
}

auto board_of_torchrun() {
  c10d::TCPStoreOptions options;
#if TUTTI_TORCH_AT_LEAST(2, 4)
  options.useLibUV = false;  // not every LibTorch has it
#endif
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

TEST(Connect, those_whose_launcher_serves_a_board_find_rank_0_through_that) {
  const auto agent = board_of_torchrun();
  for (const int attempt : {0, 1}) {
    testing::expect_no_errors(connect_ranks({{}, {}, {}}, meet_all, [&](Identity& identity) {
      identity.launcher_serves = true;
      identity.attempt = attempt;
      identity.board_address = fmt::format("127.0.0.1:{}", agent->getPort());
    }));
  }
}

// Everybody can read that board.
TEST(Connect, those_whose_launcher_serves_a_board_need_the_secret_as_well) {
  const auto agent = board_of_torchrun();
  int attempt = 0;
  const auto outcomes_of = [&](const std::vector<Start>& starts, int local_world) {
    return connect_ranks(starts, meet_all, [&](Identity& identity) {
      identity.launcher_serves = true;
      identity.attempt = attempt;
      identity.membership.local_world = local_world;
      identity.board_address = fmt::format("127.0.0.1:{}", agent->getPort());
    });
  };
  const auto strange = outcomes_of({{"", "one"}, {"", "other"}}, 2);
  ASSERT_TRUE(strange[1]);
  EXPECT_EQ(strange[1]->kind(), ErrorKind::InvalidArgument);
  EXPECT_THAT(strange[1]->what(), HasSubstr("the same TUTTI_SECRET"));
  ++attempt;
  for (const Outcome& outcome : outcomes_of({{}, {}}, 1)) {
    ASSERT_TRUE(outcome);
    EXPECT_THAT(outcome->what(),
                HasSubstr("no task may listen at all addresses of this machine without a secret"));
  }
}

TEST(Connect, says_that_the_launcher_or_rank_0_is_not_there) {
  const auto through = [](int port, int rank) {
    return [port, rank](Identity& identity) {
      identity.launcher_serves = true;
      identity.membership.rank = rank;
      identity.board_address = fmt::format("127.0.0.1:{}", port);
    };
  };
  auto outcomes = connect_ranks({{}, {}}, meet_all, through(free_ports(1)[0], 1));
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome);
    EXPECT_EQ(outcome->kind(), ErrorKind::Timeout);
    EXPECT_THAT(outcome->what(), HasSubstr("the launcher (torchrun) did not answer at 127.0.0.1:"));
  }
  const auto agent = board_of_torchrun();
  outcomes = connect_ranks({{}, {}}, meet_all, through(agent->getPort(), 1));
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome);
    EXPECT_EQ(outcome->kind(), ErrorKind::Timeout);
    EXPECT_THAT(outcome->what(), HasSubstr("nothing from rank 0 through the board of the launcher"));
  }
}

}  // namespace
}  // namespace tutti::comm::connect_test

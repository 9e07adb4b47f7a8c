#include <fmt/format.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "tutti/base/ports.h"
#include "tutti/base/test_errors.h"
#include "tutti/rpc/channel.h"
#include "tutti/train/run.h"

namespace tutti::serve_test {
namespace {

using ::testing::HasSubstr;

RunConfig quiet() {
  RunConfig config;
  config.output.log_level = "off";
  return config;
}

TEST(Server, listens_from_the_start_and_joins_until_it_is_stopped) {
  const std::string address = fmt::format("127.0.0.1:{}", free_ports(1).front());
  Server server(ClusterSpec::parse("ps|" + address + ",worker|127.0.0.1:1"), "ps", 0, quiet());
  EXPECT_EQ(server.target(), "grpc://" + address);
  {
    rpc::Channel channel(address);
    EXPECT_FALSE(channel.call("state", {}).head.at("begun").get<bool>());
    channel.call("stop", {});
  }
  server.join();
}

TEST(Server, is_one_of_the_servers_of_the_cluster) {
  const auto cluster = ClusterSpec::parse("ps|127.0.0.1:1,worker|127.0.0.1:2");
  expect_error(ErrorKind::InvalidArgument, HasSubstr("worker/0 is not a parameter server"),
               [&] { Server(cluster, "worker", 0, quiet()); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("1"), [&] { Server(cluster, "ps", 1, quiet()); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("pss"), [&] { Server(cluster, "pss", 0, quiet()); });
}

}  // namespace
}  // namespace tutti::serve_test

#include "tutti/cluster/context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/test_errors.h"
#include "tutti/cluster/roles.h"
#include "tutti/cluster/test_identity.h"

namespace tutti {
namespace {

using testing::HasSubstr;

Flags on_cpu() {
  Flags flags;
  flags.device = "cpu";
  return flags;
}

std::string line_of(const Context& context) {
  testing::internal::CaptureStderr();
  context.log().info("hello");
  return testing::internal::GetCapturedStderr();
}

TEST(Context, is_what_discovery_found) {
  const Context context(on_cpu(), identity("chief|a:1,worker|b:1;a:2", "worker", 1));
  EXPECT_EQ(context.rank(), 2);
  EXPECT_EQ(context.world(), 3);
  EXPECT_EQ(context.local_rank(), 1);
  EXPECT_EQ(context.local_world(), 2);
  EXPECT_FALSE(context.is_chief());
  EXPECT_EQ(context.task().name(), "/job:worker/task:1");
  EXPECT_EQ(context.cluster().num_tasks("worker"), 2);
  EXPECT_EQ(context.lanes(), 3);
  EXPECT_TRUE(context.device().is_cpu());
}

TEST(Context, alone_is_chief_of_a_world_of_one) {
  const Context context(on_cpu(), Identity());
  EXPECT_EQ(context.rank(), 0);
  EXPECT_EQ(context.world(), 1);
  EXPECT_TRUE(context.is_chief());
  EXPECT_EQ(context.lanes(), 1);
  EXPECT_GE(context.threads(), 1);
}

TEST(Context, flags_decide_threads_and_lanes) {
  Flags flags = on_cpu();
  flags.threads = 7;
  flags.lanes = 12;
  const Context context(flags, Identity());
  EXPECT_EQ(context.threads(), 7);
  EXPECT_EQ(context.lanes(), 12);
  EXPECT_EQ(context.flags().lanes, 12);
}

TEST(Context, log_names_the_task_where_there_are_several) {
  EXPECT_THAT(line_of(Context(on_cpu(), Identity())), Not(HasSubstr("worker")));
  EXPECT_THAT(line_of(Context(on_cpu(), identity("worker|a:1", "worker", 0))), Not(HasSubstr("worker")));
  EXPECT_THAT(line_of(Context(on_cpu(), identity("worker|a:1;a:2", "worker", 1))),
              HasSubstr(" worker/1 hello"));
  EXPECT_THAT(line_of(Context(on_cpu(), identity("ps|a:1,worker|a:2", "worker", 0))),
              HasSubstr(" worker/0 hello"));
  EXPECT_THAT(line_of(Context(on_cpu(), identity("", "evaluator", 0))), HasSubstr(" evaluator/0 hello"));
}

TEST(Context, log_has_the_level_of_the_flags) {
  Flags flags = on_cpu();
  flags.log_level = "error";
  EXPECT_EQ(line_of(Context(flags, Identity())), "");
  flags.log_level = "loud";
  expect_error(ErrorKind::InvalidArgument, HasSubstr("'loud'"), [&] { Context(flags, Identity()); });
}

TEST(Context, a_server_stays_on_the_cpu_unless_told_otherwise) {
  const Context context(Flags(), identity("ps|a:1,worker|a:2", "ps", 0));
  EXPECT_TRUE(context.device().is_cpu());
  EXPECT_FALSE(context.is_chief());
}

TEST(Context, refuses_devices_and_threads_that_are_none) {
  Flags flags = on_cpu();
  flags.device = "gpuu";
  expect_error(ErrorKind::InvalidArgument, HasSubstr("'gpuu'"), [&] { Context(flags, Identity()); });
  flags = on_cpu();
  flags.threads = -1;
  expect_error(ErrorKind::InvalidArgument, HasSubstr("--threads -1"), [&] { Context(flags, Identity()); });
}

}  // namespace
}  // namespace tutti

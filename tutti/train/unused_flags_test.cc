#include "tutti/train/unused_flags.h"

#include <gmock/gmock.h>

namespace tutti::unused_flags_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

TEST(UnusedFlags, are_none_by_default) {
  for (const char* strategy : {"single", "allreduce", "ps-sync", "ps-async", "in-graph"}) {
    for (const int workers : {1, 2})
      EXPECT_THAT(unused_flags({}, {strategy, workers}), IsEmpty()) << strategy;
  }
}

TEST(UnusedFlags, are_those_of_another_way_of_training) {
  RunConfig config;
  config.servers = {.placement = "greedy", .staleness = 3, .overlap = false, .backup = 1};
  EXPECT_THAT(unused_flags(config, {"allreduce", 2}),
              ElementsAre(StartsWith("--staleness"), StartsWith("--no-overlap"), StartsWith("--backup"),
                          StartsWith("--placement")));
  EXPECT_THAT(unused_flags(config, {"ps-sync", 2}),
              ElementsAre(StartsWith("--staleness"), StartsWith("--no-overlap")));
  EXPECT_THAT(unused_flags(config, {"ps-sync", 1}),
              ElementsAre(StartsWith("--staleness"), StartsWith("--no-overlap"),
                          HasSubstr("there is only one worker")));
  EXPECT_THAT(unused_flags(config, {"ps-async", 2}), ElementsAre(StartsWith("--backup")));
}

TEST(UnusedFlags, say_that_an_all_reduce_is_not_encrypted) {
  RunConfig config;
  config.security.tls_ca = "ca.pem";
  EXPECT_THAT(unused_flags(config, {"allreduce", 2}), ElementsAre(HasSubstr("that have all three")));
  EXPECT_THAT(unused_flags(config, {"in-graph", 2}), IsEmpty());
  config.security.tls_cert = "own.pem";
  config.security.tls_key = "own.key";
  EXPECT_THAT(unused_flags(config, {"allreduce", 2}), IsEmpty());
  EXPECT_THAT(unused_flags(config, {"allreduce", 1}), ElementsAre(StartsWith("--tls-cert")));
  config.network.backend = "shm";
  EXPECT_THAT(unused_flags(config, {"allreduce", 2}), ElementsAre(StartsWith("--tls-cert")));
}

TEST(UnusedFlags, say_that_there_is_nobody_to_send_messages_to) {
  RunConfig config;
  config.network.message_checksums = "on";
  EXPECT_THAT(unused_flags(config, {"allreduce", 1}), ElementsAre(StartsWith("--message-checksums")));
  EXPECT_THAT(unused_flags(config, {"allreduce", 2}), IsEmpty());
  EXPECT_THAT(unused_flags(config, {"in-graph", 1}), IsEmpty());
}

TEST(UnusedFlags, are_those_of_several_workers) {
  RunConfig config;
  config.reduction.order = "fast";
  EXPECT_THAT(unused_flags(config, {"allreduce", 2}), IsEmpty());
  EXPECT_THAT(unused_flags(config, {"allreduce", 1}), ElementsAre(StartsWith("--reduce fast does nothing")));
  EXPECT_THAT(unused_flags(config, {"ps-sync", 2}), ElementsAre(StartsWith("--reduce fast does nothing")));
}

TEST(UnusedFlags, need_other_flags) {
  RunConfig config;
  config.reduction.error_feedback = false;
  config.checkpoints.rows = "changed";
  config.exports.from = "run";
  EXPECT_THAT(unused_flags(config, {"allreduce", 2}),
              ElementsAre(StartsWith("--no-error-feedback"), StartsWith("--checkpoint-rows"),
                          StartsWith("--export-from")));
  config.checkpoints.rows = "full";
  EXPECT_THAT(unused_flags({}, {"allreduce", 2, true}),
              ElementsAre(HasSubstr("servers of this job have nothing to do")));
  EXPECT_THAT(unused_flags({}, {"ps-sync", 2, true}), IsEmpty());
  RunConfig hashing;
  hashing.checkpoints.hash_every = 5;
  EXPECT_THAT(unused_flags(hashing, {"ps-sync", 2, true}), ElementsAre(StartsWith("--hash-every")));
  EXPECT_THAT(unused_flags(hashing, {"in-graph", 2}), IsEmpty());
  RunConfig without_copies;
  without_copies.reduction.replicas = 0;
  EXPECT_THAT(unused_flags(without_copies, {"allreduce", 2}), ElementsAre(StartsWith("--replicas")));
  EXPECT_THAT(unused_flags(without_copies, {.strategy = "allreduce", .workers = 2, .has_tables = true}),
              IsEmpty());
  EXPECT_THAT(unused_flags(without_copies, {.strategy = "ps-async", .workers = 2, .has_tables = true}),
              ElementsAre(StartsWith("--replicas")));
  EXPECT_THAT(unused_flags(without_copies, {.strategy = "ps-sync", .workers = 2}), IsEmpty());
  RunConfig auditing;
  auditing.training.audit_action = "redo";
  EXPECT_THAT(unused_flags(auditing, {"allreduce", 2}), ElementsAre(StartsWith("--audit-action")));
  auditing.training.audit = 5;
  EXPECT_THAT(unused_flags(auditing, {"allreduce", 2}), IsEmpty());
  for (const char* strategy : {"ps-sync", "ps-async", "in-graph"})
    EXPECT_THAT(unused_flags(auditing, {strategy, 2}), ElementsAre(StartsWith("--audit does nothing")));
  config.reduction.wire_precision = "bf16";
  config.exports.dir = "exports";
  EXPECT_THAT(unused_flags(config, {"allreduce", 2}), IsEmpty());
  EXPECT_THAT(unused_flags(config, {"allreduce", 1}), ElementsAre(StartsWith("--wire-precision")));
  for (const char* strategy : {"ps-sync", "ps-async", "in-graph"})
    EXPECT_THAT(unused_flags(config, {strategy, 2}), ElementsAre(StartsWith("--wire-precision"))) << strategy;
  config.network.backend = "shm";
  EXPECT_THAT(unused_flags(config, {"allreduce", 2}), ElementsAre(StartsWith("--wire-precision")));
}

}  // namespace
}  // namespace tutti::unused_flags_test

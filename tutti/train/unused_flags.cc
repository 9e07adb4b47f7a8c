#include "tutti/train/unused_flags.h"

#include "tutti/cluster/roles.h"

namespace tutti {

std::vector<std::string> unused_flags(const RunConfig& config, const WayOfTraining& way) {
  const RunConfig standard;
  const bool synchronous = way.strategy == "ps-sync";
  const bool asynchronous = way.strategy == "ps-async";
  const bool calls = synchronous || asynchronous || way.strategy == "in-graph";
  std::vector<std::string> lines;
  const auto note = [&](bool given, bool matters, const char* line) {
    if (given && !matters) lines.emplace_back(line);
  };
  const RunConfig::Servers& servers = config.servers;
  note(servers.staleness != standard.servers.staleness, asynchronous,
       "--staleness does nothing: only workers of --strategy ps-async may be ahead of others");
  note(servers.overlap != standard.servers.overlap, asynchronous,
       "--no-overlap does nothing: only workers of --strategy ps-async go on while they push and pull");
  note(servers.backup != standard.servers.backup, synchronous,
       "--backup does nothing: only a step of --strategy ps-sync may leave workers behind");
  note(servers.backup > 0 && synchronous, way.workers > 1, "--backup does nothing: there is only one worker");
  note(servers.placement != standard.servers.placement, synchronous || asynchronous,
       "--placement does nothing: there are no parameter servers");
  note(way.has_servers, calls,
       "the parameter servers of this job have nothing to do: --strategy ps-sync or ps-async uses them");
  const RunConfig::Security& security = config.security;
  const bool any_tls = !security.tls_cert.empty() || !security.tls_key.empty() || !security.tls_ca.empty();
  const bool all_tls = !security.tls_cert.empty() && !security.tls_key.empty() && !security.tls_ca.empty();
  const std::string& backend = config.network.backend;
  note(any_tls, calls || (all_tls && way.workers > 1 && backend != "shm" && backend != "mpi"),
       "--tls-cert, --tls-key and --tls-ca do nothing: only workers of an all-reduce over TCP that have all "
       "three encrypt what they send to each other");
  note(config.network.message_checksums != standard.network.message_checksums, calls || way.workers > 1,
       "--message-checksums does nothing: this task sends no messages to others");
  note(config.reduction.order != standard.reduction.order, !calls && way.workers > 1,
       "--reduce fast does nothing: only the gradients of several workers of an all-reduce can be added in "
       "another order");
  note(config.reduction.wire_precision != standard.reduction.wire_precision,
       !calls && way.workers > 1 && config.network.backend != "shm",
       "--wire-precision does nothing: only gradients that several workers of an all-reduce send over a "
       "network are rounded");
  note(config.reduction.error_feedback != standard.reduction.error_feedback,
       config.reduction.wire_precision != standard.reduction.wire_precision,
       "--no-error-feedback does nothing: gradients are not rounded (--wire-precision)");
  note(config.checkpoints.rows != standard.checkpoints.rows, way.has_tables,
       "--checkpoint-rows does nothing: the model has no sharded embeddings");
  note(config.reduction.replicas != standard.reduction.replicas, calls ? synchronous : way.has_tables,
       "--replicas does nothing: only rows of sharded embeddings on workers, and servers of --strategy "
       "ps-sync, "
       "have copies");
  note(config.checkpoints.hash_every > 0, !synchronous && !asynchronous,
       "--hash-every does nothing: the weights are on the parameter servers");
  note(config.training.audit > 0, !calls,
       "--audit does nothing: only lanes of workers of an all-reduce are computed a second time");
  note(config.training.audit_action != standard.training.audit_action, config.training.audit > 0,
       "--audit-action does nothing without --audit");
  note(!config.exports.from.empty(), !config.exports.dir.empty(),
       "--export-from does nothing without --export");
  return lines;
}

void warn_of_unused_flags(const Context& context, WayOfTraining way) {
  if (!context.is_chief()) return;
  way.workers = context.world();
  way.has_servers = has_servers(context.cluster());
  for (const std::string& line : unused_flags(context.config(), way)) context.log().warning("{}", line);
}

}  // namespace tutti

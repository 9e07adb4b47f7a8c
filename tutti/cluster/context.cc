#include "tutti/cluster/context.h"

#include <limits>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/cluster/cores.h"
#include "tutti/cluster/device.h"
#include "tutti/cluster/roles.h"

namespace tutti {
namespace {

bool stands_alone(const Identity& identity) {
  return identity.membership.world == 1 && !identity.is_evaluator && servers_of(identity.cluster).empty();
}

Log make_log(const Flags& flags, const Identity& identity) {
  return Log(parse_log_level(flags.log_level), stands_alone(identity) ? "" : identity.task.short_name());
}

std::shared_ptr<Timeline> make_timeline(const Flags& flags) {
  if (flags.timeline.empty()) return nullptr;
  auto timeline = std::make_shared<Timeline>();
  timeline->name_thread("main");
  return timeline;
}

// A server keeps its slice in memory that it sends from: it takes a GPU only where it is told to.
c10::Device device_of(const Flags& flags, const Identity& identity) {
  if (flags.device == "cpu" || (flags.device == "auto" && is_server_job(identity.task.job))) {
    return {c10::DeviceType::CPU};
  }
  return choose_device(flags.device, identity.membership.local_rank, count_gpus());
}

int threads_of(const Flags& flags, const Identity& identity) {
  if (flags.threads < 0 || flags.threads > std::numeric_limits<int>::max()) {
    fail(ErrorKind::InvalidArgument, "--threads {} is no number of threads", flags.threads);
  }
  if (flags.threads > 0) return static_cast<int>(flags.threads);
  return share_of_cores(identity.membership.local_world);
}

}  // namespace

Context::Context(Flags flags, Identity identity)
    : flags_(std::move(flags)),
      identity_(std::move(identity)),
      log_(make_log(flags_, identity_)),
      timeline_(make_timeline(flags_)),
      device_(device_of(flags_, identity_)),
      threads_(threads_of(flags_, identity_)) {}

Context Context::with_run(const std::string& logdir, const std::string& resume) const {
  Context other = *this;
  other.flags_.logdir = logdir;
  other.flags_.resume = resume;
  return other;
}

}  // namespace tutti

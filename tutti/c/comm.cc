#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tutti/base/config.h"
#include "tutti/base/environment.h"
#include "tutti/base/start_thread.h"
#include "tutti/base/text.h"
#include "tutti/base/version.h"
#include "tutti/c/handles.h"
#include "tutti/c/store_meeting.h"
#include "tutti/cluster/task_context.h"
#include "tutti/transport/connect.h"

namespace tutti::c {
namespace {

thread_local std::string last_error;  // NOLINT: the interface says that it is the calling thread's

std::string replaced(std::string text, std::string_view part, std::string_view by) {
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + by.size()))
    text.replace(at, part.size(), by);
  return text;
}

RunConfig config_of(const tutti_init_options& options) {
  RunConfig config;
  FlagSet flags("a program that calls tutti_init");
  add_standard_flags(flags, config);
  const char* const program = "tutti_init";
  static_cast<void>(flags.parse(1, &program, Environment::of_process()));
  if (options.transport != nullptr) config.network.backend = options.transport;
  if (options.timeout_seconds != 0)
    config.network.timeout = seconds(time_of(options.timeout_seconds, "tutti_init"));
  config.output.log_level = "off";
  return config;
}

std::unique_ptr<tutti_comm> connect(const tutti_init_options& options) {
  const RunConfig config = config_of(options);
  std::shared_ptr<StoreMeeting> meeting;
  Identity identity;
  comm::ConnectOptions connect_options;
  if (options.store != nullptr) {
    meeting = std::make_shared<StoreMeeting>(*options.store, options.rank, options.world,
                                             milliseconds_of(config.network.timeout));
    identity = meeting->place(options.name == nullptr ? "worker" : options.name);
    connect_options.meeting.share = [meeting](const std::optional<std::string>& text) {
      return meeting->share(text);
    };
  } else {
    identity = discover(config, Environment::of_process());
  }
  const TaskContext context(config, identity);
  auto comm = std::make_unique<tutti_comm>();
  comm->ranks = connect_ranks(context, connect_options);
  if (comm::Epochs* const epochs = comm->ranks->epochs()) {
    if (epochs->is_joining()) comm->ranks->reconfigure({});
    epochs->set_fit(0);  // from now on others may join
  }
  comm->local_rank = identity.membership.local_rank;
  comm->local_world = identity.membership.local_world;
  comm->transport = comm->ranks->name();
  return comm;
}

}  // namespace

tutti_status status_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::InvalidArgument:
      return TUTTI_INVALID_ARGUMENT;
    case ErrorKind::PeerLost:
      return TUTTI_PEER_LOST;
    case ErrorKind::Timeout:
      return TUTTI_TIMEOUT;
    case ErrorKind::DataLoss:
      return TUTTI_DATA_LOSS;
    case ErrorKind::Overloaded:
      return TUTTI_OVERLOADED;
    case ErrorKind::Unimplemented:
      return TUTTI_UNIMPLEMENTED;
    case ErrorKind::Bug:
      return TUTTI_BUG;
  }
  return TUTTI_BUG;
}

// The texts are those of programs with flags; here there are none.
tutti_status failed(tutti_status status, const char* text) noexcept {
  try {
    last_error = replaced(replaced(text, "raise --timeout", "raise the timeout of the communicator"),
                          "`if (ctx.is_chief())`", "`if (rank == 0)`");
  } catch (const std::exception&) {
    last_error.clear();
  }
  return status;
}

}  // namespace tutti::c

using namespace tutti::c;  // NOLINT(google-build-using-namespace): the interface is in no namespace
using tutti::Error;
using tutti::ErrorKind;
using tutti::fail;
using tutti::first_line;

int tutti_c_version(void) { return TUTTI_C_VERSION; }
const char* tutti_version(void) {
  static const std::string kText(tutti::version());
  return kText.c_str();
}
const char* tutti_error_text(void) { return last_error.c_str(); }

const char* tutti_status_name(tutti_status status) {
  switch (status) {
    case TUTTI_OK:
      return "ok";
    case TUTTI_INVALID_ARGUMENT:
      return "invalid argument";
    case TUTTI_PEER_LOST:
      return "peer lost";
    case TUTTI_TIMEOUT:
      return "timeout";
    case TUTTI_DATA_LOSS:
      return "data loss";
    case TUTTI_OVERLOADED:
      return "overloaded";
    case TUTTI_UNIMPLEMENTED:
      return "unimplemented";
    case TUTTI_BUG:
      return "bug";
  }
  return "unknown";
}

size_t tutti_type_size(tutti_type type) { return size_of(static_cast<tutti::ElementType>(type)); }

tutti_status tutti_init(const tutti_init_options* options, tutti_comm** comm) {
  return guarded([&] {
    if (comm == nullptr) fail(ErrorKind::InvalidArgument, "tutti_init: `comm` is NULL");
    *comm = connect(known(options, "tutti_init")).release();
  });
}

// In a function that was passed to tutti_then(), another thread waits for the operations of the communicator:
// they may run in this one.
void tutti_free(tutti_comm* comm) {
  if (comm == nullptr) return;
  if (!tutti::comm::Executor::is_in_callback()) {
    delete comm;
    return;
  }
  guarded([&] { tutti::start_thread("closing a communicator", [comm] { delete comm; }).detach(); });
}

void tutti_abort(tutti_comm* comm, const char* why) {
  if (comm == nullptr) return;
  guarded([&] {
    comm->ranks->give_up(
        Error(ErrorKind::PeerLost, first_line(why == nullptr ? "a rank has given up" : why)));
  });
}

int tutti_rank(const tutti_comm* comm) { return comm == nullptr ? -1 : comm->ranks->rank(); }
int tutti_world(const tutti_comm* comm) { return comm == nullptr ? 0 : comm->ranks->world(); }
int tutti_local_rank(const tutti_comm* comm) { return comm == nullptr ? -1 : comm->local_rank; }
int tutti_local_world(const tutti_comm* comm) { return comm == nullptr ? 0 : comm->local_world; }
const char* tutti_transport(const tutti_comm* comm) { return comm == nullptr ? "" : comm->transport.c_str(); }

tutti_status tutti_group(tutti_comm* comm, const int* ranks, int count, const char* name,
                         tutti_comm** group) {
  constexpr const char* kCall = "tutti_group";
  return guarded([&] {
    Ranks& all = ranks_of(comm, kCall);
    require_may_wait(kCall);
    if (ranks == nullptr || name == nullptr || group == nullptr || count < 1)
      fail(ErrorKind::InvalidArgument, "{}: ranks, name and group are needed", kCall);
    std::vector<int> members(ranks, ranks + count);
    bool own = false;
    for (const int rank : members) {
      require_rank(rank, all, kCall);
      if (std::count(members.begin(), members.end(), rank) > 1)
        fail(ErrorKind::InvalidArgument, "{}: rank {} is named more than once", kCall, rank);
      own = own || rank == all.rank();
    }
    if (!own)
      fail(ErrorKind::InvalidArgument, "{}: rank {} calls it, but is not one of its ranks", kCall,
           all.rank());
    auto part = std::make_unique<tutti_comm>();
    part->ranks = all.part(members, name);
    part->transport = part->ranks->name();
    part->local_rank = comm->local_rank;
    part->local_world = comm->local_world;
    *group = part.release();
  });
}

tutti_status tutti_wait(tutti_work* work) {
  return guarded([&] {
    if (work == nullptr) fail(ErrorKind::InvalidArgument, "tutti_wait: the work is NULL");
    if (!work->work.done()) require_may_wait("tutti_wait");
    work->work.wait();
  });
}

tutti_status tutti_test(tutti_work* work, int* done) {
  return guarded([&] {
    if (work == nullptr || done == nullptr)
      fail(ErrorKind::InvalidArgument, "tutti_test: an argument is NULL");
    *done = work->work.done() ? 1 : 0;
    if (*done != 0) work->work.wait();
  });
}

tutti_status tutti_then(tutti_work* work, void (*done)(void* context), void* context) {
  return guarded([&] {
    if (work == nullptr || done == nullptr)
      fail(ErrorKind::InvalidArgument, "tutti_then: an argument is NULL");
    work->work.then([done, context] { done(context); });
  });
}

void tutti_work_free(tutti_work* work) { delete work; }

uint64_t tutti_epoch(const tutti_comm* comm) {
  if (comm == nullptr || comm->ranks->epochs() == nullptr) return 0;
  return comm->ranks->epochs()->number();
}

tutti_status tutti_change_is_due(tutti_comm* comm, int* due) {
  return guarded([&] {
    Ranks& ranks = ranks_of(comm, "tutti_change_is_due");
    if (due == nullptr) fail(ErrorKind::InvalidArgument, "tutti_change_is_due: `due` is NULL");
    *due = ranks.epochs() != nullptr && ranks.epochs()->change_is_due() ? 1 : 0;
  });
}

tutti_status tutti_reconfigure(tutti_comm* comm) {
  return guarded([&] {
    Ranks& ranks = ranks_of(comm, "tutti_reconfigure");
    require_may_wait("tutti_reconfigure");
    ranks.reconfigure(ranks.failure());
    comm->transport = ranks.name();
  });
}

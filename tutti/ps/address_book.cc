#include "tutti/ps/address_book.h"

#include <algorithm>
#include <condition_variable>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/address.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/secret.h"
#include "tutti/base/text.h"
#include "tutti/base/this_host.h"
#include "tutti/base/waiting.h"
#include "tutti/cluster/roles.h"

namespace tutti::ps {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kBetweenAnnouncements{1000};
constexpr milliseconds kBetweenQuestions{50};
constexpr milliseconds kToConnect{1000};

constexpr const char* kPurpose = "ports";
// The key of the tasks that choose their ports, each in a line. Those hold their ports: "4711 ps/0 (host a,
// pid 17)".
constexpr const char* kTasks = "tasks";

Address address_in(const ClusterSpec& cluster, const Task& task) {
  return parse_address(cluster.address(task.job, task.index));
}

std::shared_ptr<comm::Rendezvous> book_of_chief(const ClusterSpec& cluster, const Task& task,
                                                const net::Credentials& credentials, milliseconds patience) {
  const auto deadline = deadline_after(patience);
  const Task chief = workers_of(cluster).front();
  const Address address = address_in(cluster, chief);
  auto book = comm::find_tcp_rendezvous({.hosts = {address.host},
                                         .port = static_cast<uint16_t>(address.port),
                                         .credentials = credentials,
                                         .purpose = kPurpose,
                                         .name = net::CertificateName::Host,
                                         .holder = name_with_address(cluster, chief),
                                         .timeout = patience})
                  .board;
  const std::vector<std::string> tasks = split(book->get(kTasks, until(deadline)), '\n');
  if (std::find(tasks.begin(), tasks.end(), task.short_name()) == tasks.end())
    fail(ErrorKind::InvalidArgument, "the chief's cluster has no {} with port 0", task.short_name());
  return book;
}

}  // namespace

bool chooses_its_port(const ClusterSpec& cluster, const Task& task) {
  if (address_in(cluster, task).port != 0) return false;
  const std::vector<Task> workers = workers_of(cluster);
  if (workers.empty() || address_in(cluster, workers.front()).port == 0) {
    fail(ErrorKind::InvalidArgument,
         "{} has port 0, and so has {}: tasks report their ports to the chief, whose own port has to be "
         "fixed. Give {} a port, or let `tutti run` choose all ports",
         task.short_name(), workers.empty() ? "every task" : workers.front().short_name(),
         workers.empty() ? "the chief" : workers.front().short_name());
  }
  return true;
}

comm::ServedRendezvous open_address_book(const Context& context) {
  const ClusterSpec& cluster = context.cluster();
  const Address own = address_in(cluster, context.task());
  const net::Credentials credentials = net::credentials_of(context.config());
  require_secret(own.host, !credentials.secret.empty() || !credentials.authority.empty(),
                 context.config().security.insecure);
  comm::ServedRendezvous book = comm::serve_tcp_rendezvous(
      {.host = own.host,
       .port = static_cast<uint16_t>(own.port),
       .credentials = credentials,
       .purpose = kPurpose,
       .report = [log = context.log()](const std::string& text) { log.warning("{}", text); },
       .farewell = milliseconds(0),
       .silence = net::kSilence});
  std::string tasks;
  for (const std::string& job : cluster.jobs()) {
    for (const int index : cluster.task_indices(job)) {
      const Task task{.job = job, .index = index};
      if (address_in(cluster, task).port == 0) tasks += task.short_name() + "\n";
    }
  }
  book.board->set(kTasks, tasks);
  return book;
}

Announcement::Announcement(const Context& context, int port) : context_(context), port_(port) {
  if (!chooses_its_port(context.cluster(), context.task())) return;
  context.log().info("listening on port {}, which is reported to the chief", port);
  thread_ = std::jthread([this](const std::stop_token& stop) { tell(stop); });
}

void Announcement::check() const {
  const std::lock_guard lock(mutex_);
  if (refused_) std::rethrow_exception(refused_);
}

// Runs until it is asked to stop, or until the chief has refused it for --start-timeout.
void Announcement::tell(const std::stop_token& stop) {
  const Task& task = context_.task();
  const std::string own =
      fmt::format("{} {} (host {}, pid {})", port_, task.short_name(), host_name(), ::getpid());
  std::shared_ptr<comm::Rendezvous> book;
  std::condition_variable_any stopped;
  Reminder reminder(context_.log());
  auto last_not_refused = Clock::now();
  while (!stop.stop_requested()) {
    try {
      if (!book)
        book = book_of_chief(context_.cluster(), task, net::credentials_of(context_.config()), kToConnect);
      if (const std::string there = book->hold(task.short_name(), own); there != own)
        fail(ErrorKind::InvalidArgument, "{} is already registered: {}", task.short_name(),
             there.substr(there.find(' ') + 1));
      last_not_refused = Clock::now();
      static_cast<void>(reminder.nobody_is_missing());
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::PeerLost) book = nullptr;
      if (error.kind() != ErrorKind::InvalidArgument) last_not_refused = Clock::now();
      if (Clock::now() >= last_not_refused + milliseconds_of(context_.config().network.start_timeout)) {
        const std::lock_guard lock(mutex_);
        refused_ = std::current_exception();
        return;
      }
      reminder.still_missing(
          {fmt::format("the chief, to which port {} is to be reported: {}", port_, error.what())});
    }
    std::unique_lock lock(mutex_);
    stopped.wait_for(lock, stop, kBetweenAnnouncements, [] { return false; });
  }
}

std::string find_address(const ClusterSpec& cluster, const Task& task, const net::Credentials& credentials,
                         milliseconds patience) {
  const auto deadline = deadline_after(patience);
  const auto book = book_of_chief(cluster, task, credentials, patience);
  do {
    if (const auto entry = book->peek(task.short_name())) {
      Address address = address_in(cluster, task);
      address.port = static_cast<int>(parse_int(entry->substr(0, entry->find(' '))).value_or(0));
      return to_string(address);
    }
    std::this_thread::sleep_for(std::min(until(deadline), kBetweenQuestions));
  } while (Clock::now() < deadline);
  fail(ErrorKind::Timeout, "{} has not reported its port to {}, the chief", name_with_address(cluster, task),
       name_with_address(cluster, workers_of(cluster).front()));
}

}  // namespace tutti::ps

#include "tools/launch/survival_guest.h"

#include <csignal>

#include <fmt/format.h>

#include "tutti/base/address.h"
#include "tutti/base/error.h"
#include "tutti/base/secret.h"
#include "tutti/cluster/identity.h"
#include "tutti/comm/board/tcp_rendezvous.h"
#include "tutti/comm/job_board.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;

// The interval between two looks for orders.
constexpr milliseconds kLookForOrders{100};

}  // namespace

SurvivalGuest::SurvivalGuest(const GuestOptions& options) : options_(options), token_(random_key()) {
  const comm::FoundRendezvous found = comm::find_tcp_rendezvous(
      {.hosts = options.addresses,
       .port = options.port,
       .credentials = {.secret = comm::members_secret(options.launch, options.secret)},
       .holder = options.keeper,
       .several_machines = options.addresses.size() > 1,
       .timeout = options.start_timeout,
       .answer = options.timeout});
  board_ = found.board;
  address_ = to_string(Address{found.host, options.port});
  if (board_->hold(host_key(options.host), token_) != token_)
    fail(ErrorKind::InvalidArgument, "tutti run: another launcher of this host is part of the job");
  lives_ = lives_of(board_->get(welcome_key(token_), options.start_timeout));
  if (lives_.size() != static_cast<size_t>(options.workers))
    fail(ErrorKind::PeerLost, "tutti run: {} needs the workers of this host no more: the job ends",
         options.keeper);
  messenger_ = std::thread([this] { keep_in_touch(); });
}

// The last reports are sent before this returns.
SurvivalGuest::~SurvivalGuest() {
  {
    const std::lock_guard lock(mutex_);
    leaves_ = true;
  }
  changed_.notify_all();
  messenger_.join();
}

void SurvivalGuest::keep_in_touch() {
  std::unique_lock lock(mutex_);
  try {
    while (!leaves_ || !reports_.empty()) {
      exchange(lock);
      changed_.wait_for(lock, kLookForOrders, [this] { return leaves_ || !reports_.empty(); });
    }
  } catch (const Error& error) {
    if (!lock.owns_lock()) lock.lock();
    lost_ = error.what();
  }
}

// Sends the reports and receives the orders. The board is used without the lock.
void SurvivalGuest::exchange(std::unique_lock<std::mutex>& lock) {
  while (!reports_.empty()) {
    const auto [key, value] = reports_.front();
    reports_.pop_front();
    lock.unlock();
    board_->set(key, value);
    lock.lock();
  }
  lock.unlock();
  const auto text = board_->peek(orders_key(token_));
  lock.lock();
  if (text) received_ = host_orders_of(*text);
}

void SurvivalGuest::report(const std::string& key, const std::string& value) {
  {
    const std::lock_guard lock(mutex_);
    reports_.emplace_back(key, value);
  }
  changed_.notify_all();
}

void SurvivalGuest::add_variables(int worker, std::map<std::string, std::string>& variables) const {
  variables[kMembersVariable] = address_;
  variables[kLifeVariable] = std::to_string(life_of(worker));
}

milliseconds SurvivalGuest::look_again() const { return kLookForOrders; }

void SurvivalGuest::ended(const EndedWorker& ended) {
  report(ended_key({ended.worker, life_of(ended.worker)}), to_text(ended));
}

void SurvivalGuest::stays_away(int worker) {
  ended({.worker = worker,
         .outcome = Outcome(SIGKILL),
         .text = fmt::format("worker/{} is not started again", worker)});
}

// A launcher that was told to end by a signal leaves the job, which goes on without its workers. For a
// failure the keeper has ended the job already.
void SurvivalGuest::stop(const JobEnd& end) {
  if (!end_) end_ = end;
}

std::vector<WorkerOrder> SurvivalGuest::look(const Say& say) {
  std::vector<WorkerOrder> orders;
  const std::lock_guard lock(mutex_);
  const auto seen = static_cast<int64_t>(known_.orders.size());
  orders.assign(received_.orders.begin() + seen, received_.orders.end());
  for (const WorkerOrder& order : orders) {
    if (order.what == WorkerOrder::What::Start)
      lives_.at(static_cast<size_t>(order.worker - options_.first_worker)) = order.life;
  }
  known_ = received_;
  if (end_) return orders;
  end_ = known_.end;
  const JobEnd alone{.exit_code = exit_code(ErrorKind::PeerLost), .signal = SIGTERM, .grace = kFailureGrace};
  if (!end_ && known_.is_lost) {
    say(
        fmt::format("{} has heard nothing from here for {:g} s, and the others have gone on: "
                    "ending the tasks of this host",
                    options_.keeper, std::chrono::duration<double>(options_.timeout).count()));
    end_ = alone;
  } else if (!end_ && !lost_.empty()) {
    say(
        fmt::format("{}, which has the list of the workers, is lost ({}): ending the tasks of "
                    "this host",
                    options_.keeper, lost_));
    end_ = alone;
  }
  return orders;
}

}  // namespace tutti

#include "tutti/c/store_meeting.h"

#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/base/this_host.h"

namespace tutti::c {

StoreMeeting::StoreMeeting(const tutti_store& store, int rank, int world, std::chrono::milliseconds timeout)
    : store_(store), rank_(rank), world_(world), deadline_(deadline_after(timeout)) {
  if (store.size < sizeof(tutti_store) || store.set == nullptr || store.get == nullptr)
    fail(ErrorKind::InvalidArgument, "tutti_init: the store has no `size`, `set` or `get`");
  if (world < 1 || rank < 0 || rank >= world)
    fail(ErrorKind::InvalidArgument, "tutti_init: there is no rank {} of {}", rank, world);
}

// Rank 0 tells all what each of them has told, so that nobody asks for more than one key but rank 0.
Identity StoreMeeting::place(const std::string& name) {
  set(fmt::format("tutti/host/{}", rank_), host_identity());
  if (rank_ == 0) {
    std::vector<std::string> hosts;
    for (int rank = 0; rank < world_; ++rank) hosts.push_back(get(fmt::format("tutti/host/{}", rank)));
    set("tutti/hosts", fmt::format("{}", fmt::join(hosts, " ")));
  }
  const std::vector<std::string> hosts = split(get("tutti/hosts"), ' ');
  if (hosts.size() != static_cast<size_t>(world_))
    fail(ErrorKind::InvalidArgument,
         "tutti_init: the store has the hosts of {} ranks, not of {}: each group needs keys of its own",
         hosts.size(), world_);
  Identity identity;
  identity.task = {.job = name, .index = rank_};
  identity.source = "a store";
  identity.is_chief = rank_ == 0;
  identity.membership = {.rank = rank_, .world = world_, .local_world = 0};
  for (int rank = 0; rank < world_; ++rank) {
    if (hosts[static_cast<size_t>(rank)] != hosts[static_cast<size_t>(rank_)]) continue;
    if (rank == rank_) identity.membership.local_rank = identity.membership.local_world;
    ++identity.membership.local_world;
  }
  return identity;
}

std::string StoreMeeting::share(const std::optional<std::string>& text) {
  if (text) set("tutti/board", *text);
  return get("tutti/board");
}

void StoreMeeting::set(const std::string& key, const std::string& value) {
  if (store_.set(store_.context, key.c_str(), value.c_str()) != 0)
    fail(ErrorKind::PeerLost, "the store at which the ranks meet did not take '{}'", key);
}

std::string StoreMeeting::get(const std::string& key) {
  std::string value;
  const auto take = [](void* result, const char* found) { *static_cast<std::string*>(result) = found; };
  if (store_.get(store_.context, key.c_str(), seconds(until(deadline_)), take, &value) != 0)
    fail(ErrorKind::Timeout,
         "the store at which the ranks meet has no '{}': no rank has set it in time, or the store has failed",
         key);
  return value;
}

}  // namespace tutti::c

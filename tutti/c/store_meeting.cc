#include "tutti/c/store_meeting.h"

#include <algorithm>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/secret.h"
#include "tutti/base/text.h"
#include "tutti/base/this_host.h"

namespace tutti::c {
namespace {

using std::chrono::milliseconds;

constexpr const char* kHosts = "tutti/hosts";
constexpr const char* kTwice = "tutti/twice";  // the text of a rank that has found its number taken
// How long a rank that has waited in vain looks for what others have found out.
constexpr milliseconds kGrace{1000};
constexpr milliseconds kGlance{1};  // a store may take 0 for no timeout

std::string key_of(int rank) { return fmt::format("tutti/host/{}", rank); }

std::string own_name() {
  return fmt::format("process {} on {} ({:.8})", getpid(), host_name(), random_key());
}

}  // namespace

StoreMeeting::StoreMeeting(const tutti_store& store, int rank, int world, milliseconds timeout)
    : store_(store),
      rank_(rank),
      world_(world),
      deadline_(deadline_after(timeout)),
      self_{host_identity(), own_name()} {
  if (store.size < sizeof(tutti_store) || store.set == nullptr || store.get == nullptr)
    fail(ErrorKind::InvalidArgument, "tutti_init: the store has no `size`, `set` or `get`");
  if (world < 1 || rank < 0 || rank >= world)
    fail(ErrorKind::InvalidArgument, "tutti_init: there is no rank {} of {}", rank, world);
}

std::string StoreMeeting::text_of(const Guest& guest) { return guest.host + ";" + guest.who; }

StoreMeeting::Guest StoreMeeting::guest_of(const std::string& text) {
  const size_t end = std::min(text.find(';'), text.size());
  return {text.substr(0, end), text.substr(std::min(end + 1, text.size()))};
}

// Rank 0 tells all what each of them has told, so that nobody asks for more than one key but rank 0. Of two
// processes with one rank, the first to write its key finds the other there. Rank 0 therefore writes its own
// key before it looks for the list of another rank 0, and reads its own key after it has written the list:
// two of them cannot both miss the other.
std::vector<StoreMeeting::Guest> StoreMeeting::all_guests() {
  set(key_of(rank_), text_of(self_));
  if (rank_ == 0 && find(kHosts, kGlance))
    fail(ErrorKind::InvalidArgument,
         "tutti_init: another process has already been rank 0 with this store. Give each process a rank of "
         "its "
         "own, and each group keys of its own");
  if (rank_ == 0) {
    std::vector<std::string> texts;
    for (int rank = 0; rank < world_; ++rank) texts.push_back(get(key_of(rank)));
    set(kHosts, fmt::format("{}", fmt::join(texts, "\n")));
  }
  std::vector<Guest> guests;
  for (const std::string& text : split(get(kHosts), '\n')) guests.push_back(guest_of(text));
  if (rank_ == 0) guests.front() = guest_of(get(key_of(0)));
  return guests;
}

Identity StoreMeeting::place(const std::string& name) {
  const std::vector<Guest> guests = all_guests();
  if (guests.size() != static_cast<size_t>(world_))
    fail(ErrorKind::InvalidArgument,
         "tutti_init: the store has the hosts of {} ranks, not of {}: each group needs keys of its own",
         guests.size(), world_);
  if (const Guest& there = guests[static_cast<size_t>(rank_)]; there != self_)
    refuse_second(rank_, there, self_);
  Identity identity;
  identity.task = {.job = name, .index = rank_};
  identity.source = "a store";
  identity.is_chief = rank_ == 0;
  identity.membership = {.rank = rank_, .world = world_, .local_world = 0};
  for (int rank = 0; rank < world_; ++rank) {
    if (guests[static_cast<size_t>(rank)].host != self_.host) continue;
    if (rank == rank_) identity.membership.local_rank = identity.membership.local_world;
    ++identity.membership.local_world;
  }
  return identity;
}

std::string StoreMeeting::share(const std::optional<std::string>& text) {
  if (text) set("tutti/board", *text);
  return get("tutti/board");
}

void StoreMeeting::refuse_second(int rank, const Guest& one, const Guest& other) {
  const std::string text = fmt::format(
      "tutti_init: two processes are rank {} of {}: {} and {}. Give each process a rank of its own", rank,
      world_, one.who, other.who);
  set(kTwice, text);
  fail(ErrorKind::InvalidArgument, "{}", text);
}

// If a rank is missing, another one may have been given twice.
void StoreMeeting::missing(const std::string& key) {
  if (const auto there = find(key_of(rank_), kGrace); there && guest_of(*there) != self_)
    refuse_second(rank_, self_, guest_of(*there));
  if (const auto text = find(kTwice, kGrace)) fail(ErrorKind::InvalidArgument, "{}", *text);
  fail(ErrorKind::Timeout,
       "the store at which the ranks meet has no '{}': no rank has set it in time, or the store has failed",
       key);
}

void StoreMeeting::set(const std::string& key, const std::string& value) {
  if (store_.set(store_.context, key.c_str(), value.c_str()) != 0)
    fail(ErrorKind::PeerLost, "the store at which the ranks meet did not take '{}'", key);
}

std::optional<std::string> StoreMeeting::find(const std::string& key, milliseconds timeout) {
  std::string value;
  const auto take = [](void* result, const char* found) { *static_cast<std::string*>(result) = found; };
  if (store_.get(store_.context, key.c_str(), seconds(timeout), take, &value) != 0) return std::nullopt;
  return value;
}

std::string StoreMeeting::get(const std::string& key) {
  if (auto value = find(key, until(deadline_))) return *std::move(value);
  missing(key);
}

}  // namespace tutti::c

#include "tutti/transport/group_call.h"

#include <algorithm>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/transport/failures.h"

namespace tutti::comm {
namespace {

constexpr const char* kRanksOfGroup =
    "ranks";  // of the first call, after the name of its rank and a line feed
constexpr const char* kGroupRefused = "refused";  // the error with which the group has failed
constexpr std::chrono::milliseconds kBetweenLooks{2};

std::string called_key(int rank) { return fmt::format("called/{}", rank); }

// Throws the first error of the group's ranks.
[[noreturn]] void refuse(Rendezvous& board, ErrorKind kind, const std::string& text) {
  throw to_error(board.set_once(kGroupRefused, to_value(Error(kind, text))));
}

void require_same_ranks(Rendezvous& board, const GroupCall& call) {
  const std::string own = fmt::format("{}", fmt::join(call.ranks, " "));
  const std::string name = name_of(call.who, call.rank);
  if (board.peek(called_key(call.rank)))
    refuse(board, ErrorKind::InvalidArgument,
           fmt::format("{} has made a group of this name before: each group needs a name that no other group "
                       "has had",
                       name));
  const std::string first = board.set_once(kRanksOfGroup, name + "\n" + own);
  const size_t end = std::min(first.find('\n'), first.size());
  const std::string ranks = first.substr(std::min(end + 1, first.size()));
  if (ranks == own) return;
  refuse(
      board, ErrorKind::InvalidArgument,
      fmt::format("{} has given the ranks {} under this name, but {} gives {}: all ranks of a group have to "
                  "give the same ranks in the same order, and each group needs a name that no other group "
                  "has had",
                  first.substr(0, end), ranks, name, own));
}

}  // namespace

void meet_for_group(Rendezvous& board, const GroupCall& call) {
  const auto deadline = deadline_after(call.timeout);
  require_same_ranks(board, call);
  board.set(called_key(call.rank), "");
  std::vector<int> missing = call.ranks;
  for (;;) {
    // A rank that has ended may have called before.
    std::vector<int> gone;
    std::copy_if(missing.begin(), missing.end(), std::back_inserter(gone), call.is_gone);
    std::erase_if(missing, [&](int rank) { return board.peek(called_key(rank)).has_value(); });
    if (missing.empty()) return;
    if (const auto refused = board.peek(kGroupRefused)) throw to_error(*refused);
    for (const int rank : gone) {
      if (std::find(missing.begin(), missing.end(), rank) != missing.end())
        refuse(board, ErrorKind::PeerLost,
               fmt::format("{} is gone. Its own output says why", name_of(call.who, rank)));
    }
    if (std::chrono::steady_clock::now() >= deadline) break;
    std::this_thread::sleep_for(kBetweenLooks);
  }
  refuse(board, ErrorKind::Timeout,
         fmt::format("{} did not call for it within {:g} s, as all of its ranks have to. Look at what it is "
                     "doing, or raise --timeout",
                     fmt::join(names_of(call.who, missing), " and "), seconds(call.timeout)));
}

}  // namespace tutti::comm

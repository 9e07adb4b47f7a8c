#include "tutti/transport/member_epochs.h"

#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tutti::comm {

MemberEpochs::MemberEpochs(MembersBoard list) : list_(std::move(list)), joining_(list_.self().life > 0) {}

// The launcher that keeps the list may be lost before this worker has read it.
void MemberEpochs::enter_first(const Connect& connect) {
  Members first;
  try {
    first = list_.at(0);
  } catch (const Error& error) {
    if (!is_loss(error)) throw;
    first = list_.await_next(call(error));
  }
  enter(std::move(first), connect);
}

void MemberEpochs::enter_next(const std::optional<Error>& why, const Connect& connect) {
  is_planned_ = !why;
  enter(list_.await_next(call(why)), connect);
}

std::string MemberEpochs::change() const {
  if (before_.by_rank.empty()) return "";
  std::vector<std::string> parts;
  const auto add = [&parts](const Members& all, const Members& others, const char* what) {
    for (const Member& member : all.by_rank)
      if (!others.rank_of(member)) parts.push_back(fmt::format("worker/{} {}", member.worker, what));
  };
  add(before_, members_, is_planned_ ? kHasLeft : kIsGone);
  add(members_, before_, kHasCome);
  return parts.empty() ? kSameWorkers : fmt::format("{}", fmt::join(parts, ", "));
}

Call MemberEpochs::call(const std::optional<Error>& why) const {
  Call call{.epoch = members_.epoch, .why = joining_ ? Call::Why::Joins : Call::Why::Change};
  if (why) call.why = why->kind() == ErrorKind::Timeout ? Call::Why::Late : Call::Why::Lost;
  if (why) call.text = why->what();
  if (call.why == Call::Why::Joins) call.facts = list_.facts();
  return call;
}

// Connects the members. If some are lost before, connects the members of a later epoch.
void MemberEpochs::enter(Members members, const Connect& connect) {
  before_ = members_;
  for (;;) {
    members_ = std::move(members);
    const auto board = std::make_shared<EpochBoard>(list_.board(), members_.epoch);
    try {
      connect(members_, board);
      board->connected();
      list_.set_entered(members_.epoch);
      joining_ = false;
      return;
    } catch (const Error& error) {
      if (!is_loss(error)) throw;
      is_planned_ = false;
      members = list_.await_next(call(error));
    }
  }
}

}  // namespace tutti::comm

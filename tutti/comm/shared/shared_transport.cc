#include "tutti/comm/shared/shared_transport.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>

#include <fmt/format.h>

#include "tutti/base/check.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/cluster/threads.h"
#include "tutti/comm/flat.h"

namespace tutti::comm {
namespace {

// Size of half a staging buffer: larger ones do not fit into the cache, smaller ones need more sync points.
constexpr size_t kStagingHalf = size_t{1} << 20;
// Up to this size every rank adds everything itself, which needs one sync point instead of two.
constexpr size_t kSmall = size_t{16} << 10;
constexpr size_t kPipeBytes = size_t{64} << 10;
constexpr size_t kCauseBytes = 2000;
// The deadlines of `Failures` come so much earlier than those here, which hold in case it cannot enforce
// them.
constexpr std::chrono::seconds kBoardIsEarlier{60};
constexpr uint32_t kNone = 0;
constexpr uint32_t kBeingWritten = 1;
constexpr uint32_t kWritten = 2;

size_t aligned(size_t size) { return (size + 63) / 64 * 64; }

// Each cell of an exchange begins with a head, which contains the size of the whole message.
constexpr size_t kCellHead = 64;

void put_in_cell(std::byte* cell, ConstBytes message, size_t done, size_t room) {
  const uint64_t size = message.size();
  std::memcpy(cell, &size, sizeof(size));
  if (size > done) std::memcpy(cell + kCellHead, message.data() + done, std::min(room, size - done));
}

uint64_t size_in_cell(const std::byte* cell) {
  uint64_t size = 0;
  std::memcpy(&size, cell, sizeof(size));
  return size;
}

// Returns false if the message has a different size than expected.
bool take_from_cell(const std::byte* cell, Bytes message, size_t done, size_t room) {
  if (size_in_cell(cell) != message.size()) return false;
  if (message.size() > done)
    std::memcpy(message.data() + done, cell + kCellHead, std::min(room, message.size() - done));
  return true;
}

template <size_t N>
void copy_text(char (&to)[N], const char* from) {
  std::strncpy(to, from, N - 1);
  to[N - 1] = '\0';
}

}  // namespace

// The part of a notice that all other ranks read in every operation. It is stored next to the rank's signal,
// in the same cache line.
struct OperationSummary {
  uint64_t key;     // hash of the operation
  uint64_t offset;  // of the data in `block`
  int32_t block;    // the number of the block with the data; -1: not in a block
  bool more;        // exchange: there will be another round
};

struct OperationNotice {
  OperationSummary summary;
  OperationLabel label;  // read only after a failure
};

struct ControlSlot {
  alignas(64) Signal meetings;  // number of sync points this rank has reached
  OperationSummary summaries[2];
  alignas(64) OperationLabel label[2];
  // The sends and recvs for which the rank has been waiting, and the one that began to wait last.
  std::atomic<uint32_t> messages;
  OperationLabel message;
  std::atomic<uint32_t> left;  // the rank has closed its end
  // Used only in the slot of rank 0: why the group has failed.
  std::atomic<uint32_t> failed;
  uint32_t kind;
  char cause[kCauseBytes];
};

// Carries messages from one rank to another, piece by piece: the sender fills it, the receiver empties it.
struct RankPipe {
  alignas(64) Signal filled;
  alignas(64) Signal emptied;
  OperationLabel label;  // of the sender
  std::byte bytes[kPipeBytes];
};

SharedTransport::SharedTransport(std::unique_ptr<SharedMemory> memory, std::chrono::milliseconds timeout)
    : memory_(std::move(memory)),
      rank_(memory_->rank()),
      world_(memory_->world()),
      timeout_(timeout),
      wait_options_(wait_options(have_a_core_each(world_))) {
  const size_t ranks = static_cast<size_t>(world_);
  const size_t size = aligned(sizeof(ControlSlot)) + ranks * sizeof(RankPipe) + 2 * kStagingHalf;
  control_ = memory_->allocate(size, operation_of("connect", {}, timeout_), [] {});
}

SharedTransport::~SharedTransport() { slot(rank_).left.store(1, std::memory_order_release); }

void SharedTransport::join(Failures& failures, std::vector<int> ranks) {
  joined_.emplace(Membership{failures, std::move(ranks)});
}

// Registers an operation with the failures that were joined, if any were, as long as the result exists.
// `peer` is the other rank of a message; -1: all take part.
std::unique_ptr<Failures::Watch> SharedTransport::watch(const Operation& operation, int peer) {
  if (!joined_) return nullptr;
  std::vector<int> peers;
  for (int r = 0; r < world_; ++r) {
    if (peer < 0 ? r != rank_ : r == peer) peers.push_back(joined_->ranks[static_cast<size_t>(r)]);
  }
  const auto party = peer < 0 ? Failures::Party::All : Failures::Party::Two;
  return std::unique_ptr<Failures::Watch>(
      new Failures::Watch(joined_->failures.watch(operation, party, std::move(peers))));
}

std::chrono::steady_clock::time_point SharedTransport::deadline_of(const Operation& operation) const {
  return joined_ ? operation.deadline + kBoardIsEarlier : operation.deadline;
}

ControlSlot& SharedTransport::slot(int rank) const {
  return *reinterpret_cast<ControlSlot*>(control_.parts[static_cast<size_t>(rank)]);
}

// RankPipes are in the receiver's part of the control block.
RankPipe& SharedTransport::pipe_between(int from, int to) const {
  std::byte* boxes = control_.parts[static_cast<size_t>(to)] + aligned(sizeof(ControlSlot));
  return reinterpret_cast<RankPipe*>(boxes)[from];
}

// Returns the half that was not used last time. Every rank has finished reading that one before it reaches
// the first sync point of this use, and therefore before it is filled again.
std::vector<std::byte*> SharedTransport::next_staging() {
  const size_t from_end = (staging_uses_++ % 2 + 1) * kStagingHalf;
  std::vector<std::byte*> halves = control_.parts;
  for (std::byte*& half : halves) half += control_.size - from_end;
  return halves;
}

OperationNotice SharedTransport::make_notice(const Operation& operation) const {
  OperationNotice notice{.summary = {}, .label = OperationLabel(operation)};
  notice.summary.key = key_of(operation);
  notice.summary.block = -1;
  return notice;
}

// A rank may be one sync point ahead of another that still reads its last notice, but never two.
void SharedTransport::meet(const OperationNotice& notice, const Operation& operation) {
  ControlSlot& mine = slot(rank_);
  mine.summaries[(meetings_ + 1) % 2] = notice.summary;
  mine.label[(meetings_ + 1) % 2] = notice.label;
  ++meetings_;
  mine.meetings.advance();
  const SpanScope span(operation.timeline, Activity::Wait, "wait for peers", operation.step);
  for (int r = 0; r < world_; ++r) {
    if (r == rank_) continue;
    wait(slot(r).meetings, meetings_, wait_options_,
         [&] { look_up([this] { return behind(); }, operation); });
  }
  require_same_operation();
}

std::vector<int> SharedTransport::behind() const {
  std::vector<int> ranks;
  for (int r = 0; r < world_; ++r) {
    if (!slot(r).meetings.reached(meetings_)) ranks.push_back(r);
  }
  return ranks;
}

const OperationSummary& SharedTransport::summary_of(int rank) const {
  return slot(rank).summaries[meetings_ % 2];
}

void SharedTransport::require_same_operation() {
  for (int r = 1; r < world_; ++r) {
    if (summary_of(r).key == summary_of(0).key) continue;
    fail_together(ErrorKind::InvalidArgument,
                  different_operations(memory_->who(0), slot(0).label[meetings_ % 2], memory_->who(r),
                                       slot(r).label[meetings_ % 2]));
  }
}

void SharedTransport::throw_if_failed() {
  if (joined_) return joined_->failures.throw_if_failed();
  const ControlSlot& first = slot(0);
  if (first.failed.load(std::memory_order_acquire) == kWritten)
    throw Error(static_cast<ErrorKind>(first.kind), first.cause);
}

// Only the first failure is recorded.
void SharedTransport::leave_word(ErrorKind kind, const std::string& text) {
  ControlSlot& first = slot(0);
  uint32_t none = kNone;
  if (!first.failed.compare_exchange_strong(none, kBeingWritten)) return;
  first.kind = static_cast<uint32_t>(kind);
  copy_text(first.cause, text.c_str());
  first.failed.store(kWritten, std::memory_order_release);
}

void SharedTransport::abandon(const std::string& text) {
  joined_ ? joined_->failures.give_up(text) : leave_word(ErrorKind::PeerLost, text);
}

void SharedTransport::fail_together(ErrorKind kind, const std::string& text) {
  if (joined_) joined_->failures.report(kind, text);
  leave_word(kind, text);
  // A rank that is writing its failure finishes at once, unless it was killed. Then this rank's text is used.
  for (int i = 0; i < 1000; ++i) throw_if_failed();
  fail(kind, "{}", text);
}

// Describes what the rank announced last. The text could be garbled if the rank announced something else
// meanwhile, but it is only read when the rank is late.
std::string SharedTransport::last_seen(int rank) const {
  const ControlSlot& theirs = slot(rank);
  const uint32_t meetings = theirs.meetings.count.load(std::memory_order_acquire);
  std::string text = meetings == 0 ? "it has not started any operation yet"
                                   : "it was last seen in " + theirs.label[meetings % 2].text();
  if (theirs.messages.load(std::memory_order_acquire) == 0) return text;
  const std::string message = theirs.message.text();
  return meetings == 0 ? "it waits in " + message : text + ", and waits in " + message;
}

// Waits for the other rank of a message, and tells all ranks so if that takes long.
void SharedTransport::wait_for(int peer, Signal& signal, uint32_t target, const OperationLabel& label,
                               const Operation& operation) {
  bool announced = false;
  const auto announce = [&] {
    const std::lock_guard lock(mutex_);
    slot(rank_).message = label;
    slot(rank_).messages.fetch_add(1, std::memory_order_release);
    announced = true;
  };
  const Late late = [&] { return signal.reached(target) ? std::vector<int>() : std::vector{peer}; };
  wait(signal, target, wait_options_, [&] {
    if (!announced) announce();
    look_up(late, operation);
  });
  if (announced) slot(rank_).messages.fetch_sub(1, std::memory_order_release);
}

bool SharedTransport::is_gone(int rank) const {
  return memory_->has_ended(rank) || slot(rank).left.load(std::memory_order_acquire) != 0;
}

void SharedTransport::look_up(const Late& late, const Operation& operation) {
  throw_if_failed();
  std::vector<int> gone = late();
  std::erase_if(gone, [this](int r) { return !is_gone(r); });
  // A rank that was late at the first check may have arrived since, and then left.
  const std::vector<int> missed = late();
  for (const int r : gone) {
    if (std::find(missed.begin(), missed.end(), r) == missed.end()) continue;
    const bool has_left = slot(r).left.load(std::memory_order_acquire) != 0;
    fail_together(ErrorKind::PeerLost,
                  fmt::format("{} failed: {} is gone; {}. Its own output says why{}", describe(operation),
                              memory_->who(r), last_seen(r), has_left ? why_not_there(operation) : ""));
  }
  look_for_stopped(missed, operation);
  if (missed.empty() || std::chrono::steady_clock::now() <= deadline_of(operation)) return;
  std::string missing;
  for (const int r : missed) {
    missing += fmt::format("{}nothing from {} for {:g} s, {}{}", missing.empty() ? "" : "; ", memory_->who(r),
                           seconds(operation.timeout), last_seen(r),
                           memory_->is_stopped(r) ? "; it has been stopped by a signal" : "");
  }
  fail_together(ErrorKind::Timeout,
                fmt::format("{} failed: {}. Look at what it is doing, or raise --timeout{}",
                            describe(operation), missing, why_not_there(operation)));
}

// An operation whose timeout is longer than usual, since a rank may be busy with other work, still waits only
// the usual timeout for a rank that is stopped.
void SharedTransport::look_for_stopped(const std::vector<int>& late, const Operation& operation) {
  constexpr std::chrono::seconds kGap{1};  // a rank not seen stopped for this long has continued
  if (operation.timeout <= timeout_) return;
  const auto now = std::chrono::steady_clock::now();
  for (const int r : late) {
    if (!memory_->is_stopped(r)) continue;
    std::chrono::steady_clock::time_point since;
    {
      const std::lock_guard lock(mutex_);
      Stopped& stopped = stopped_.try_emplace(r, Stopped{now, now}).first->second;
      if (now - stopped.seen > kGap) stopped.since = now;
      stopped.seen = now;
      since = stopped.since;
    }
    if (now - since < timeout_) continue;
    fail_together(
        ErrorKind::Timeout,
        fmt::format(
            "{} failed: {} has been stopped by a signal for {:g} s; {}. Continue it (kill -CONT), or end "
            "the job",
            describe(operation), memory_->who(r), seconds(timeout_), last_seen(r)));
  }
}

void SharedTransport::sync(const Operation& operation) {
  const auto watched = watch(operation);
  meet(make_notice(operation), operation);
}

// Each rank's staging half has one cell per receiver.
void SharedTransport::exchange(std::span<const ConstBytes> sends, std::span<const Bytes> recvs,
                               const Operation& operation) {
  const auto watched = watch(operation);
  const size_t ranks = static_cast<size_t>(world_);
  const size_t stride = kStagingHalf / ranks / 64 * 64;
  const size_t cell = stride - kCellHead;
  size_t longest = 0;
  for (size_t r = 0; r < ranks; ++r) longest = std::max({longest, sends[r].size(), recvs[r].size()});
  const size_t me = static_cast<size_t>(rank_);
  for (size_t done = 0;; done += cell) {
    const std::vector<std::byte*> halves = next_staging();
    {
      const SpanScope span(operation.timeline, Activity::Copy, "copy in", operation.step);
      for (size_t r = 0; r < ranks; ++r) {
        if (r != me) put_in_cell(halves[me] + r * stride, sends[r], done, cell);
      }
    }
    OperationNotice notice = make_notice(operation);
    notice.summary.more = longest > done + cell;
    meet(notice, operation);
    const SpanScope span(operation.timeline, Activity::Copy, "copy out", operation.step);
    bool more = false;
    for (size_t r = 0; r < ranks; ++r) {
      more = more || summary_of(static_cast<int>(r)).more;
      if (r != me && !take_from_cell(halves[r] + me * stride, recvs[r], done, cell))
        fail_other_size(operation, recvs[r].size(), static_cast<int>(r),
                        size_in_cell(halves[r] + me * stride));
    }
    if (!more) return;
  }
}

void SharedTransport::fail_other_size(const Operation& operation, size_t expected, int from, size_t sent) {
  fail_together(ErrorKind::InvalidArgument,
                fmt::format("{} failed: {} expects {} bytes from {}, which sends {}{}", describe(operation),
                            memory_->who(rank_), expected, memory_->who(from), sent, kSameEverywhere));
}

void SharedTransport::send(ConstBytes bytes, int to, const Operation& operation) {
  const auto watched = watch(operation, to);
  RankPipe& pipe = pipe_between(rank_, to);
  const auto filled = [&] { return pipe.filled.count.load(std::memory_order_relaxed); };
  const OperationLabel label(operation);
  for (size_t done = 0; done < bytes.size(); done += kPipeBytes) {
    {
      const SpanScope span(operation.timeline, Activity::Wait, "wait for the receiver", operation.step);
      wait_for(to, pipe.emptied, filled(), label, operation);
    }
    const size_t size = std::min(kPipeBytes, bytes.size() - done);
    pipe.label = label;
    std::memcpy(pipe.bytes, bytes.data() + done, size);
    pipe.filled.advance();
  }
}

void SharedTransport::recv(Bytes bytes, int from, const Operation& operation) {
  const auto watched = watch(operation, from);
  RankPipe& pipe = pipe_between(from, rank_);
  const auto next = [&] { return pipe.emptied.count.load(std::memory_order_relaxed) + 1; };
  const OperationLabel label(operation);
  for (size_t done = 0; done < bytes.size(); done += kPipeBytes) {
    {
      const SpanScope span(operation.timeline, Activity::Wait, "wait for the sender", operation.step);
      wait_for(from, pipe.filled, next(), label, operation);
    }
    if (const std::string text = other_message(memory_->who(rank_), label, memory_->who(from), pipe.label);
        !text.empty())
      fail_together(ErrorKind::InvalidArgument, text);
    std::memcpy(bytes.data() + done, pipe.bytes, std::min(kPipeBytes, bytes.size() - done));
    pipe.emptied.advance();
  }
}

std::unique_ptr<Transport> SharedTransport::split(const std::vector<int>& ranks, const std::string& name) {
  return std::make_unique<SharedTransport>(memory_->split(ranks, name), timeout_);
}

SharedBlock SharedTransport::allocate(size_t size, const Operation& asked) {
  const auto watched = watch(asked);
  Operation operation = asked;
  operation.deadline = deadline_of(asked);
  std::erase_if(given_, [](const auto& entry) { return entry.second.memory.expired(); });
  SharedBlock block;
  try {
    block = memory_->allocate(size, operation, [this] { throw_if_failed(); });
  } catch (const Error& error) {
    fail_together(error.kind(), error.what());
  }
  given_[allocations_++] = {block.parts, block.size, block.memory};
  sync(operation);
  return block;
}

SharedTransport::BlockOffset SharedTransport::place_of(const std::byte* data, size_t size) const {
  for (const auto& [number, block] : given_) {
    const std::byte* begin = block.parts[static_cast<size_t>(rank_)];
    // After a block was freed, other data may be at its address.
    if (data >= begin && data + size <= begin + block.size && !block.memory.expired())
      return {number, static_cast<uint64_t>(data - begin)};
  }
  return {-1, 0};
}

SharedBlock SharedTransport::everyones(const std::byte* mine, size_t size) const {
  const BlockOffset place = place_of(mine, size);
  if (place.block < 0) return {};
  const Given& given = given_.at(place.block);
  SharedBlock block{given.parts, size, given.memory.lock()};
  for (std::byte*& part : block.parts) part += place.offset;
  return block;
}

void SharedTransport::combine(std::span<const SlicedSum> sums, const Operation& operation) {
  const auto watched = watch(operation);
  if (!sums.empty() && sums.front().shared) {
    for (const SlicedSum& sum : sums) {
      std::vector<const std::byte*> inputs;
      std::vector<std::byte*> outputs;
      for (const torch::Tensor& input : sum.inputs) inputs.push_back(bytes_of(input).data());
      for (const torch::Tensor& output : sum.outputs) outputs.push_back(bytes_of(output).data());
      add_slice(sum, std::move(inputs), std::move(outputs), operation);
    }
    sync(operation);
    return;
  }
  for (const SlicedSum& sum : sums) {
    if (sum.is_all_reduce(world_)) {
      all_reduce(sum, operation);
    } else {
      Transport::combine({&sum, 1}, operation);
    }
  }
}

// Adds this rank's slice, given the inputs of all sources.
void SharedTransport::add_slice(const SlicedSum& sum, std::vector<const std::byte*> inputs,
                                std::vector<std::byte*> outputs, const Operation& operation) const {
  const SpanScope span(operation.timeline, Activity::Reduce, "add", operation.step);
  const Slice slice =
      sum.scatters() ? sum.slices[static_cast<size_t>(rank_)] : slice_of(sum.reduction.count, rank_, world_);
  const size_t begin = static_cast<size_t>(slice.begin) * c10::elementSize(sum.reduction.type);
  for (const std::byte*& input : inputs) input += begin;
  for (std::byte*& output : outputs) output += sum.scatters() ? 0 : begin;
  Reduction reduction = sum.reduction;
  reduction.count = slice.size();
  comm::reduce(inputs, outputs, reduction, sum.sources->program);
}

void SharedTransport::all_reduce(const SlicedSum& sum, const Operation& operation) {
  const Bytes input = bytes_of(sum.inputs[static_cast<size_t>(rank_)]);
  std::byte* const output = bytes_of(sum.outputs[0]).data();
  const BlockOffset place = input.data() == output ? place_of(output, input.size()) : BlockOffset{-1, 0};
  OperationNotice notice = make_notice(with_whole(operation, sum.reduction));
  notice.summary.block = place.block;
  notice.summary.offset = place.offset;
  if (input.size() <= kSmall) {
    const std::vector<std::byte*> halves = next_staging();
    if (!input.empty()) std::memcpy(halves[static_cast<size_t>(rank_)], input.data(), input.size());
    const std::vector<const std::byte*> inputs(halves.begin(), halves.end());
    meet(notice, operation);
    const SpanScope span(operation.timeline, Activity::Reduce, "add", operation.step);
    comm::reduce(inputs, {&output, 1}, sum.reduction, sum.sources->program);
    return;
  }
  meet(notice, operation);
  bool in_place = true;
  for (int r = 0; r < world_; ++r) {
    const OperationSummary& other = summary_of(r);
    in_place = in_place && other.block >= 0 && other.block == summary_of(0).block &&
               other.offset == summary_of(0).offset;
  }
  if (!in_place) return reduce_staged(sum, operation);
  std::vector<std::byte*> parts = given_.at(place.block).parts;
  for (std::byte*& part : parts) part += place.offset;
  add_slice(sum, {parts.begin(), parts.end()}, parts, operation);
  sync(operation);
}

// Per chunk: all ranks copy in, each adds its slice into its own staging buffer, and all ranks copy out.
void SharedTransport::reduce_staged(const SlicedSum& sum, const Operation& operation) {
  const std::byte* const input = bytes_of(sum.inputs[static_cast<size_t>(rank_)]).data();
  std::byte* const output = bytes_of(sum.outputs[0]).data();
  const size_t element = c10::elementSize(sum.reduction.type);
  SlicedSum part = sum;
  for (size_t done = 0; done < static_cast<size_t>(sum.reduction.count) * element; done += kStagingHalf) {
    const size_t size = std::min(kStagingHalf, static_cast<size_t>(sum.reduction.count) * element - done);
    part.reduction.count = static_cast<int64_t>(size / element);
    const std::vector<std::byte*> parts = next_staging();
    std::byte* const mine = parts[static_cast<size_t>(rank_)];
    {
      const SpanScope span(operation.timeline, Activity::Copy, "copy in", operation.step);
      std::memcpy(mine, input + done, size);
    }
    sync(operation);
    add_slice(part, {parts.begin(), parts.end()}, {mine}, operation);
    sync(operation);
    const SpanScope span(operation.timeline, Activity::Copy, "copy out", operation.step);
    for (int r = 0; r < world_; ++r) {
      const Slice theirs = slice_of(part.reduction.count, r, world_);
      const size_t begin = static_cast<size_t>(theirs.begin) * element;
      std::memcpy(output + done + begin, parts[static_cast<size_t>(r)] + begin,
                  static_cast<size_t>(theirs.size()) * element);
    }
  }
}

}  // namespace tutti::comm

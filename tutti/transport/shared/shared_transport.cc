#include "tutti/transport/shared/shared_transport.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "tutti/base/cores.h"
#include "tutti/base/error.h"
#include "tutti/transport/shared/cells.h"
#include "tutti/transport/shared/control_region.h"

namespace tutti::comm {
namespace {

size_t aligned(size_t size) { return (size + 63) / 64 * 64; }

}  // namespace

SharedTransport::SharedTransport(std::unique_ptr<SharedMemory> memory, std::chrono::milliseconds timeout)
    : memory_(std::move(memory)),
      rank_(memory_->rank()),
      world_(memory_->world()),
      timeout_(timeout),
      wait_options_(wait_options(have_a_core_each(world_))) {
  const size_t ranks = static_cast<size_t>(world_);
  const size_t size = aligned(sizeof(ControlSlot)) + ranks * sizeof(RankPipe) + 2 * staging_half(world_);
  control_ = memory_->allocate(size, operation_of("connect", {}, timeout_), [] {});
}

SharedTransport::~SharedTransport() { slot(rank_).left.store(1, std::memory_order_release); }

ControlSlot& SharedTransport::slot(int rank) const {
  return *reinterpret_cast<ControlSlot*>(control_.parts[static_cast<size_t>(rank)]);
}

// RankPipes are in the receiver's part of the control region.
RankPipe& SharedTransport::pipe_between(int from, int to) const {
  std::byte* boxes = control_.parts[static_cast<size_t>(to)] + aligned(sizeof(ControlSlot));
  return reinterpret_cast<RankPipe*>(boxes)[from];
}

// Returns the half that was not used last time. Every rank has finished reading that one before it reaches
// the first sync point of this use, and therefore before it is filled again.
std::vector<std::byte*> SharedTransport::next_staging() {
  const size_t from_end = (staging_uses_++ % 2 + 1) * staging_half(world_);
  std::vector<std::byte*> halves = control_.parts;
  for (std::byte*& half : halves) half += control_.size - from_end;
  return halves;
}

// A rank may be one sync point ahead of another that still reads its last notice, but never two.
//
// A rank that comes after the others have given up finds all of them here, so it has to look for the failure.
// It does so before it arrives: nobody has passed this sync point then, so no rank fails at one that all
// others have passed.
void SharedTransport::meet(const Operation& operation, OperationSummary summary) {
  throw_if_failed();
  summary.key = key_of(operation);
  ControlSlot& mine = slot(rank_);
  ++meetings_;
  mine.summaries[meetings_ % 2] = summary;
  mine.label[meetings_ % 2] = OperationLabel(operation);
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

void SharedTransport::sync(const Operation& operation) {
  const auto watched = watch(operation);
  meet(operation, {});
}

void SharedTransport::completed() { slot(rank_).completed.store(meetings_, std::memory_order_release); }

void SharedTransport::exchange(std::span<const ConstBytes> sends, std::span<const Bytes> recvs,
                               const Operation& operation) {
  move(sends, recvs, operation);
}

void SharedTransport::all_gather(std::span<const Array> outputs, const Array& input,
                                 const Operation& operation) {
  copy(input, outputs[static_cast<size_t>(rank_)]);
  std::vector<Bytes> recvs;
  for (const Array& output : outputs) recvs.push_back(output.bytes());
  const ConstBytes own = input.bytes();
  if (world_ > 1) move({&own, 1}, recvs, operation);
}

void SharedTransport::broadcast(const Array& values, int root, const Operation& operation) {
  std::vector<Bytes> recvs(static_cast<size_t>(world_));
  if (rank_ != root) recvs[static_cast<size_t>(root)] = values.bytes();
  const ConstBytes own = rank_ == root ? values.bytes() : ConstBytes();
  if (world_ > 1) move({&own, 1}, recvs, operation);
}

// Sends one message to each rank, or the same one to all.
void SharedTransport::move(std::span<const ConstBytes> sends, std::span<const Bytes> recvs,
                           const Operation& operation) {
  const auto watched = watch(operation);
  const bool same = sends.size() == 1;
  const Cells cells(staging_half(world_), sends.size());
  size_t longest = 0;
  for (const ConstBytes& bytes : sends) longest = std::max(longest, bytes.size());
  for (const Bytes& bytes : recvs) longest = std::max(longest, bytes.size());
  const auto me = static_cast<size_t>(rank_);
  for (size_t done = 0;; done += cells.room()) {
    const std::vector<std::byte*> halves = next_staging();
    {
      const SpanScope span(operation.timeline, Activity::Copy, "copy in", operation.step);
      for (size_t r = 0; r < sends.size(); ++r) {
        if (same || r != me) cells.put(halves[me], r, sends.subspan(r, 1), done);
      }
    }
    meet(operation, {.more = longest > done + cells.room()});
    const SpanScope span(operation.timeline, Activity::Copy, "copy out", operation.step);
    bool more = false;
    for (size_t r = 0; r < recvs.size(); ++r) {
      more = more || summary_of(static_cast<int>(r)).more;
      if (r == me) continue;
      const size_t cell = same ? 0 : me;
      if (const size_t size = cells.size(halves[r], cell); size != recvs[r].size())
        fail_other_size(operation, recvs[r].size(), static_cast<int>(r), size);
      const Bytes chunk = cells.part(recvs[r], done);
      if (!chunk.empty()) std::memcpy(chunk.data(), cells.at(halves[r], cell, 0), chunk.size());
    }
    if (!more) return;
  }
}

void SharedTransport::fail_other_size(const Operation& operation, size_t expected, int from, size_t sent) {
  fail_together(ErrorKind::InvalidArgument,
                fmt::format("{} failed: {} expects {} bytes from {}, which sends {}{}", describe(operation),
                            memory_->who(rank_), expected, memory_->who(from), sent, kSameEverywhere));
}

// Waits for the other rank of a message, and tells all ranks so if that takes long.
void SharedTransport::wait_for(int peer, Signal& signal, uint32_t target, const OperationLabel& label,
                               const Operation& operation) {
  throw_if_failed();  // there may still be a message of a rank that has failed since
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

void SharedTransport::send(ConstBytes bytes, int to, const Operation& operation) {
  const auto watched = watch(operation, to);
  RankPipe& pipe = pipe_between(rank_, to);
  const auto filled = [&] { return pipe.filled.count.load(std::memory_order_relaxed); };
  const OperationLabel label(operation);
  size_t done = 0;
  do {
    {
      const SpanScope span(operation.timeline, Activity::Wait, "wait for the receiver", operation.step);
      wait_for(to, pipe.emptied, filled(), label, operation);
    }
    const size_t size = std::min(kPipeBytes, bytes.size() - done);
    pipe.label = label;
    if (size > 0) std::memcpy(pipe.bytes, bytes.data() + done, size);
    pipe.filled.advance();
    done += kPipeBytes;
  } while (done < bytes.size());
}

void SharedTransport::recv(Bytes bytes, int from, const Operation& operation) {
  const auto watched = watch(operation, from);
  RankPipe& pipe = pipe_between(from, rank_);
  const auto next = [&] { return pipe.emptied.count.load(std::memory_order_relaxed) + 1; };
  const OperationLabel label(operation);
  size_t done = 0;
  do {
    {
      const SpanScope span(operation.timeline, Activity::Wait, "wait for the sender", operation.step);
      wait_for(from, pipe.filled, next(), label, operation);
    }
    if (const std::string text = other_message(memory_->who(rank_), label, memory_->who(from), pipe.label);
        !text.empty())
      fail_together(ErrorKind::InvalidArgument, text);
    if (!bytes.empty())
      std::memcpy(bytes.data() + done, pipe.bytes, std::min(kPipeBytes, bytes.size() - done));
    pipe.emptied.advance();
    done += kPipeBytes;
  } while (done < bytes.size());
}

OperationLabel SharedTransport::await_message(int from, const Operation& operation) {
  const auto watched = watch(operation, from);
  RankPipe& pipe = pipe_between(from, rank_);
  const SpanScope span(operation.timeline, Activity::Wait, "wait for the sender", operation.step);
  wait_for(from, pipe.filled, pipe.emptied.count.load(std::memory_order_relaxed) + 1,
           OperationLabel(operation), operation);
  return pipe.label;
}

std::optional<OperationLabel> SharedTransport::next_message(int from) {
  throw_if_failed();
  RankPipe& pipe = pipe_between(from, rank_);
  const uint32_t next = pipe.emptied.count.load(std::memory_order_relaxed) + 1;
  if (pipe.filled.reached(next)) return pipe.label;
  if (memory_->has_ended(from) && !has_left(from)) {
    Operation operation = operation_of("recv", {}, timeout_);
    operation.peer = kAnyRank;
    look_up([&] { return pipe.filled.reached(next) ? std::vector<int>() : std::vector{from}; }, operation);
  }
  return std::nullopt;
}

std::unique_ptr<Transport> SharedTransport::split(const std::vector<int>& ranks, const std::string& name) {
  return std::make_unique<SharedTransport>(memory_->split(ranks, name), timeout_);
}

SharedRegion SharedTransport::allocate(size_t size, const Operation& asked) {
  const auto watched = watch(asked);
  Operation operation = asked;
  operation.deadline = deadline_of(asked);
  std::erase_if(given_, [](const auto& entry) { return entry.second.memory.expired(); });
  SharedRegion region;
  try {
    region = memory_->allocate(size, operation, [this] { throw_if_failed(); });
  } catch (const Error& error) {
    fail_together(error.kind(), error.what());
  }
  given_[allocations_++] = {region.parts, region.size, region.memory};
  sync(operation);
  return region;
}

SharedTransport::RegionOffset SharedTransport::place_of(const std::byte* data, size_t size) const {
  for (const auto& [number, region] : given_) {
    const std::byte* begin = region.parts[static_cast<size_t>(rank_)];
    // After a region was freed, other data may be at its address.
    if (data >= begin && data + size <= begin + region.size && !region.memory.expired())
      return {number, static_cast<uint64_t>(data - begin)};
  }
  return {-1, 0};
}

SharedRegion SharedTransport::everyones(const std::byte* mine, size_t size) const {
  const RegionOffset place = place_of(mine, size);
  if (place.region < 0) return {};
  const Given& given = given_.at(place.region);
  SharedRegion region{given.parts, size, given.memory.lock()};
  for (std::byte*& part : region.parts) part += place.offset;
  return region;
}

}  // namespace tutti::comm

#include "tutti/rpc/grpc/pump.h"

#include <algorithm>
#include <chrono>
#include <grpcpp/completion_queue.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/time.h>

#include "tutti/base/error.h"

namespace tutti::rpc {
namespace {

gpr_timespec grpc_time(Clock::time_point deadline) {
  if (deadline == Clock::time_point::max()) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
  const auto left = std::max(deadline - Clock::now(), Clock::duration::zero());
  const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(nanoseconds, GPR_TIMESPAN));
}

[[noreturn]] void fail_late() { fail(ErrorKind::Timeout, "no message arrived in time"); }

}  // namespace

Pump::Pump(grpc::CompletionQueue& queue, Hooks& hooks)
    : queue_(queue), hooks_(hooks), incoming_(std::make_unique<grpc::ByteBuffer>()) {
  writing_.ok = true;
}

Pump::~Pump() = default;

void Pump::read_on() { hooks_.start_read(*incoming_, reading_.start()); }

// Processes one completed operation. Returns false at the deadline.
bool Pump::step(Clock::time_point deadline) {
  void* tag = nullptr;
  bool ok = false;
  if (queue_.AsyncNext(&tag, &ok, grpc_time(deadline)) != grpc::CompletionQueue::GOT_EVENT) return false;
  auto* operation = static_cast<CompletionTag*>(tag);
  operation->pending = false;
  operation->ok = ok;
  return true;
}

bool Pump::await(const CompletionTag& operation, Clock::time_point deadline) {
  while (operation.pending) {
    if (!step(deadline)) return false;
  }
  return true;
}

// gRPC allows only one pending write.
bool Pump::await_room(Clock::time_point deadline) {
  if (!await(writing_, deadline)) return false;
  if (!writing_.ok) hooks_.fail_ended();
  return true;
}

void Pump::write(std::span<const ConstBytes> parts, Clock::time_point deadline) {
  if (!await_room(deadline)) fail_late();
  hooks_.start_write(leases_.lend(parts), writing_.start());
}

void Pump::flush(Clock::time_point deadline) {
  // gRPC may need this thread to move bytes, so it sleeps only for short intervals.
  constexpr std::chrono::milliseconds kNap{1};
  if (!await_room(deadline)) fail_late();
  while (!leases_.all_returned()) {
    if (!step(std::min(deadline, Clock::now() + kNap)) && Clock::now() >= deadline) fail_late();
  }
}

Chunk Pump::read(Clock::time_point deadline) {
  if (!await(reading_, deadline)) fail_late();
  if (!reading_.ok) hooks_.fail_ended();
  Chunk chunk = chunk_of(*incoming_);
  incoming_->Clear();
  read_on();
  return chunk;
}

bool Pump::ended() {
  while (step(Clock::now())) {
  }
  return !reading_.pending && !reading_.ok;
}

void Pump::drain() {
  await(reading_, Clock::time_point::max());
  await(writing_, Clock::time_point::max());
}

void Pump::await_leases() { leases_.await(); }

}  // namespace tutti::rpc

#include "tutti/rpc/grpc/bytes.h"

#include <atomic>
#include <condition_variable>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>
#include <mutex>
#include <utility>
#include <vector>

#include "tutti/base/check.h"
#include "tutti/base/error.h"

namespace tutti::rpc {
namespace {

// Shorter parts are cheaper to copy than to lease.
constexpr size_t kWorthLending = size_t{8} << 10;

}  // namespace

struct SliceLeases::State {
  std::mutex mutex;
  std::condition_variable returned;
  size_t out = 0;  // guarded by mutex

  static void give_back(void* slice);
};

// The lease of one slice.
struct SliceLeases::Slice {
  // Shared, because returning the last slice may be the last use of the state.
  std::shared_ptr<State> state;
  // gRPC passes it between threads under its own locks, which a sanitizer does not see.
  std::atomic<bool> lent = false;
};

void SliceLeases::State::give_back(void* slice) {
  const std::unique_ptr<Slice> mine(static_cast<Slice*>(slice));
  TUTTI_CHECK(mine->lent.load(std::memory_order_acquire), "a slice that was never lent");
  const std::lock_guard lock(mine->state->mutex);
  if (--mine->state->out == 0) mine->state->returned.notify_all();
}

SliceLeases::SliceLeases() : state_(std::make_shared<State>()) {}
SliceLeases::~SliceLeases() = default;

grpc::ByteBuffer SliceLeases::lend(std::span<const ConstBytes> parts) {
  std::vector<grpc::Slice> slices;
  std::string copied;
  const auto end_copied = [&] {
    if (!copied.empty()) slices.emplace_back(copied);
    copied.clear();
  };
  for (const ConstBytes part : parts) {
    if (part.size() < kWorthLending) {
      copied.append(reinterpret_cast<const char*>(part.data()), part.size());
      continue;
    }
    end_copied();
    auto slice = std::make_unique<Slice>();
    slice->state = state_;
    slice->lent.store(true, std::memory_order_release);
    {
      const std::lock_guard lock(state_->mutex);
      ++state_->out;
    }
    // The interface takes no pointer to const, but gRPC only reads the bytes it sends.
    slices.emplace_back(const_cast<std::byte*>(part.data()), part.size(), &State::give_back, slice.release());
  }
  end_copied();
  return {slices.data(), slices.size()};
}

bool SliceLeases::all_returned() const {
  const std::lock_guard lock(state_->mutex);
  return state_->out == 0;
}

void SliceLeases::await() const {
  std::unique_lock lock(state_->mutex);
  state_->returned.wait(lock, [&] { return state_->out == 0; });
}

Chunk chunk_of(const grpc::ByteBuffer& bytes) {
  auto slices = std::make_shared<std::vector<grpc::Slice>>();
  const grpc::Status status = bytes.Dump(slices.get());
  if (!status.ok())
    fail(ErrorKind::DataLoss, "gRPC cannot read the received bytes: {}", status.error_message());
  Chunk chunk;
  chunk.parts.reserve(slices->size());
  for (const grpc::Slice& slice : *slices)
    chunk.parts.emplace_back(reinterpret_cast<const std::byte*>(slice.begin()), slice.size());
  chunk.owner = std::move(slices);
  return chunk;
}

}  // namespace tutti::rpc

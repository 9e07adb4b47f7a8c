#include "tutti/rpc/buffers.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <list>
#include <mutex>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/rpc/arena.h"

namespace tutti::rpc {
namespace {

constexpr size_t kAlignment = 64;
// Smaller buffers are cheap to get from the heap.
constexpr size_t kWorthKeeping = size_t{256} << 10;
// More free buffers than this are kept only if all are not larger than that. Freed buffers are not always
// reused by the heap, because they are aligned.
constexpr size_t kMostKept = 16;
constexpr size_t kMostIdle = size_t{256} << 20;
constexpr std::chrono::milliseconds kTurn{100};

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<std::byte, Free>;

struct Buffer {
  size_t size = 0;
  Memory memory;
};

Memory make_memory(size_t size) {
  const size_t whole = std::max(kAlignment, round_to(size, kAlignment));
  return Memory(static_cast<std::byte*>(std::aligned_alloc(kAlignment, whole)));
}

}  // namespace

struct Buffers::State {
  explicit State(size_t all) : budget(all) {}

  const size_t budget;
  std::mutex mutex;
  std::condition_variable changed;
  size_t out = 0;             // bytes in use; this and all below: guarded by mutex
  size_t idle = 0;            // bytes of free buffers that are kept for reuse
  std::list<Buffer> kept;     // the free buffers, the newest first
  std::list<size_t> waiting;  // sizes of the waiting requests, in order of arrival

  bool has_room(size_t bytes) const { return bytes <= budget - out; }
  bool await_room(std::unique_lock<std::mutex>& lock, size_t bytes,
                  const std::function<bool()>& keep_waiting);
  Buffer claim(size_t bytes);
  void drop_idle(size_t bytes);
  void give_back(Buffer buffer);
};

// Returns false if the caller stopped waiting.
bool Buffers::State::await_room(std::unique_lock<std::mutex>& lock, size_t bytes,
                                const std::function<bool()>& keep_waiting) {
  if (waiting.empty() && has_room(bytes)) return true;
  const auto place = waiting.insert(waiting.end(), bytes);
  const auto my_turn = [&] { return place == waiting.begin() && has_room(bytes); };
  bool wanted = true;
  while (wanted && !changed.wait_for(lock, kTurn, my_turn)) {
    lock.unlock();
    wanted = keep_waiting();
    lock.lock();
  }
  waiting.erase(place);
  // The requests behind this one may have room now.
  changed.notify_all();
  return wanted;
}

// Takes a kept buffer that is not much larger than needed, or reserves room for a new one.
Buffer Buffers::State::claim(size_t bytes) {
  const auto found = std::find_if(kept.begin(), kept.end(), [&](const Buffer& buffer) {
    return buffer.size >= bytes && buffer.size - bytes <= bytes / kSpareOfBuffer && has_room(buffer.size);
  });
  Buffer buffer{bytes, {}};
  if (found != kept.end()) {
    buffer = std::move(*found);
    kept.erase(found);
    idle -= buffer.size;
  } else {
    drop_idle(bytes);
  }
  out += buffer.size;
  return buffer;
}

// Frees kept buffers until `bytes` more can be in use.
void Buffers::State::drop_idle(size_t bytes) {
  while (!kept.empty() && (bytes > budget - out - idle || (kept.size() > kMostKept && idle > kMostIdle))) {
    idle -= kept.back().size;
    kept.pop_back();
  }
}

void Buffers::State::give_back(Buffer buffer) {
  {
    const std::lock_guard lock(mutex);
    out -= buffer.size;
    if (buffer.memory != nullptr && buffer.size >= kWorthKeeping) {
      idle += buffer.size;
      kept.push_front(std::move(buffer));
      drop_idle(0);
    }
    if (waiting.empty()) return;
  }
  changed.notify_all();
}

Buffers::Buffers(size_t budget) : state_(std::make_shared<State>(budget)) {}

std::shared_ptr<std::byte> Buffers::allocate(size_t bytes, const std::function<bool()>& keep_waiting) {
  if (bytes > state_->budget)
    fail(ErrorKind::Overloaded, "a message of {} is larger than the limit of {} for all messages together",
         human_bytes(bytes), human_bytes(state_->budget));
  Buffer buffer;
  {
    std::unique_lock lock(state_->mutex);
    if (!state_->await_room(lock, bytes, keep_waiting)) return nullptr;
    buffer = state_->claim(bytes);
  }
  const size_t size = buffer.size;
  if (buffer.memory == nullptr) buffer.memory = make_memory(size);
  if (buffer.memory == nullptr) {
    state_->give_back({size, {}});
    fail(ErrorKind::Overloaded, "no memory for a message of {}", human_bytes(bytes));
  }
  return {buffer.memory.release(), [state = state_, size](std::byte* used) {
            state->give_back({size, Memory(used)});
          }};
}

std::shared_ptr<std::byte> Buffers::allocate(size_t bytes) {
  auto memory = allocate(bytes, [] { return false; });
  if (memory == nullptr) fail(ErrorKind::Overloaded, "no room for a message of {} now", human_bytes(bytes));
  return memory;
}

}  // namespace tutti::rpc

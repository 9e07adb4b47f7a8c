#include "tutti/rpc/arena.h"

#include <cerrno>
#include <fcntl.h>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>

#include <fmt/format.h>

#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/memory.h"
#include "tutti/base/random_key.h"
#include "tutti/base/text.h"
#include "tutti/rpc/arena_head.h"

namespace tutti::rpc {
namespace {

FileDescriptor make_shared_memory(size_t bytes) {
  FileDescriptor memory(memfd_create(kArenaFile, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (memory.get() < 0 || ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0)
    fail_errno(errno, fmt::format("creating an arena of {}", human_bytes(bytes)));
  // Sealed, so that a process that maps it can rely on its size: no access gets a SIGBUS from truncation.
  if (fcntl(memory.get(), F_ADD_SEALS, kArenaSeals) != 0) fail_errno(errno, "sealing an arena");
  return memory;
}

// Returns `bytes`, halved until so much address space is available.
size_t mappable(size_t bytes) {
  constexpr size_t kLeast = size_t{64} << 20;
  for (; bytes > kLeast; bytes /= 2) {
    void* const mapped = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) continue;
    munmap(mapped, bytes);
    break;
  }
  return round_to(bytes, kArenaPage);
}

std::byte* map(const FileDescriptor& memory, size_t bytes) {
  void* const mapped =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, memory.get(), 0);
  if (mapped == MAP_FAILED) fail_errno(errno, fmt::format("mapping an arena of {}", human_bytes(bytes)));
  return static_cast<std::byte*>(mapped);
}

}  // namespace

struct Arena::Impl {
  explicit Impl(size_t bytes) : size(bytes), memory(make_shared_memory(bytes)), base(map(memory, bytes)) {}
  ~Impl() { munmap(base, size); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  ArenaHead& head() const { return *reinterpret_cast<ArenaHead*>(base); }

  const size_t size;
  const FileDescriptor memory;
  std::byte* const base;
  std::string name;
  std::mutex mutex;
  size_t used = kArenaPage;  // guarded by mutex
};

Arena::Arena(size_t capacity)
    : impl_(std::make_unique<Impl>(
          mappable(kArenaPage + round_to(std::max<size_t>(capacity, 1), kArenaPage)))) {
  const std::string nonce = random_key();
  TUTTI_CHECK(nonce.size() == kNonceSize, "{} digits", nonce.size());
  nonce.copy(impl_->head().nonce, kNonceSize);
  impl_->head().used = impl_->used;
  impl_->name = fmt::format("{}/{}/{}", getpid(), impl_->memory.get(), nonce);
}

Arena::~Arena() = default;

std::span<std::byte> Arena::allocate(size_t bytes) {
  const std::lock_guard lock(impl_->mutex);
  const size_t left = impl_->size - impl_->used;
  if (bytes > left)
    fail(ErrorKind::Overloaded, "{} do not fit into the shared memory of this connection, which has {} left",
         human_bytes(bytes), human_bytes(left));
  const size_t begin = impl_->used;
  const size_t taken = round_to(bytes, kArenaPage);
  allocate_pages(impl_->memory.get(), begin, taken);
  impl_->used += taken;
  impl_->head().used = impl_->used;
  return {impl_->base + begin, bytes};
}

bool Arena::contains(std::span<const std::byte> bytes) const {
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
  const auto first = reinterpret_cast<uintptr_t>(impl_->base);
  return begin >= first + kArenaPage && begin - first <= impl_->size &&
         bytes.size() <= impl_->size - (begin - first);
}

size_t Arena::offset_of(std::span<const std::byte> bytes) const {
  TUTTI_CHECK(contains(bytes), "{} bytes", bytes.size());
  return static_cast<size_t>(bytes.data() - impl_->base);
}

std::string Arena::name() const { return impl_->name; }

}  // namespace tutti::rpc

#include "tutti/rpc/arena.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>
#include <string_view>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/memory.h"
#include "tutti/base/secret.h"
#include "tutti/base/text.h"

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

// Returns the path of a descriptor of another process, or "" if it is not an arena. Checked before opening,
// because opening another kind of file may have side effects.
std::string path_of(int64_t pid, int64_t descriptor) {
  std::string path = fmt::format("/proc/{}/fd/{}", pid, descriptor);
  std::array<char, 64> target{};
  const auto size = readlink(path.c_str(), target.data(), target.size());
  const std::string_view is(target.data(), static_cast<size_t>(std::max<ssize_t>(size, 0)));
  return is.starts_with(fmt::format("/memfd:{}", kArenaFile)) ? path : "";
}

// Returns its size, or 0 if the file does not have the properties of an arena.
size_t size_of(int descriptor) {
  struct stat status {};
  if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) return 0;
  if ((fcntl(descriptor, F_GET_SEALS) & kArenaSeals) != kArenaSeals) return 0;
  return status.st_size > static_cast<off_t>(kArenaPage) ? static_cast<size_t>(status.st_size) : 0;
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

std::shared_ptr<const Mapping> Mapping::attach(const std::string& name) {
  const auto parts = split(name, '/');
  if (parts.size() != 3) return nullptr;
  const auto pid = parse_int(parts[0]);
  const auto number = parse_int(parts[1]);
  if (!pid || !number || *pid <= 0 || *number < 0) return nullptr;
  const std::string path = path_of(*pid, *number);
  if (path.empty()) return nullptr;
  const FileDescriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  const size_t size = file.get() < 0 ? 0 : size_of(file.get());
  if (size == 0) return nullptr;
  void* const base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file.get(), 0);
  if (base == MAP_FAILED) return nullptr;
  const auto mapping = std::make_shared<const Mapping>(static_cast<std::byte*>(base), size);
  const auto* head = static_cast<const ArenaHead*>(base);
  return std::string_view(head->nonce, kNonceSize) == parts[2] ? mapping : nullptr;
}

Mapping::~Mapping() { munmap(base_, size_); }

std::span<std::byte> Mapping::at(uint64_t offset, uint64_t bytes) const {
  // The other process writes this number and could lie, but a wrong number only makes pages of its own file
  // accessible.
  const uint64_t end = std::min<uint64_t>(reinterpret_cast<const ArenaHead*>(base_)->used, size_);
  if (offset < kArenaPage || offset > end || bytes > end - offset)
    fail(ErrorKind::DataLoss, "a piece at offset {} with {} bytes is not in the arena of {} bytes", offset,
         bytes, end);
  return {base_ + offset, static_cast<size_t>(bytes)};
}

}  // namespace tutti::rpc

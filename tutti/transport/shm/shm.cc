#include "tutti/transport/shm/shm.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <fstream>
#include <functional>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/memory.h"
#include "tutti/base/text.h"
#include "tutti/transport/failures.h"
#include "tutti/transport/group_call.h"
#include "tutti/transport/shared/shared_memory.h"
#include "tutti/transport/shared/shared_transport.h"

namespace tutti::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstWait{1};
constexpr milliseconds kLongestWait{20};

struct Peer {
  pid_t pid = 0;  // 0: not known yet
  std::string who = "";
  FileDescriptor handle = FileDescriptor();  // readable once the process has ended; none for this process
};

// The mappings of one region, by rank.
class Mappings {
 public:
  Mappings(size_t ranks, size_t size) : parts_(ranks, nullptr), size_(size) {}
  ~Mappings() {
    for (std::byte* part : parts_) {
      if (part != nullptr) munmap(part, size_);
    }
  }
  Mappings(const Mappings&) = delete;
  Mappings& operator=(const Mappings&) = delete;

  void map(size_t rank, int descriptor) {
    void* memory = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (memory == MAP_FAILED) fail_errno(errno, fmt::format("mapping {} bytes of shared memory", size_));
    parts_[rank] = static_cast<std::byte*>(memory);
  }
  const std::vector<std::byte*>& parts() const { return parts_; }

 private:
  std::vector<std::byte*> parts_;
  const size_t size_;
};

FileDescriptor make_memory(size_t size) {
  FileDescriptor memory(memfd_create("tutti", MFD_CLOEXEC));
  if (memory.get() < 0 || ftruncate(memory.get(), static_cast<off_t>(size)) != 0)
    fail_errno(errno, fmt::format("allocating {} bytes of shared memory", size));
  allocate_pages(memory.get(), 0, size);
  return memory;
}

// Returns the letter that /proc shows for the state of a process; ' ' if it has ended.
char state_of(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(") ");
  return name_end == std::string::npos || name_end + 2 >= line.size() ? ' ' : line[name_end + 2];
}

ino_t inode_of(const FileDescriptor& file, const std::string& what) {
  struct stat status {};
  if (fstat(file.get(), &status) != 0) fail_errno(errno, what);
  return status.st_ino;
}

// Returns a descriptor that is readable once the process has ended; -1 if it has already ended.
FileDescriptor watch_process(pid_t pid) {
  FileDescriptor handle(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (handle.get() < 0 && errno != ESRCH)
    fail_errno(errno, fmt::format("watching process {} (pidfd_open, in Linux since 5.3; a container's "
                                  "seccomp profile may forbid it; --comm tcp does not need it)",
                                  pid));
  return handle;
}

class ShmMemory final : public SharedMemory {
 public:
  ShmMemory(std::shared_ptr<Rendezvous> rendezvous, const ShmOptions& options)
      : rendezvous_(std::move(rendezvous)), options_(options) {
    const Operation operation = operation_of("connect", {}, options_.timeout);
    rendezvous_->set(key("pid", options_.rank), std::to_string(getpid()));
    for (int r = 0; r < options_.world; ++r) peers_.push_back({.who = name_of(options_.who, r)});
    for (int r = 0; r < options_.world; ++r) meet_peer(r, operation);
  }

  std::string name() const override { return "shm"; }
  int rank() const override { return options_.rank; }
  int world() const override { return options_.world; }
  const std::string& who(int rank) const override { return peers_[static_cast<size_t>(rank)].who; }

  SharedRegion allocate(size_t size, const Operation& operation,
                        const std::function<void()>& look_up) override {
    const size_t number = next_region_++;
    const size_t ranks = static_cast<size_t>(options_.world);
    const auto mappings = std::make_shared<Mappings>(ranks, size);
    const FileDescriptor memory = make_memory(size);
    const std::string what = fmt::format("region/{}", number);
    rendezvous_->set(key(what, options_.rank),
                     fmt::format("{} {} {}", memory.get(), inode_of(memory, "shared memory"), size));
    // Every rank checks all sizes before it opens any region, so that all report a difference alike.
    std::vector<Region> regions;
    for (int r = 0; r < options_.world; ++r)
      regions.push_back(region_of(await(what, r, operation, look_up), r, size));
    for (size_t r = 0; r < ranks; ++r) {
      const int rank = static_cast<int>(r);
      mappings->map(r, rank == options_.rank ? memory.get() : open_region(regions[r], rank, operation).get());
    }
    // This rank's descriptor may be closed once all ranks have opened it.
    const std::string opened = fmt::format("opened/{}", number);
    rendezvous_->set(key(opened, options_.rank), "yes");
    for (int r = 0; r < options_.world; ++r) await(opened, r, operation, look_up);
    return {mappings->parts(), size, mappings};
  }

  bool has_ended(int rank) override {
    pollfd end{peers_[static_cast<size_t>(rank)].handle.get(), POLLIN, 0};
    return end.fd >= 0 && poll(&end, 1, 0) > 0;
  }

  bool is_stopped(int rank) override { return state_of(peers_[static_cast<size_t>(rank)].pid) == 'T'; }

  std::unique_ptr<SharedMemory> split(const std::vector<int>& ranks, const std::string& name) override {
    ShmOptions options = options_;
    options.world = static_cast<int>(ranks.size());
    options.rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), options_.rank) - ranks.begin());
    options.who = names_of(options_.who, ranks);
    std::vector<std::string> all;
    for (const Peer& peer : peers_) all.push_back(peer.who);
    auto board = with_prefix(rendezvous_, name + "/");
    meet_for_group(*board, {.ranks = ranks,
                            .rank = options_.rank,
                            .who = all,
                            .timeout = options_.timeout,
                            .is_gone = [this](int rank) { return has_ended(rank); }});
    return std::make_unique<ShmMemory>(std::move(board), options);
  }

 private:
  // The memory of another process.
  struct Region {
    int64_t descriptor;
    ino_t inode;
  };

  static std::string key(const std::string& what, int rank) { return fmt::format("shm/{}/{}", what, rank); }

  Peer& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }

  void meet_peer(int rank, const Operation& operation) {
    peer(rank).pid = static_cast<pid_t>(numbers_of(await("pid", rank, operation, [] {}), 1, rank)[0]);
    peer(rank).who += fmt::format(" (pid {})", peer(rank).pid);
    if (rank == options_.rank) return;
    peer(rank).handle = watch_process(peer(rank).pid);
    if (peer(rank).handle.get() < 0) lost(rank, operation);
  }

  // Waits for the entry of a rank on the board and returns it.
  std::string await(const std::string& what, int rank, const Operation& operation,
                    const std::function<void()>& look_up) {
    for (milliseconds pause = kFirstWait;; pause = std::min(2 * pause, kLongestWait)) {
      const bool ended = has_ended(rank);
      if (auto value = rendezvous_->peek(key(what, rank))) return *std::move(value);
      look_up();
      if (ended) lost(rank, operation);
      if (std::chrono::steady_clock::now() >= operation.deadline)
        fail(ErrorKind::Timeout,
             "{} failed: nothing from {} for {:g} s. Look at what it is doing, or raise --timeout",
             describe(operation), who(rank), seconds(operation.timeout));
      std::this_thread::sleep_for(pause);
    }
  }

  [[noreturn]] void lost(int rank, const Operation& operation) const {
    fail(ErrorKind::PeerLost, "{} failed: {} is gone. Its own output says why", describe(operation),
         who(rank));
  }

  std::vector<int64_t> numbers_of(const std::string& text, size_t count, int rank) const {
    std::vector<int64_t> numbers;
    const std::vector<std::string> fields = tutti::split(text, ' ');
    for (const std::string& field : fields) {
      if (const auto number = parse_int(field)) numbers.push_back(*number);
    }
    if (fields.size() != count || numbers.size() != count)
      fail(ErrorKind::DataLoss, "the entry of {} on the board of the ranks was not written by Tutti: '{}'",
           who(rank), text);
    return numbers;
  }

  Region region_of(const std::string& text, int rank, size_t size) const {
    const std::vector<int64_t> numbers = numbers_of(text, 3, rank);
    if (static_cast<size_t>(numbers[2]) != size)
      fail(ErrorKind::InvalidArgument, "{} allocates {} bytes, but {} allocates {}", who(options_.rank), size,
           who(rank), numbers[2]);
    return {numbers[0], static_cast<ino_t>(numbers[1])};
  }

  FileDescriptor open_region(const Region& region, int rank, const Operation& operation) {
    const std::string path = fmt::format("/proc/{}/fd/{}", peer(rank).pid, region.descriptor);
    FileDescriptor memory(open(path.c_str(), O_RDWR | O_CLOEXEC));
    // The process has ended, has given up and closed the memory, or its pid is now used by another process.
    if (memory.get() < 0 && (errno == ENOENT || errno == ESRCH)) lost(rank, operation);
    if (memory.get() < 0)
      fail_errno(errno, fmt::format("opening the shared memory of {} ({})", who(rank), path));
    if (inode_of(memory, path) != region.inode) lost(rank, operation);
    return memory;
  }

  const std::shared_ptr<Rendezvous> rendezvous_;
  const ShmOptions options_;
  std::vector<Peer> peers_;
  size_t next_region_ = 0;
};

}  // namespace

std::unique_ptr<Transport> shm_transport(std::shared_ptr<Rendezvous> rendezvous, const ShmOptions& options) {
  return std::make_unique<SharedTransport>(std::make_unique<ShmMemory>(std::move(rendezvous), options),
                                           options.timeout);
}

void check_shared_memory() {
  const FileDescriptor memory = make_memory(4096);
  const std::string path = fmt::format("/proc/{}/fd/{}", getpid(), memory.get());
  const FileDescriptor again(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (again.get() < 0) fail_errno(errno, fmt::format("opening {}", path));
  watch_process(getpid());
}

}  // namespace tutti::comm

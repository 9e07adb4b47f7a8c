#include "tutti/comm/shm/shm.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/comm/shared/shared_memory.h"
#include "tutti/comm/shared/shared_transport.h"

namespace tutti::comm {
namespace {

struct Peer {
  pid_t pid;
  std::string who;
  FileDescriptor handle;  // readable as soon as the process has ended; of our own none
};

// The mappings of one block, by rank.
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
    fail_errno(errno, fmt::format("making {} bytes of shared memory", size));
  return memory;
}

ino_t inode_of(const FileDescriptor& file, const std::string& what) {
  struct stat status {};
  if (fstat(file.get(), &status) != 0) fail_errno(errno, what);
  return status.st_ino;
}

class ShmMemory final : public SharedMemory {
 public:
  ShmMemory(std::shared_ptr<Rendezvous> rendezvous, const ShmOptions& options)
      : rendezvous_(std::move(rendezvous)), options_(options) {
    rendezvous_->set(key("who", options_.rank), Json{{"pid", getpid()}, {"who", options_.who}}.dump());
    for (int r = 0; r < options_.world; ++r) peers_.push_back(meet_peer(r));
  }

  std::string name() const override { return "shm"; }
  int rank() const override { return options_.rank; }
  int world() const override { return options_.world; }
  const std::string& who(int rank) const override { return peers_[static_cast<size_t>(rank)].who; }

  SharedBlock allocate(size_t size, const Operation& operation) override {
    const size_t number = next_block_++;
    const size_t ranks = static_cast<size_t>(options_.world);
    const auto mappings = std::make_shared<Mappings>(ranks, size);
    const FileDescriptor memory = make_memory(size);
    publish(number, memory, size);
    for (size_t r = 0; r < ranks; ++r) {
      if (static_cast<int>(r) == options_.rank) {
        mappings->map(r, memory.get());
      } else {
        mappings->map(r, open_block(number, static_cast<int>(r), size, operation).get());
      }
    }
    // Ours may be closed when all have opened it.
    rendezvous_->set(key(fmt::format("opened/{}", number), options_.rank), "yes");
    for (int r = 0; r < options_.world; ++r)
      rendezvous_->get(key(fmt::format("opened/{}", number), r), operation.timeout);
    return {mappings->parts(), size, mappings};
  }

  bool has_ended(int rank) override {
    pollfd end{peers_[static_cast<size_t>(rank)].handle.get(), POLLIN, 0};
    return end.fd >= 0 && poll(&end, 1, 0) > 0;
  }

  std::unique_ptr<SharedMemory> split(const std::vector<int>& ranks, const std::string& name) override {
    ShmOptions options = options_;
    options.world = static_cast<int>(ranks.size());
    options.rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), options_.rank) - ranks.begin());
    return std::make_unique<ShmMemory>(with_prefix(rendezvous_, name + "/"), options);
  }

 private:
  static std::string key(const std::string& what, int rank) { return fmt::format("shm/{}/{}", what, rank); }

  Peer meet_peer(int rank) {
    const Json json = Json::parse(rendezvous_->get(key("who", rank), options_.timeout));
    Peer peer{json.at("pid").get<pid_t>(), "", FileDescriptor()};
    peer.who = fmt::format("{} (pid {})", json.at("who").get<std::string>(), peer.pid);
    if (rank == options_.rank) return peer;
    peer.handle = FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)));
    if (peer.handle.get() < 0) fail(ErrorKind::PeerLost, "{} has ended before all were there", peer.who);
    return peer;
  }

  void publish(size_t number, const FileDescriptor& memory, size_t size) {
    const Json json{{"fd", memory.get()}, {"inode", inode_of(memory, "shared memory")}, {"size", size}};
    rendezvous_->set(key(fmt::format("block/{}", number), options_.rank), json.dump());
  }

  FileDescriptor open_block(size_t number, int rank, size_t size, const Operation& operation) {
    const Json json =
        Json::parse(rendezvous_->get(key(fmt::format("block/{}", number), rank), operation.timeout));
    if (json.at("size").get<size_t>() != size) {
      fail(ErrorKind::InvalidArgument, "{} allocates {} bytes where {} allocates {}", who(options_.rank),
           size, who(rank), json.at("size").get<size_t>());
    }
    const std::string path =
        fmt::format("/proc/{}/fd/{}", peers_[static_cast<size_t>(rank)].pid, json.at("fd").get<int>());
    FileDescriptor memory(open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (memory.get() < 0)
      fail_errno(errno, fmt::format("opening the shared memory of {} ({})", who(rank), path));
    if (inode_of(memory, path) != json.at("inode").get<ino_t>())
      fail(ErrorKind::PeerLost, "{} has ended: {} is no longer its shared memory", who(rank), path);
    return memory;
  }

  const std::shared_ptr<Rendezvous> rendezvous_;
  const ShmOptions options_;
  std::vector<Peer> peers_;
  size_t next_block_ = 0;
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
}

std::string host_identity() {
  struct stat processes {};
  if (stat("/proc/self/ns/pid", &processes) != 0) fail_errno(errno, "reading /proc/self/ns/pid");
  std::string boot = read_file("/proc/sys/kernel/random/boot_id");
  while (!boot.empty() && boot.back() == '\n') boot.pop_back();
  return fmt::format("{}/{}", boot, processes.st_ino);
}

}  // namespace tutti::comm

#include "tutti/transport/inproc/inproc.h"

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/transport/shared/shared_memory.h"
#include "tutti/transport/shared/shared_transport.h"

namespace tutti::comm {
namespace {

struct FreeAligned {
  void operator()(std::byte* bytes) const { ::operator delete (bytes, std::align_val_t{64}); }
};

SharedRegion make_region(size_t ranks, size_t size) {
  const size_t each = (size + 63) / 64 * 64;
  auto* memory = static_cast<std::byte*>(::operator new (ranks* each + 64, std::align_val_t{64}));
  SharedRegion region;
  region.memory = std::shared_ptr<std::byte>(memory, FreeAligned());
  std::fill_n(memory, ranks * each, std::byte{0});
  for (size_t r = 0; r < ranks; ++r) region.parts.push_back(memory + r * each);
  region.size = size;
  return region;
}

// The state that the threads of a group share. The first caller creates the region, or the smaller group.
class Hub {
 public:
  explicit Hub(std::vector<std::string> who) : who_(std::move(who)) {}

  const std::vector<std::string>& who() const { return who_; }

  SharedRegion region(size_t number, size_t size, int rank) {
    const std::lock_guard lock(mutex_);
    auto place = regions_.find(number);
    if (place == regions_.end())
      place = regions_.emplace(number, Made{make_region(who_.size(), size), rank, 0}).first;
    Made& made = place->second;
    if (made.region.size != size)
      fail(ErrorKind::InvalidArgument, "{} allocates {} bytes, but {} allocates {}",
           who_[static_cast<size_t>(rank)], size, who_[static_cast<size_t>(made.by)], made.region.size);
    SharedRegion region = made.region;
    // Once all ranks have taken it, they keep it alive themselves.
    if (++made.taken == who_.size()) regions_.erase(place);
    return region;
  }

  std::shared_ptr<Hub> group(const std::vector<int>& ranks, const std::string& name) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Hub>& hub = groups_[name];
    if (!hub) {
      std::vector<std::string> who;
      for (const int rank : ranks) who.push_back(who_[static_cast<size_t>(rank)]);
      hub = std::make_shared<Hub>(std::move(who));
    }
    return hub;
  }

 private:
  struct Made {
    SharedRegion region;
    int by;
    size_t taken;  // by how many ranks
  };

  const std::vector<std::string> who_;
  std::mutex mutex_;
  std::map<size_t, Made> regions_;                      // guarded by mutex_; not yet taken by all ranks
  std::map<std::string, std::shared_ptr<Hub>> groups_;  // guarded by mutex_
};

class InprocMemory final : public SharedMemory {
 public:
  InprocMemory(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}

  std::string name() const override { return "inproc"; }
  int rank() const override { return rank_; }
  int world() const override { return static_cast<int>(hub_->who().size()); }
  const std::string& who(int rank) const override { return hub_->who()[static_cast<size_t>(rank)]; }
  SharedRegion allocate(size_t size, const Operation&, const std::function<void()>&) override {
    return hub_->region(next_region_++, size, rank_);
  }
  // A thread ends by leaving the group, which SharedTransport detects itself.
  bool has_ended(int) override { return false; }
  bool is_stopped(int) override { return false; }

  std::unique_ptr<SharedMemory> split(const std::vector<int>& ranks, const std::string& name) override {
    int rank = 0;
    while (ranks[static_cast<size_t>(rank)] != rank_) ++rank;
    return std::make_unique<InprocMemory>(hub_->group(ranks, name), rank);
  }

 private:
  const std::shared_ptr<Hub> hub_;
  const int rank_;
  size_t next_region_ = 0;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> inproc_transports(int world, std::chrono::milliseconds timeout) {
  std::vector<std::string> who;
  for (int r = 0; r < world; ++r) who.push_back(fmt::format("worker/{} (a thread)", r));
  const auto hub = std::make_shared<Hub>(std::move(who));
  std::vector<std::unique_ptr<Transport>> transports;
  for (int r = 0; r < world; ++r)
    transports.push_back(std::make_unique<SharedTransport>(std::make_unique<InprocMemory>(hub, r), timeout));
  return transports;
}

}  // namespace tutti::comm

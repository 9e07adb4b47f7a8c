#include "tutti/comm/nccl/test_device.h"

#include <algorithm>
#include <csignal>
#include <list>
#include <mutex>
#include <utility>

#include "tutti/comm/nccl/board_store.h"
#include "tutti/comm/nccl/c10d_device.h"

// LibTorch was built with this definition, but does not pass it on to programs that use it.
#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace tutti::comm::testing {
namespace {

using std::chrono::milliseconds;
using Pending = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

// Longer than any test.
constexpr milliseconds kGlooIsLater{60000};

// Operations that several threads wait for and that another thread may abort.
class Waits {
 public:
  // Returns when the operation has finished or was aborted.
  void wait(const Pending& pending) {
    std::unique_lock lock(mutex_);
    if (aborted_) return;
    const auto place = pending_.insert(pending_.end(), pending);
    lock.unlock();
    pending->wait(kGlooIsLater);
    lock.lock();
    pending_.erase(place);
  }
  void abort() {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    for (const Pending& pending : pending_) pending->abort();
  }

 private:
  std::mutex mutex_;
  std::list<Pending> pending_;  // guarded by mutex_
  bool aborted_ = false;        // guarded by mutex_
};

// The work of several messages. Gloo's work only reports its completion after it was waited for.
class GroupWork final : public c10d::Work {
 public:
  GroupWork(std::vector<Pending> messages, Waits& waits) : messages_(std::move(messages)), waits_(waits) {}
  bool isCompleted() override {
    for (const Pending& message : std::exchange(messages_, {})) waits_.wait(message);
    return true;
  }
  bool wait(milliseconds) override { return true; }

 private:
  std::vector<Pending> messages_;
  Waits& waits_;
};

// Ends a group as LibTorch 2.x does and as 1.13 does: each override applies to only one of them.
class EndsGroups : public compat::Backend {
 public:
  using compat::Backend::Backend;
  Pending endCoalescing() { return end_group(); }  // NOLINT(modernize-use-override)
  // NOLINTNEXTLINE(modernize-use-override)
  void endCoalescing(std::vector<Pending>& all) { all.push_back(end_group()); }

 protected:
  virtual Pending end_group() = 0;
};

// Gloo with messages in groups, like NCCL's. Messages outside a group are not supported.
class GlooInGroups final : public EndsGroups {
 public:
  explicit GlooInGroups(c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo)
      : EndsGroups(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)) {}

  const std::string getBackendName() const override { return "gloo"; }
  void startCoalescing() override { messages_.clear(); }
  Pending end_group() override {
    return c10::make_intrusive<GroupWork>(std::exchange(messages_, {}), waits_);
  }
  Pending send(Tensors& tensors, int to, int tag) override { return add(gloo_->send(tensors, to, tag)); }
  Pending recv(Tensors& tensors, int from, int tag) override { return add(gloo_->recv(tensors, from, tag)); }
  Pending allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return gloo_->allreduce(tensors, options);
  }
  void abort_all() { waits_.abort(); }

 private:
  Pending add(Pending message) {
    messages_.push_back(std::move(message));
    return {};
  }

  const c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  Waits waits_;
  std::vector<Pending> messages_;  // of the open group
};

}  // namespace

bool device_built() { return true; }

std::unique_ptr<OnDevice> device_over_gloo(std::shared_ptr<Rendezvous> board, int rank, int world,
                                           milliseconds timeout) {
  // Gloo may write to the socket of a rank that has ended. Python, for which it is made, ignores the signal.
  std::signal(SIGPIPE, SIG_IGN);
  auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  options->threads = 1;
  options->timeout = timeout;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  const auto group = c10::make_intrusive<GlooInGroups>(c10::make_intrusive<c10d::ProcessGroupGloo>(
      c10::make_intrusive<BoardStore>(with_prefix(board, "store/"), deadline), rank, world, options));
  C10dBackend backend{.group = group,
                      .name = "device",
                      .takes = [](const torch::Tensor& tensor) { return tensor.is_cpu(); },
                      .adds =
                          [](torch::ScalarType type) {
                            return type == torch::kFloat || type == torch::kDouble || type == torch::kInt ||
                                   type == torch::kLong;
                          },
                      .shut_down = [] {},
                      .abort = [group] { group->abort_all(); }};
  std::vector<std::string> who;
  for (int r = 0; r < world; ++r) who.push_back("worker/" + std::to_string(r));
  return c10d_device(with_prefix(board, "failures/"), std::move(backend), torch::kCPU,
                     {.rank = rank, .world = world, .who = who}, timeout);
}

}  // namespace tutti::comm::testing

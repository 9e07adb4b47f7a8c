#include "tutti/comm/nccl/c10d_device.h"

#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/comm/flat.h"

namespace tutti::comm {
namespace {

using Pending = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<torch::Tensor>;

// How often the thread checks whether an operation has finished before it starts to sleep between checks.
// Most operations finish within microseconds.
constexpr int kBriskLooks = 20000;
constexpr std::chrono::microseconds kRest{50};

class C10dDevice final : public OnDevice {
 public:
  C10dDevice(std::shared_ptr<Rendezvous> board, C10dBackend backend, torch::Device device,
             const FailuresOptions& options, std::chrono::milliseconds timeout);
  ~C10dDevice() override;

  std::string name() const override { return backend_.name; }
  bool takes(const torch::Tensor& tensor) const override { return backend_.takes(tensor); }
  int rank() const override { return rank_; }
  int world() const override { return world_; }
  void exchange_arrays(std::span<const Array> sends, std::span<const Array> recvs,
                       const Operation& operation) override;
  void abandon(const std::string& text) override { failures_.give_up(text); }

 private:
  bool add_in_any_order(const Array& values, const Operation& operation) override;
  std::vector<int> peers() const;
  void await(c10d::Work& work);
  template <class Post>
  void attempt(const Operation& operation, std::vector<int> peers, const Post& post);

  const C10dBackend backend_;
  const int rank_;
  const int world_;
  Failures failures_;  // last, so that it is destroyed first
};

// NCCL connects in the first operation, in which all ranks must take part.
C10dDevice::C10dDevice(std::shared_ptr<Rendezvous> board, C10dBackend backend, torch::Device device,
                       const FailuresOptions& options, std::chrono::milliseconds timeout)
    : OnDevice(device),
      backend_(std::move(backend)),
      rank_(options.rank),
      world_(options.world),
      failures_(std::move(board), options, backend_.abort) {
  const torch::Tensor one = torch::zeros({1}, torch::TensorOptions().device(device));
  add_in_any_order(array_of(one), operation_of("connect", {}, timeout));
}

C10dDevice::~C10dDevice() {
  try {
    failures_.throw_if_failed();
    backend_.shut_down();
  } catch (const std::exception&) {
    // The group has failed and was aborted, or the other ranks are gone. Nothing is left to shut down.
  }
}

std::vector<int> C10dDevice::peers() const {
  std::vector<int> peers;
  for (int r = 0; r < world_; ++r) {
    if (r != rank_) peers.push_back(r);
  }
  return peers;
}

// `Failures` enforces the deadline: c10d would end the process, or sleep between checks.
void C10dDevice::await(c10d::Work& work) {
  for (int looks = 0; !work.isCompleted(); ++looks) {
    failures_.throw_if_failed();
    looks < kBriskLooks ? std::this_thread::yield() : std::this_thread::sleep_for(kRest);
  }
  // Aborted operations count as completed, too.
  failures_.throw_if_failed();
  // Throws the operation's error, and makes the current stream wait for the backend's stream.
  work.wait();
}

// post() starts the work and returns it.
template <class Post>
void C10dDevice::attempt(const Operation& operation, std::vector<int> peers, const Post& post) {
  const auto watch = failures_.watch(operation, Failures::Party::All, std::move(peers));
  try {
    for (const Pending& pending : post()) {
      if (pending) await(*pending);
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    failures_.throw_if_failed();
    failures_.report(
        ErrorKind::PeerLost,
        fmt::format("{} failed: {} reports: {}. Another rank may have ended; its output says why",
                    describe(operation), name(), first_line(error.what())));
  }
}

// Uses the backend's own all-reduce.
bool C10dDevice::add_in_any_order(const Array& values, const Operation& operation) {
  if (!backend_.adds(scalar_type(values.type))) return false;
  attempt(operation, peers(), [&] {
    Tensors one{tensor_of(values, device())};
    return std::vector<Pending>{backend_.group->allreduce(one)};
  });
  return true;
}

void C10dDevice::exchange_arrays(std::span<const Array> sends, std::span<const Array> recvs,
                                 const Operation& operation) {
  const auto me = static_cast<size_t>(rank_);
  copy(sends[me], recvs[me]);
  const auto at = [](std::span<const Array> all, int rank) { return all[static_cast<size_t>(rank)]; };
  std::vector<int> talking = peers();
  std::erase_if(talking, [&](int r) { return at(sends, r).count == 0 && at(recvs, r).count == 0; });
  if (talking.empty()) return;
  const SpanScope span(operation.timeline, Activity::Copy, "exchange", operation.step);
  constexpr int kTag = 0;
  attempt(operation, talking, [&] {
    backend_.group->startCoalescing();
    for (const int r : talking) {
      Tensors out{tensor_of(at(sends, r), device())};
      Tensors in{tensor_of(at(recvs, r), device())};
      if (out[0].numel() > 0) backend_.group->send(out, r, kTag);
      if (in[0].numel() > 0) backend_.group->recv(in, r, kTag);
    }
    return compat::end_coalescing(*backend_.group);
  });
}

}  // namespace

std::unique_ptr<OnDevice> c10d_device(std::shared_ptr<Rendezvous> board, C10dBackend backend,
                                      torch::Device device, const FailuresOptions& options,
                                      std::chrono::milliseconds timeout) {
  return std::make_unique<C10dDevice>(std::move(board), std::move(backend), device, options, timeout);
}

}  // namespace tutti::comm

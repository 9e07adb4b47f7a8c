#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/comm/communicator.h"
#include "tutti/comm/executor.h"
#include "tutti/comm/hosts.h"
#include "tutti/comm/transport.h"

namespace tutti::comm {

// Connects the ranks of one epoch after the other.
class EpochSource : public Epochs {
 public:
  struct Connection {
    std::unique_ptr<Transport> transport = nullptr;
    std::unique_ptr<OnDevice> on_device = nullptr;
  };
  // Tells the launcher why the present epoch ends here, and connects the next one.
  virtual Connection next(const std::optional<Error>& why) = 0;
};

// Implements all operations over any transport: checks what is passed, and gives the carrier plain tensors.
class Collectives final : public Communicator, private SharedVectors {
 public:
  // The timeline, if any, must outlive this object. `on_device`, if any, must have the same ranks as the
  // transport. `on_failure` is called, from any thread, when this communicator or one that was split from it
  // has failed, and when it is destroyed because of an exception.
  Collectives(std::unique_ptr<Transport> transport, std::chrono::milliseconds timeout,
              Timeline* timeline = nullptr, std::unique_ptr<OnDevice> on_device = nullptr,
              std::function<void()> on_failure = {}, std::unique_ptr<EpochSource> epochs = nullptr);
  ~Collectives() override;

  std::string name() const override;
  int rank() const override { return rank_; }
  int world() const override { return world_; }
  bool on_device(const torch::Tensor& tensor) const override {
    return on_device_ != nullptr && on_device_->takes(tensor);
  }
  Timeline* timeline() const override { return timeline_; }

  Work all_reduce(const torch::Tensor& tensor, ReduceOp op, const Options& options) override;
  Work reduce_scatter(const torch::Tensor& output, const torch::Tensor& input, ReduceOp op,
                      const Options& options) override;
  Work combine(std::span<const SlicedSum> sums, const Options& options) override;
  Work all_gather(const torch::Tensor& output, const torch::Tensor& input, const Options& options) override;
  Work all_gather_uneven(const std::vector<torch::Tensor>& outputs, const torch::Tensor& input,
                         const Options& options) override;
  Work all_to_all(const torch::Tensor& output, const torch::Tensor& input, const Options& options) override;
  Work all_to_all_uneven(const std::vector<torch::Tensor>& outputs, const std::vector<torch::Tensor>& inputs,
                         const Options& options) override;
  Work broadcast(const torch::Tensor& tensor, int root, const Options& options) override;
  Work gather(const torch::Tensor& output, const torch::Tensor& input, int root,
              const Options& options) override;
  Work scatter(const torch::Tensor& output, const torch::Tensor& input, int root,
               const Options& options) override;
  Work send(const torch::Tensor& tensor, int to, const Options& options) override;
  Work recv(const torch::Tensor& tensor, int from, const Options& options) override;
  Work barrier(const Options& options) override;
  SharedVectors* shared() override;
  const Hosts* hosts() override { return hosts_ ? &*hosts_ : nullptr; }
  void abandon(const std::string& why) noexcept override;
  std::unique_ptr<Communicator> split(int colour) override;
  Epochs* epochs() override { return epochs_.get(); }
  void reconfigure(const std::optional<Error>& why) override;

 private:
  using Tensors = std::vector<torch::Tensor>;

  torch::Tensor allocate(int64_t elements, torch::ScalarType type) override;
  Tensors everyones(const torch::Tensor& mine) override;
  void sync(const Options& options) override;

  template <class Body>
  Work perform(const char* name, const Options& options, Body body);
  template <class Body>
  void guarded(const char* name, const Options& options, const Body& body);
  Work between_two(const char* name, const torch::Tensor& tensor, int peer, bool sending,
                   const Options& options);
  void throw_if_broken();
  Work run_on(Executor& executor, std::function<void()> operation);
  void give_up(const Error& error) noexcept;
  torch::Device place_of(const torch::Tensor& tensor) const;
  Carrier& carrier_of(const torch::Tensor& tensor) const;
  SharedRegions& regions() { return *transport_->shared_regions(); }

  void enter_epoch();

  const std::unique_ptr<EpochSource> epochs_;  // null: the ranks never change
  const std::function<void()> on_failure_;
  // Until the next reconfigure():
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<OnDevice> on_device_;
  Sources one_by_rank_;
  int rank_ = 0;
  int world_ = 1;
  const std::chrono::milliseconds timeout_;
  Timeline* const timeline_;
  std::unique_ptr<Communicator> inside_;  // set if the transport has two levels
  std::optional<Hosts> hosts_;
  int splits_ = 0;
  bool behind_ = false;  // some operation may still be in queue_

  std::mutex mutex_;
  std::optional<Error> broken_;  // guarded by mutex_

  // Last, so that they are destroyed first.
  Executor queue_;
  std::map<std::pair<int, bool>, Executor> messages_;  // by peer; true: sends to it
};

}  // namespace tutti::comm

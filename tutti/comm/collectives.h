#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/comm/communicator.h"
#include "tutti/comm/hosts.h"
#include "tutti/comm/on_device.h"
#include "tutti/transport/ranks.h"

namespace tutti::comm {

// The operations of Ranks on tensors: checks what is passed, and gives them plain memory.
class Collectives final : public Communicator, private SharedVectors {
 public:
  // Arrays on devices are moved by an OnDevice.
  explicit Collectives(std::unique_ptr<Ranks> ranks);
  Collectives(std::unique_ptr<Transport> transport, std::chrono::milliseconds timeout,
              Timeline* timeline = nullptr, std::unique_ptr<OnDevice> on_device = nullptr);

  std::string name() const override { return ranks_->name(); }
  int rank() const override { return ranks_->rank(); }
  int world() const override { return ranks_->world(); }
  bool on_device(const torch::Tensor& tensor) const override {
    return on_device_ != nullptr && on_device_->takes(tensor);
  }
  Timeline* timeline() const override { return ranks_->timeline(); }

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
  Epochs* epochs() override { return ranks_->epochs(); }
  void reconfigure(const std::optional<Error>& why) override;

 private:
  torch::Tensor allocate(int64_t elements, torch::ScalarType type) override;
  std::vector<torch::Tensor> everyones(const torch::Tensor& mine) override;
  void sync(const Options& options) override;

  template <class Body>
  Work perform(const char* name, const Options& options, Body body);
  Work between_two(const char* name, const torch::Tensor& tensor, int peer, bool sends,
                   const Options& options);
  torch::Device place_of(const torch::Tensor& tensor) const;
  Carrier& carrier_of(const torch::Tensor& tensor) const;
  SharedRegions& regions() { return *ranks_->transport().shared_regions(); }
  void enter_epoch();

  const std::unique_ptr<Ranks> ranks_;
  // Until the next reconfigure():
  const OnDevice* on_device_ = nullptr;
  std::unique_ptr<Communicator> inside_;  // set if the transport has two levels
  std::optional<Hosts> hosts_;
};

}  // namespace tutti::comm

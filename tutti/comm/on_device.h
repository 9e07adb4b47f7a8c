#pragma once

#include <memory>
#include <span>

#include <torch/types.h>

#include "tutti/transport/transport.h"

namespace tutti::comm {

// Used next to a transport with the same ranks if their devices can reach one another: moves the tensors on
// these devices, and no others, without passing them through host memory. Runs after all work already
// enqueued on the device; work enqueued afterwards sees the received values.
class OnDevice : public Carrier {
 public:
  explicit OnDevice(torch::Device device) : device_(device) {}
  torch::Device device() const { return device_; }
  // Returns true if the tensor is on the device whose tensors it moves.
  virtual bool takes(const torch::Tensor& tensor) const = 0;

  std::shared_ptr<std::byte> memory_for(size_t size) const override;
  void copy(const Array& from, const Array& to) const override;
  void combine_here(std::span<const Array> inputs, const Array& output, const Reduction& reduction,
                    const Program& program) const override;

 private:
  const torch::Device device_;
};

}  // namespace tutti::comm

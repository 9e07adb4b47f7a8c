#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "bench/peers/collectives.h"

namespace bench {

std::optional<AllReduce> gloo_all_reduce(int rank, int world, const std::string& file,
                                         const std::string& address) {
  auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
  auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<c10d::FileStore>(file, world),
                                                           rank, world, options);
  return [group](torch::Tensor& tensor) {
    std::vector<at::Tensor> tensors = {tensor};
    group->allreduce(tensors)->wait();
  };
}

}  // namespace bench

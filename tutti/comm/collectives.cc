#include "tutti/comm/collectives.h"

#include <algorithm>

#include <torch/utils.h>

#include "tutti/base/check.h"
#include "tutti/base/type_name.h"
#include "tutti/comm/arguments.h"
#include "tutti/comm/flat.h"

namespace tutti::comm {

void Communicator::reconfigure(const std::optional<Error>& /*why*/) {
  fail(ErrorKind::InvalidArgument, "the ranks of this communicator never change");
}

Collectives::Collectives(std::unique_ptr<Ranks> ranks) : ranks_(std::move(ranks)) { enter_epoch(); }

Collectives::Collectives(std::unique_ptr<Transport> transport, std::chrono::milliseconds timeout,
                         Timeline* timeline, std::unique_ptr<OnDevice> on_device)
    : Collectives(std::make_unique<Ranks>(std::move(transport), timeout, timeline, std::move(on_device))) {}

void Collectives::enter_epoch() {
  on_device_ = dynamic_cast<OnDevice*>(ranks_->on_device());
  TwoLevels* const levels = ranks_->transport().two_levels();
  if (levels == nullptr) return;
  inside_ = std::make_unique<Collectives>(ranks_->inside());
  hosts_.emplace(Hosts{levels->layout(), *inside_});
}

void Collectives::reconfigure(const std::optional<Error>& why) {
  if (epochs() == nullptr) return Communicator::reconfigure(why);
  ranks_->drain();
  hosts_.reset();
  inside_.reset();
  on_device_ = nullptr;
  ranks_->reconfigure(why);
  enter_epoch();
}

// Returns the device on which an operation on this tensor runs.
torch::Device Collectives::place_of(const torch::Tensor& tensor) const {
  return on_device(tensor) ? tensor.device() : torch::Device(torch::kCPU);
}

Carrier& Collectives::carrier_of(const torch::Tensor& tensor) const {
  if (on_device(tensor)) return *ranks_->on_device();
  return ranks_->transport();
}

template <class Body>
Work Collectives::perform(const char* name, const Options& options, Body body) {
  return ranks_->run(name, options, [body = std::move(body)](const Operation& operation) {
    const torch::NoGradGuard no_grad;
    body(operation);
  });
}

// Tensors of a device whose ranks cannot reach one another are copied to host memory and back.
Work Collectives::combine(std::span<const SlicedSum> sums, const Options& options) {
  if (sums.empty()) return {};
  for (const SlicedSum& sum : sums) {
    require_writable("combine", sum.outputs[0]);
    require_reducible(sum.reduction.type, sum.reduction.op);
    const Reduction& reduction = sum.reduction;
    TUTTI_CHECK(reduction.divisor == 0 || reduction.round_each || sum_type(reduction.type) == reduction.type,
                "a divided sum of {} that is rounded at the end", name_of(reduction.type));
  }
  const char* const name = sums.front().scatters() ? "reduce_scatter" : "all_reduce";
  return perform(name, options, [this, sums](const Operation& operation) {
    const torch::Tensor& first = sums.front().outputs[0];
    const torch::Device place = place_of(first);
    std::vector<SlicedSum> copies;
    if (first.device() != place) {
      copies.assign(sums.begin(), sums.end());
      for (SlicedSum& copy : copies) {
        for (torch::Tensor& input : copy.inputs) input = input.defined() ? plain(input, place) : input;
        for (torch::Tensor& output : copy.outputs) output = flat_target(output, place);
      }
    }
    std::vector<ArraySum> arrays;
    for (const SlicedSum& sum : copies.empty() ? sums : std::span<const SlicedSum>(copies))
      arrays.push_back({sum.reduction, sum.sources, arrays_of(sum.inputs), arrays_of(sum.outputs), sum.slices,
                        sum.shared});
    carrier_of(first).combine(arrays, operation);
    for (size_t i = 0; i < copies.size(); ++i) put_back(sums[i].outputs[0], copies[i].outputs[0]);
  });
}

Work Collectives::all_reduce(const torch::Tensor& tensor, ReduceOp op, const Options& options) {
  require_writable("all_reduce", tensor);
  require_reducible(element_type(tensor.scalar_type()), op);
  if (world() == 1) return {};
  return perform("all_reduce", options, [this, tensor, op](const Operation& operation) {
    // Does not make a view: for a few kilobytes that would cost as much as everything else.
    const torch::Tensor values = plain(tensor, place_of(tensor));
    ranks_->all_reduce(carrier_of(tensor), array_of(values), array_of(values), op, operation);
    put_back(tensor, values);
  });
}

Work Collectives::reduce_scatter(const torch::Tensor& output, const torch::Tensor& input, ReduceOp op,
                                 const Options& options) {
  require_tensor("reduce_scatter", input);
  require_writable("reduce_scatter", output);
  require_reducible(element_type(input.scalar_type()), op);
  require_fit("reduce_scatter", input, output, world());
  return perform("reduce_scatter", options, [this, output, input, op](const Operation& operation) {
    const torch::Tensor target = flat_target(output, place_of(input));
    const torch::Tensor values = plain(input, place_of(input));
    ranks_->reduce_scatter(carrier_of(input), array_of(target), array_of(values), op, operation);
    put_back(output, target);
  });
}

Work Collectives::all_gather(const torch::Tensor& output, const torch::Tensor& input,
                             const Options& options) {
  require_tensor("all_gather", input);
  require_writable("all_gather", output);
  require_fit("all_gather", output, input, world());
  return perform("all_gather", options, [this, output, input](const Operation& operation) {
    const torch::Tensor target = flat_target(output, place_of(input));
    const torch::Tensor values = flat(input, place_of(input));
    ranks_->all_gather(carrier_of(input), equal_parts(array_of(target), world()), array_of(values),
                       operation);
    put_back(output, target);
  });
}

Work Collectives::all_gather_uneven(const std::vector<torch::Tensor>& outputs, const torch::Tensor& input,
                                    const Options& options) {
  require_one_each("all_gather_uneven", outputs, world());
  require_tensor("all_gather_uneven", input);
  require_writable("all_gather_uneven", outputs);
  require_fit("all_gather_uneven", outputs[static_cast<size_t>(rank())], input, 1);
  return perform("all_gather_uneven", options, [this, outputs, input](const Operation& operation) {
    std::vector<torch::Tensor> targets;
    for (const torch::Tensor& output : outputs) targets.push_back(flat_target(output, place_of(input)));
    const torch::Tensor values = flat(input, place_of(input));
    ranks_->all_gather(carrier_of(input), arrays_of(targets), array_of(values), operation);
    for (size_t r = 0; r < targets.size(); ++r) put_back(outputs[r], targets[r]);
  });
}

Work Collectives::all_to_all(const torch::Tensor& output, const torch::Tensor& input,
                             const Options& options) {
  require_tensor("all_to_all", input);
  require_writable("all_to_all", output);
  require_fit("all_to_all", output, input, 1);
  if (input.numel() % world() != 0)
    fail(ErrorKind::InvalidArgument, "all_to_all: {} elements cannot be divided into {} equal parts",
         input.numel(), world());
  return perform("all_to_all", options, [this, output, input](const Operation& operation) {
    const torch::Tensor target = flat_target(output, place_of(input));
    const torch::Tensor values = flat(input, place_of(input));
    ranks_->all_to_all(carrier_of(input), array_of(target), array_of(values), operation);
    put_back(output, target);
  });
}

Work Collectives::all_to_all_uneven(const std::vector<torch::Tensor>& outputs,
                                    const std::vector<torch::Tensor>& inputs, const Options& options) {
  require_one_each("all_to_all_uneven", outputs, world());
  require_one_each("all_to_all_uneven", inputs, world());
  for (const torch::Tensor& input : inputs) require_tensor("all_to_all_uneven", input);
  require_writable("all_to_all_uneven", outputs);
  const size_t me = static_cast<size_t>(rank());
  require_fit("all_to_all_uneven", outputs[me], inputs[me], 1);
  return perform("all_to_all_uneven", options, [this, outputs, inputs, me](const Operation& operation) {
    const torch::Device place = place_of(inputs[me]);
    std::vector<torch::Tensor> targets;
    std::vector<torch::Tensor> values;
    for (const torch::Tensor& output : outputs) targets.push_back(flat_target(output, place));
    for (const torch::Tensor& input : inputs) values.push_back(flat(input, place));
    ranks_->all_to_all_uneven(carrier_of(inputs[me]), arrays_of(targets), arrays_of(values), operation);
    for (size_t r = 0; r < targets.size(); ++r) put_back(outputs[r], targets[r]);
  });
}

Work Collectives::broadcast(const torch::Tensor& tensor, int root, const Options& options) {
  require_rank("broadcast", root, world());
  require_writable("broadcast", tensor);
  if (world() == 1) return {};
  return perform("broadcast", options, [this, tensor, root](const Operation& operation) {
    const torch::Device place = place_of(tensor);
    const torch::Tensor values = rank() == root ? flat(tensor, place) : flat_target(tensor, place);
    ranks_->broadcast(carrier_of(tensor), array_of(values), root, operation);
    if (rank() != root) put_back(tensor, values);
  });
}

Work Collectives::gather(const torch::Tensor& output, const torch::Tensor& input, int root,
                         const Options& options) {
  require_rank("gather", root, world());
  require_tensor("gather", input);
  if (rank() == root) {
    require_writable("gather", output);
    require_fit("gather", output, input, world());
  }
  return perform("gather", options, [this, output, input, root](const Operation& operation) {
    const torch::Tensor values = flat(input, place_of(input));
    const torch::Tensor target = rank() == root ? flat_target(output, place_of(input)) : torch::Tensor();
    ranks_->gather(carrier_of(input), equal_parts(array_of(target), world()), array_of(values), root,
                   operation);
    if (rank() == root) put_back(output, target);
  });
}

Work Collectives::scatter(const torch::Tensor& output, const torch::Tensor& input, int root,
                          const Options& options) {
  require_rank("scatter", root, world());
  require_writable("scatter", output);
  if (rank() == root) {
    require_tensor("scatter", input);
    require_fit("scatter", input, output, world());
  }
  return perform("scatter", options, [this, output, input, root](const Operation& operation) {
    const torch::Tensor target = flat_target(output, place_of(output));
    const torch::Tensor values = rank() == root ? flat(input, place_of(output)) : torch::Tensor();
    ranks_->scatter(carrier_of(output), array_of(target), equal_parts(array_of(values), world()), root,
                    operation);
    put_back(output, target);
  });
}

Work Collectives::between_two(const char* name, const torch::Tensor& tensor, int peer, bool sends,
                              const Options& options) {
  require_rank(name, peer, world());
  sends ? require_tensor(name, tensor) : require_writable(name, tensor);
  if (peer == rank())
    fail(ErrorKind::InvalidArgument, "{}: rank {} cannot exchange messages with itself", name, rank());
  Options behind = options;
  behind.run = Run::Behind;
  return ranks_->run_message(name, {peer, sends}, behind,
                             [this, tensor, peer, sends](const Operation& operation) {
                               const torch::NoGradGuard no_grad;
                               if (sends)
                                 return ranks_->send(array_of(flat(tensor, torch::kCPU)), peer, operation);
                               const torch::Tensor target = flat_target(tensor, torch::kCPU);
                               ranks_->recv(array_of(target), peer, operation);
                               put_back(tensor, target);
                             });
}

Work Collectives::send(const torch::Tensor& tensor, int to, const Options& options) {
  return between_two("send", tensor, to, true, options);
}

Work Collectives::recv(const torch::Tensor& tensor, int from, const Options& options) {
  return between_two("recv", tensor, from, false, options);
}

Work Collectives::barrier(const Options& options) {
  if (world() == 1) return {};
  return perform("barrier", options, [this](const Operation& operation) { ranks_->sync(operation); });
}

SharedVectors* Collectives::shared() {
  return ranks_->transport().shared_regions() != nullptr ? this : nullptr;
}

torch::Tensor Collectives::allocate(int64_t elements, torch::ScalarType type) {
  constexpr int64_t kMost = int64_t{1} << 56;  // more than any machine has
  if (elements < 0 || elements > kMost)
    fail(ErrorKind::InvalidArgument, "allocate: {} elements are not a size", elements);
  SharedRegion region;
  // Allocates at least one byte, so that no backend has to support empty regions.
  const size_t size = std::max<size_t>(1, static_cast<size_t>(elements) * c10::elementSize(type));
  perform("allocate", {}, [&](const Operation& operation) { region = regions().allocate(size, operation); });
  return torch::from_blob(
      region.parts[static_cast<size_t>(rank())], {elements}, [memory = region.memory](void*) {},
      torch::TensorOptions().dtype(type));
}

std::vector<torch::Tensor> Collectives::everyones(const torch::Tensor& mine) {
  if (mine.numel() == 0)
    return std::vector<torch::Tensor>(static_cast<size_t>(world()), mine);  // it has no address
  const SharedRegion region =
      regions().everyones(static_cast<const std::byte*>(mine.data_ptr()), mine.nbytes());
  if (region.parts.empty())
    fail(ErrorKind::InvalidArgument, "a tensor of {} elements is not (part of) a shared vector",
         mine.numel());
  std::vector<torch::Tensor> tensors;
  for (std::byte* part : region.parts) {
    tensors.push_back(torch::from_blob(
        part, mine.sizes(), mine.strides(), [memory = region.memory](void*) {}, mine.options()));
  }
  tensors[static_cast<size_t>(rank())] = mine;
  return tensors;
}

void Collectives::sync(const Options& options) {
  perform("sync", options, [this](const Operation& operation) { ranks_->sync(operation); });
}

void Collectives::abandon(const std::string& why) noexcept {
  ranks_->give_up(Error(ErrorKind::PeerLost, why));
}

std::unique_ptr<Communicator> Collectives::split(int colour) {
  std::unique_ptr<Ranks> part = ranks_->split(colour);
  if (!part) return nullptr;
  return std::make_unique<Collectives>(std::move(part));
}

}  // namespace tutti::comm

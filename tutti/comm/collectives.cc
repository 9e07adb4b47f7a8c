#include "tutti/comm/collectives.h"

#include <algorithm>
#include <exception>

#include <fmt/format.h>
#include <torch/utils.h>

#include "tutti/base/check.h"
#include "tutti/base/text.h"
#include "tutti/base/type_name.h"
#include "tutti/comm/arguments.h"
#include "tutti/comm/flat.h"
#include "tutti/comm/reduce.h"

namespace tutti::comm {
namespace {

bool overlap(const torch::Tensor& one, const torch::Tensor& other) {
  const Bytes a = bytes_of(one);
  const Bytes b = bytes_of(other);
  return a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
}

// Returns the flat tensor, or a copy if received values would overwrite it.
torch::Tensor apart(const torch::Tensor& values, const std::vector<torch::Tensor>& targets) {
  const bool lies_there = std::any_of(targets.begin(), targets.end(),
                                      [&](const torch::Tensor& target) { return overlap(values, target); });
  return lies_there ? values.clone() : values;
}

// Describes elements that are moved and not combined, so that all ranks can check that they agree.
Reduction moved_elements(const torch::Tensor& tensor, int64_t count) {
  return {tensor.scalar_type(), ReduceOp::Sum, count};
}

}  // namespace

void Communicator::reconfigure(const std::optional<Error>& /*why*/) {
  fail(ErrorKind::InvalidArgument, "the ranks of this communicator never change");
}

Collectives::Collectives(std::unique_ptr<Transport> transport, std::chrono::milliseconds timeout,
                         Timeline* timeline, std::unique_ptr<OnDevice> on_device,
                         std::function<void()> on_failure, std::unique_ptr<EpochSource> epochs)
    : epochs_(std::move(epochs)),
      on_failure_(std::move(on_failure)),
      transport_(std::move(transport)),
      on_device_(std::move(on_device)),
      timeout_(timeout),
      timeline_(timeline) {
  enter_epoch();
}

void Collectives::enter_epoch() {
  one_by_rank_ = one_by_rank(transport_->world());
  rank_ = transport_->rank();
  world_ = transport_->world();
  splits_ = 0;
  TwoLevels* const levels = transport_->two_levels();
  if (levels == nullptr) return;
  inside_ = std::make_unique<Collectives>(levels->inside(), timeout_, timeline_, nullptr, on_failure_);
  hosts_.emplace(Hosts{levels->layout(), *inside_});
}

// Operations that still run end first: they have failed, since a rank is lost, or they are complete. Without
// a next epoch this communicator stays broken.
void Collectives::reconfigure(const std::optional<Error>& why) {
  if (!epochs_) return Communicator::reconfigure(why);
  queue_.drain();
  {
    const std::lock_guard lock(mutex_);
    if (!broken_) broken_ = why.value_or(Error(ErrorKind::PeerLost, "the ranks did not meet again"));
  }
  messages_.clear();
  behind_ = false;
  hosts_.reset();
  inside_.reset();
  on_device_.reset();
  transport_.reset();
  EpochSource::Connection next = epochs_->next(why);
  transport_ = std::move(next.transport);
  on_device_ = std::move(next.on_device);
  {
    const std::lock_guard lock(mutex_);
    broken_.reset();
  }
  enter_epoch();
}

// If destroyed by an exception, this rank ends prematurely.
Collectives::~Collectives() {
  if (on_failure_ && std::uncaught_exceptions() > 0) on_failure_();
}

std::string Collectives::name() const {
  return on_device_ == nullptr ? transport_->name()
                               : fmt::format("{}+{}", on_device_->name(), transport_->name());
}

// Returns the device on which an operation on this tensor runs.
torch::Device Collectives::place_of(const torch::Tensor& tensor) const {
  return on_device(tensor) ? tensor.device() : torch::Device(torch::kCPU);
}

Carrier& Collectives::carrier_of(const torch::Tensor& tensor) const {
  if (on_device(tensor)) return *on_device_;
  return *transport_;
}

void Collectives::throw_if_broken() {
  const std::lock_guard lock(mutex_);
  if (broken_) throw Error(*broken_);
}

template <class Body>
void Collectives::guarded(const char* name, const Options& options, const Body& body) {
  throw_if_broken();
  const SpanScope span(timeline_, Activity::Operation, name, options.step, options.what);
  const Operation operation = operation_of(name, options, timeout_, timeline_);
  try {
    const torch::NoGradGuard no_grad;
    body(operation);
  } catch (const Error& error) {
    give_up(error);
    throw;
  } catch (const std::exception& error) {
    // For example from LibTorch, or out of memory. Continuing would leave this rank an operation behind.
    give_up(Error(ErrorKind::PeerLost, fmt::format("{} failed on rank {}: {}", describe(operation), rank_,
                                                   first_line(error.what()))));
    throw;
  }
}

// Makes this and all other ranks fail with `error` from now on, unless they have already failed. Informs both
// transport and device: ranks that wait in one may be waiting for ranks that wait in the other.
void Collectives::give_up(const Error& error) noexcept {
  try {
    {
      const std::lock_guard lock(mutex_);
      if (broken_) return;
      broken_ = error;
    }
    if (on_failure_) on_failure_();
    if (world_ == 1) return;
    transport_->abandon(error.what());
    if (on_device_ != nullptr) on_device_->abandon(error.what());
  } catch (const std::exception&) {
    // The others will detect by themselves that this rank is gone.
  }
}

// If the executor cannot start its thread, this rank would be an operation behind the others: it gives up.
Work Collectives::run_on(Executor& executor, std::function<void()> operation) {
  try {
    return executor.run(std::move(operation));
  } catch (const Error& error) {
    give_up(error);
    throw;
  }
}

template <class Body>
Work Collectives::perform(const char* name, const Options& options, Body body) {
  if (options.run == Run::Behind) {
    behind_ = true;
    return run_on(queue_, [this, name, options, body = std::move(body)] {
      name_thread(timeline_, "communicator");
      guarded(name, options, body);
    });
  }
  if (behind_) queue_.drain();
  behind_ = false;
  guarded(name, options, body);
  return {};
}

// Tensors of a device whose ranks cannot reach one another are copied to host memory and back.
Work Collectives::combine(std::span<const SlicedSum> sums, const Options& options) {
  if (sums.empty()) return {};
  for (const SlicedSum& sum : sums) {
    require_writable("combine", sum.outputs[0]);
    require_reducible(sum.reduction.type, sum.reduction.op);
    const Reduction& reduction = sum.reduction;
    TUTTI_CHECK(reduction.divisor == 0 || reduction.round_each || sum_type(reduction.type) == reduction.type,
                "a divided sum of {} that is rounded at the end", type_name(reduction.type));
  }
  const char* const name = sums.front().scatters() ? "reduce_scatter" : "all_reduce";
  return perform(name, options, [this, sums](const Operation& operation) {
    const torch::Tensor& first = sums.front().outputs[0];
    const torch::Device place = place_of(first);
    Carrier& carrier = carrier_of(first);
    if (first.device() == place) return carrier.combine(sums, operation);
    std::vector<SlicedSum> copies(sums.begin(), sums.end());
    for (SlicedSum& copy : copies) {
      for (torch::Tensor& input : copy.inputs) input = input.defined() ? plain(input, place) : input;
      for (torch::Tensor& output : copy.outputs) output = flat_target(output, place);
    }
    carrier.combine(copies, operation);
    for (size_t i = 0; i < sums.size(); ++i) put_back(sums[i].outputs[0], copies[i].outputs[0]);
  });
}

Work Collectives::all_reduce(const torch::Tensor& tensor, ReduceOp op, const Options& options) {
  require_writable("all_reduce", tensor);
  require_reducible(tensor.scalar_type(), op);
  if (world_ == 1) return {};
  return perform("all_reduce", options, [this, tensor, op](const Operation& operation) {
    const Reduction reduction{tensor.scalar_type(), op, tensor.numel()};
    if (tensor.numel() == 0) return transport_->sync(with_whole(operation, reduction));
    // Does not make a view: for a few kilobytes that would cost as much as everything else.
    const torch::Tensor values = plain(tensor, place_of(tensor));
    SlicedSum sum{reduction, &one_by_rank_, Tensors(static_cast<size_t>(world_)), {values}};
    sum.inputs[static_cast<size_t>(rank_)] = values;
    carrier_of(tensor).combine({&sum, 1}, operation);
    put_back(tensor, values);
  });
}

Work Collectives::reduce_scatter(const torch::Tensor& output, const torch::Tensor& input, ReduceOp op,
                                 const Options& options) {
  require_tensor("reduce_scatter", input);
  require_writable("reduce_scatter", output);
  require_reducible(input.scalar_type(), op);
  require_fit("reduce_scatter", input, output, world_);
  return perform("reduce_scatter", options, [this, output, input, op](const Operation& operation) {
    const Reduction reduction{input.scalar_type(), op, input.numel()};
    if (input.numel() == 0) return transport_->sync(with_whole(operation, reduction));
    const torch::Tensor target = flat_target(output, place_of(input));
    SlicedSum sum{reduction, &one_by_rank_, Tensors(static_cast<size_t>(world_)), {target}};
    sum.inputs[static_cast<size_t>(rank_)] = plain(input, place_of(input));
    for (int r = 0; r < world_; ++r) sum.slices.push_back({r * output.numel(), (r + 1) * output.numel()});
    carrier_of(input).combine({&sum, 1}, operation);
    put_back(output, target);
  });
}

Work Collectives::all_gather(const torch::Tensor& output, const torch::Tensor& input,
                             const Options& options) {
  require_tensor("all_gather", input);
  require_writable("all_gather", output);
  require_fit("all_gather", output, input, world_);
  return perform("all_gather", options, [this, output, input](const Operation& operation) {
    if (input.numel() == 0) return transport_->sync(with_whole(operation, moved_elements(input, 0)));
    const torch::Tensor target = flat_target(output, place_of(input));
    carrier_of(input).all_gather(equal_views(target, world_), flat(input, place_of(input)),
                                 with_whole(operation, moved_elements(input, output.numel())));
    put_back(output, target);
  });
}

Work Collectives::all_gather_uneven(const Tensors& outputs, const torch::Tensor& input,
                                    const Options& options) {
  require_one_each("all_gather_uneven", outputs, world_);
  require_tensor("all_gather_uneven", input);
  require_writable("all_gather_uneven", outputs);
  require_fit("all_gather_uneven", outputs[static_cast<size_t>(rank_)], input, 1);
  return perform("all_gather_uneven", options, [this, outputs, input](const Operation& operation) {
    Tensors targets;
    int64_t count = 0;
    for (const torch::Tensor& output : outputs) {
      targets.push_back(flat_target(output, place_of(input)));
      count += output.numel();
    }
    carrier_of(input).all_gather(targets, flat(input, place_of(input)),
                                 with_whole(operation, moved_elements(input, count)));
    for (size_t r = 0; r < targets.size(); ++r) put_back(outputs[r], targets[r]);
  });
}

Work Collectives::all_to_all(const torch::Tensor& output, const torch::Tensor& input,
                             const Options& options) {
  require_tensor("all_to_all", input);
  require_writable("all_to_all", output);
  require_fit("all_to_all", output, input, 1);
  if (input.numel() % world_ != 0)
    fail(ErrorKind::InvalidArgument, "all_to_all: {} elements cannot be divided into {} equal parts",
         input.numel(), world_);
  return perform("all_to_all", options, [this, output, input](const Operation& operation) {
    if (input.numel() == 0) return transport_->sync(with_whole(operation, moved_elements(input, 0)));
    const torch::Tensor target = flat_target(output, place_of(input));
    const torch::Tensor values = apart(flat(input, place_of(input)), {target});
    carrier_of(input).exchange_tensors(equal_views(values, world_), equal_views(target, world_),
                                       with_whole(operation, moved_elements(input, input.numel())));
    put_back(output, target);
  });
}

Work Collectives::all_to_all_uneven(const Tensors& outputs, const Tensors& inputs, const Options& options) {
  require_one_each("all_to_all_uneven", outputs, world_);
  require_one_each("all_to_all_uneven", inputs, world_);
  for (const torch::Tensor& input : inputs) require_tensor("all_to_all_uneven", input);
  require_writable("all_to_all_uneven", outputs);
  const size_t me = static_cast<size_t>(rank_);
  require_fit("all_to_all_uneven", outputs[me], inputs[me], 1);
  return perform("all_to_all_uneven", options, [this, outputs, inputs, me](const Operation& operation) {
    Tensors targets;
    Tensors values;
    for (const torch::Tensor& output : outputs) targets.push_back(flat_target(output, place_of(inputs[me])));
    for (const torch::Tensor& input : inputs)
      values.push_back(apart(flat(input, place_of(inputs[me])), targets));
    carrier_of(inputs[me])
        .exchange_tensors(values, targets, with_whole(operation, moved_elements(inputs[me], -1)));
    for (size_t r = 0; r < targets.size(); ++r) put_back(outputs[r], targets[r]);
  });
}

Work Collectives::broadcast(const torch::Tensor& tensor, int root, const Options& options) {
  require_rank("broadcast", root, world_);
  require_writable("broadcast", tensor);
  if (world_ == 1) return {};
  return perform("broadcast", options, [this, tensor, root](const Operation& operation) {
    if (tensor.numel() == 0) return transport_->sync(with_whole(operation, moved_elements(tensor, 0), root));
    const torch::Device place = place_of(tensor);
    const torch::Tensor values = rank_ == root ? flat(tensor, place) : flat_target(tensor, place);
    carrier_of(tensor).broadcast(values, root,
                                 with_whole(operation, moved_elements(tensor, tensor.numel()), root));
    if (rank_ != root) put_back(tensor, values);
  });
}

Work Collectives::gather(const torch::Tensor& output, const torch::Tensor& input, int root,
                         const Options& options) {
  require_rank("gather", root, world_);
  require_tensor("gather", input);
  if (rank_ == root) {
    require_writable("gather", output);
    require_fit("gather", output, input, world_);
  }
  return perform("gather", options, [this, output, input, root](const Operation& operation) {
    if (input.numel() == 0) return transport_->sync(with_whole(operation, moved_elements(input, 0), root));
    const torch::Tensor values = flat(input, place_of(input));
    Tensors sends(static_cast<size_t>(world_), values.narrow(0, 0, 0));
    Tensors recvs = sends;
    sends[static_cast<size_t>(root)] = values;
    const torch::Tensor target = rank_ == root ? flat_target(output, place_of(input)) : torch::Tensor();
    if (rank_ == root) recvs = equal_views(target, world_);
    carrier_of(input).exchange_tensors(sends, recvs,
                                       with_whole(operation, moved_elements(input, input.numel()), root));
    if (rank_ == root) put_back(output, target);
  });
}

Work Collectives::scatter(const torch::Tensor& output, const torch::Tensor& input, int root,
                          const Options& options) {
  require_rank("scatter", root, world_);
  require_writable("scatter", output);
  if (rank_ == root) {
    require_tensor("scatter", input);
    require_fit("scatter", input, output, world_);
  }
  return perform("scatter", options, [this, output, input, root](const Operation& operation) {
    if (output.numel() == 0) return transport_->sync(with_whole(operation, moved_elements(output, 0), root));
    const torch::Tensor target = flat_target(output, place_of(output));
    Tensors recvs(static_cast<size_t>(world_), target.narrow(0, 0, 0));
    Tensors sends = recvs;
    recvs[static_cast<size_t>(root)] = target;
    if (rank_ == root) sends = equal_views(flat(input, place_of(output)), world_);
    carrier_of(output).exchange_tensors(sends, recvs,
                                        with_whole(operation, moved_elements(output, output.numel()), root));
    put_back(output, target);
  });
}

Work Collectives::between_two(const char* name, const torch::Tensor& tensor, int peer, bool sending,
                              const Options& options) {
  require_rank(name, peer, world_);
  sending ? require_tensor(name, tensor) : require_writable(name, tensor);
  if (peer == rank_)
    fail(ErrorKind::InvalidArgument, "{}: rank {} cannot exchange messages with itself", name, rank_);
  return run_on(messages_[{peer, sending}], [this, name, tensor, peer, sending, options] {
    name_thread(timeline_, sending ? "sender" : "receiver");
    guarded(name, options, [&](const Operation& asked) {
      Operation operation = with_whole(asked, moved_elements(tensor, tensor.numel()));
      operation.peer = peer;
      if (sending) {
        transport_->send(bytes_of(flat(tensor, torch::kCPU)), peer, operation);
      } else {
        const torch::Tensor target = flat_target(tensor, torch::kCPU);
        transport_->recv(bytes_of(target), peer, operation);
        put_back(tensor, target);
      }
    });
  });
}

Work Collectives::send(const torch::Tensor& tensor, int to, const Options& options) {
  return between_two("send", tensor, to, true, options);
}

Work Collectives::recv(const torch::Tensor& tensor, int from, const Options& options) {
  return between_two("recv", tensor, from, false, options);
}

Work Collectives::barrier(const Options& options) {
  if (world_ == 1) return {};
  return perform("barrier", options, [this](const Operation& operation) { transport_->sync(operation); });
}

SharedVectors* Collectives::shared() { return transport_->shared_regions() != nullptr ? this : nullptr; }

torch::Tensor Collectives::allocate(int64_t elements, torch::ScalarType type) {
  constexpr int64_t kMost = int64_t{1} << 56;  // more than any machine has
  if (elements < 0 || elements > kMost)
    fail(ErrorKind::InvalidArgument, "allocate: {} elements are not a size", elements);
  SharedRegion region;
  // Allocates at least one byte, so that no backend has to support empty regions.
  const size_t size = std::max<size_t>(1, static_cast<size_t>(elements) * c10::elementSize(type));
  perform("allocate", {}, [&](const Operation& operation) { region = regions().allocate(size, operation); });
  return torch::from_blob(
      region.parts[static_cast<size_t>(rank_)], {elements}, [memory = region.memory](void*) {},
      torch::TensorOptions().dtype(type));
}

Collectives::Tensors Collectives::everyones(const torch::Tensor& mine) {
  if (mine.numel() == 0) return Tensors(static_cast<size_t>(world_), mine);  // it has no address
  const SharedRegion region =
      regions().everyones(static_cast<const std::byte*>(mine.data_ptr()), mine.nbytes());
  if (region.parts.empty())
    fail(ErrorKind::InvalidArgument, "a tensor of {} elements is not (part of) a shared vector",
         mine.numel());
  Tensors tensors;
  for (std::byte* part : region.parts) {
    tensors.push_back(torch::from_blob(
        part, mine.sizes(), mine.strides(), [memory = region.memory](void*) {}, mine.options()));
  }
  tensors[static_cast<size_t>(rank_)] = mine;
  return tensors;
}

void Collectives::sync(const Options& options) {
  perform("sync", options, [this](const Operation& operation) { transport_->sync(operation); });
}

void Collectives::abandon(const std::string& why) noexcept { give_up(Error(ErrorKind::PeerLost, why)); }

std::unique_ptr<Communicator> Collectives::split(int colour) {
  torch::Tensor colours = torch::empty({world_}, torch::kInt64);
  all_gather(colours, torch::full({1}, colour, torch::kInt64), {.what = "the colours of a split"}).wait();
  const int number = splits_++;
  if (colour < 0) return nullptr;
  std::vector<int> ranks;
  for (int r = 0; r < world_; ++r) {
    if (colours[r].item<int64_t>() == colour) ranks.push_back(r);
  }
  std::unique_ptr<Transport> part;
  perform("split", {}, [&](const Operation&) {
    part = transport_->split(ranks, fmt::format("split{}/{}", number, colour));
  });
  return std::make_unique<Collectives>(std::move(part), timeout_, timeline_, nullptr, on_failure_);
}

}  // namespace tutti::comm

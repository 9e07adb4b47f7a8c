#include "tutti/comm/collectives.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include <fmt/format.h>
#include <torch/utils.h>

#include "tutti/base/text.h"
#include "tutti/base/type_name.h"
#include "tutti/comm/doubling.h"
#include "tutti/comm/reduce.h"
#include "tutti/comm/reduce_on_device.h"

namespace tutti::comm {
namespace {

// Larger tensors are broadcast in slices, so that the root does not send the whole tensor to every rank.
constexpr int64_t kSmallBroadcast = 64 << 10;
// Up to this size, sending whole vectors to a few ranks takes less time than slices to all ranks.
constexpr size_t kSmallSum = size_t{16} << 10;

Bytes bytes_of(const torch::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

bool is_plain(const torch::Tensor& tensor) { return tensor.is_cpu() && tensor.is_contiguous(); }

// Returns the tensor as contiguous memory on device `place`: itself if it already is, else a copy.
torch::Tensor flat(const torch::Tensor& tensor, torch::Device place) {
  return tensor.to(place).contiguous().view(-1);
}

// Like flat(), but does not copy the values: a buffer to receive into.
torch::Tensor flat_room(const torch::Tensor& tensor, torch::Device place) {
  if (tensor.device() == place && tensor.is_contiguous()) return tensor.view(-1);
  return torch::empty({tensor.numel()}, tensor.options().device(place));
}

// If `room` is not the memory of `tensor`, copies the values back into `tensor`.
void put_back(const torch::Tensor& tensor, const torch::Tensor& room) {
  if (room.data_ptr() != tensor.data_ptr()) tensor.copy_(room.view(tensor.sizes()));
}

bool overlap(const torch::Tensor& one, const torch::Tensor& other) {
  const Bytes a = bytes_of(one);
  const Bytes b = bytes_of(other);
  return a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
}

// Returns the flat tensor, or a copy if received values would overwrite it.
torch::Tensor apart(const torch::Tensor& values, const std::vector<torch::Tensor>& rooms) {
  const bool lies_there = std::any_of(rooms.begin(), rooms.end(),
                                      [&](const torch::Tensor& room) { return overlap(values, room); });
  return lies_there ? values.clone() : values;
}

// Splits a flat tensor into equal parts.
std::vector<torch::Tensor> parts_of(const torch::Tensor& tensor, int parts) {
  std::vector<torch::Tensor> views;
  const int64_t each = tensor.numel() / parts;
  for (int r = 0; r < parts; ++r) views.push_back(tensor.narrow(0, r * each, each));
  return views;
}

std::vector<Slice> even_slices(int64_t count, int world) {
  std::vector<Slice> slices;
  for (int r = 0; r < world; ++r) slices.push_back(slice_of(count, r, world));
  return slices;
}

std::vector<torch::Tensor> slices_of(const torch::Tensor& tensor, const std::vector<Slice>& slices) {
  std::vector<torch::Tensor> views;
  for (const Slice& slice : slices) views.push_back(tensor.narrow(0, slice.begin, slice.size()));
  return views;
}

// Returns the combination of one input per rank.
Combination one_each(const torch::Tensor& input, ReduceOp op, int world) {
  Combination sum{.reduction = {input.scalar_type(), op, input.numel()},
                  .program = tree_program(static_cast<size_t>(world)),
                  .holders = {},
                  .slices = {},
                  .inputs = {input}};
  for (int r = 0; r < world; ++r) sum.holders.push_back(r);
  return sum;
}

// Describes elements that are moved and not combined, so that all ranks can check that they agree.
Reduction moved(const torch::Tensor& tensor, int64_t count) {
  return {tensor.scalar_type(), ReduceOp::Sum, count};
}

void require_fit(const torch::Tensor& whole, const torch::Tensor& part, int parts) {
  if (whole.scalar_type() == part.scalar_type() && whole.numel() == part.numel() * parts) return;
  fail(ErrorKind::InvalidArgument, "{} {} elements cannot be divided into {} parts of {} {} elements",
       whole.numel(), type_name(whole.scalar_type()), parts, part.numel(), type_name(part.scalar_type()));
}

void require_one_each(const std::vector<torch::Tensor>& tensors, int world) {
  if (tensors.size() != static_cast<size_t>(world))
    fail(ErrorKind::InvalidArgument, "{} tensors were given for {} ranks; expected one for each rank",
         tensors.size(), world);
}

// Returns what an exchange over a network spends its time on. Short messages take less time than it takes to
// wait for late ranks. For longer ones the two cannot be told apart, so the time counts as copying.
Activity mostly(const std::vector<ConstBytes>& sends, const std::vector<Bytes>& recvs) {
  constexpr size_t kShort = size_t{16} << 10;
  size_t longest = 0;
  for (const ConstBytes& bytes : sends) longest = std::max(longest, bytes.size());
  for (const Bytes& bytes : recvs) longest = std::max(longest, bytes.size());
  return longest <= kShort ? Activity::Wait : Activity::Copy;
}

}  // namespace

Collectives::Collectives(std::unique_ptr<Transport> transport, std::chrono::milliseconds timeout,
                         Timeline* timeline, std::unique_ptr<OnDevice> on_device,
                         std::function<void()> on_failure)
    : transport_(std::move(transport)),
      on_device_(std::move(on_device)),
      on_failure_(std::move(on_failure)),
      in_place_(dynamic_cast<InPlace*>(transport_.get())),
      own_all_reduce_(dynamic_cast<OwnAllReduce*>(transport_.get())),
      by_host_(dynamic_cast<ByHost*>(transport_.get())),
      on_the_way_(dynamic_cast<AddsOnTheWay*>(transport_.get())),
      rank_(transport_->rank()),
      world_(transport_->world()),
      timeout_(timeout),
      timeline_(timeline) {
  if (by_host_ == nullptr) return;
  inside_ = std::make_unique<Collectives>(by_host_->inside(), timeout, timeline, nullptr, on_failure_);
  hosts_.emplace(Hosts{by_host_->layout(), *inside_});
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

bool Collectives::adds_by_host(const torch::Tensor& tensor) const {
  return by_host_ != nullptr && !on_device(tensor);
}

void Collectives::require_rank(int rank) const {
  if (rank < 0 || rank >= world_)
    fail(ErrorKind::InvalidArgument, "there is no rank {}; there are {} ranks", rank, world_);
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

// A rank's own part is copied locally, and its device decides where the exchange runs.
void Collectives::exchange(const Tensors& inputs, const Tensors& outputs, const Operation& operation) {
  if (const auto me = static_cast<size_t>(rank_); on_device(inputs[me])) {
    if (inputs[me].data_ptr() != outputs[me].data_ptr()) outputs[me].copy_(inputs[me]);
    if (world_ == 1) return;
    const SpanScope span(timeline_, Activity::Copy, "exchange", operation.step);
    on_device_->exchange(inputs, outputs, operation);
    return;
  }
  std::vector<ConstBytes> sends;
  std::vector<Bytes> recvs;
  for (const torch::Tensor& input : inputs) sends.push_back(bytes_of(input));
  for (const torch::Tensor& output : outputs) recvs.push_back(bytes_of(output));
  const size_t me = static_cast<size_t>(rank_);
  if (sends[me].data() != recvs[me].data() && !sends[me].empty())
    std::memmove(recvs[me].data(), sends[me].data(), sends[me].size());
  if (world_ == 1) return;
  const bool by_itself = in_place_ != nullptr || by_host_ != nullptr;
  const SpanScope span(by_itself ? nullptr : timeline_, mostly(sends, recvs), "exchange", operation.step);
  transport_->exchange(sends, recvs, operation);
}

void Collectives::give_to_all(const torch::Tensor& input, const Tensors& outputs,
                              const Operation& operation) {
  if (!adds_by_host(input)) {
    exchange(Tensors(static_cast<size_t>(world_), input), outputs, operation);
    return;
  }
  std::vector<Bytes> places;
  for (const torch::Tensor& output : outputs) places.push_back(bytes_of(output));
  by_host_->all_gather(places, bytes_of(input), operation);
}

void Collectives::reduce_in_memory(const torch::Tensor& tensor, ReduceOp op, const Operation& operation) {
  in_place_->all_reduce(static_cast<std::byte*>(tensor.data_ptr()),
                        {tensor.scalar_type(), op, tensor.numel()}, operation);
}

void Collectives::reduce(const Tensors& inputs, const torch::Tensor& output, const Combination& combination,
                         const Operation& operation) {
  const SpanScope span(operation.timeline, Activity::Reduce, "add", operation.step);
  Reduction reduction = combination.reduction;
  reduction.count = output.numel();
  if (on_device(output)) {
    output.copy_(reduce_on_device(inputs, reduction, combination.program));
    return;
  }
  std::vector<const std::byte*> from;
  for (const torch::Tensor& input : inputs)
    from.push_back(input.defined() ? bytes_of(input).data() : nullptr);
  auto* to = static_cast<std::byte*>(output.data_ptr());
  comm::reduce(from, {&to, 1}, reduction, combination.program);
}

// Computes the slice of this rank after all of its inputs have arrived.
void Collectives::combine_by_exchange(const torch::Tensor& own, const Combination& combination,
                                      const Operation& operation) {
  std::vector<int64_t> counts(static_cast<size_t>(world_));
  for (const int holder : combination.holders) {
    if (holder >= 0) ++counts[static_cast<size_t>(holder)];
  }
  Tensors sends;
  Tensors recvs;
  for (int r = 0; r < world_; ++r) {
    const Slice slice = combination.slices[static_cast<size_t>(r)];
    Tensors parts = {own.narrow(0, 0, 0)};
    for (const torch::Tensor& input : combination.inputs)
      parts.push_back(input.narrow(0, slice.begin, slice.size()));
    sends.push_back(parts.size() == 2 ? parts[1] : torch::cat(parts));
    const int64_t size = counts[static_cast<size_t>(r)] * own.numel();
    recvs.push_back(r == rank_ ? sends.back() : torch::empty({size}, own.options()));
  }
  exchange(sends, recvs, operation);
  Tensors inputs;
  std::vector<int64_t> taken(counts.size());
  for (const int holder : combination.holders) {
    const auto r = static_cast<size_t>(std::max(holder, 0));
    inputs.push_back(holder < 0 ? torch::Tensor()
                                : recvs[r].narrow(0, own.numel() * taken[r]++, own.numel()));
  }
  reduce(inputs, own, combination, operation);
}

// All tensors are flat, and on the device on which they are combined.
void Collectives::combine_flat(const torch::Tensor& output, const Combination& combination,
                               const Operation& asked) {
  const Operation operation = of(asked, combination.reduction);
  const Slice slice = combination.slices[static_cast<size_t>(rank_)];
  const torch::Tensor own = combination.scatter ? output : output.narrow(0, slice.begin, slice.size());
  if (on_the_way_ == nullptr || on_device(output)) {
    combine_by_exchange(own, combination, operation);
    if (!combination.scatter)
      exchange(Tensors(static_cast<size_t>(world_), own), slices_of(output, combination.slices), operation);
    return;
  }
  std::vector<const std::byte*> inputs;
  for (const torch::Tensor& input : combination.inputs) inputs.push_back(bytes_of(input).data());
  const SpanScope span(timeline_, Activity::Copy, "add on the way", operation.step);
  on_the_way_->add({.reduction = combination.reduction,
                    .program = combination.program,
                    .holders = combination.holders,
                    .inputs = inputs,
                    .slices = combination.slices,
                    .own = bytes_of(own).data(),
                    .whole = combination.scatter ? nullptr : bytes_of(output).data()},
                   operation);
}

Work Collectives::combine(const torch::Tensor& output, const Combination& combination,
                          const Options& options) {
  require_reducible(combination.reduction.type, combination.reduction.op);
  return perform(combination.scatter ? "reduce_scatter" : "all_reduce", options,
                 [this, output, combination](const Operation& operation) {
                   const torch::Device place = place_of(output);
                   Combination flattened = combination;
                   for (torch::Tensor& input : flattened.inputs) input = flat(input, place);
                   const torch::Tensor room = flat_room(output, place);
                   combine_flat(room, flattened, operation);
                   put_back(output, room);
                 });
}

void Collectives::reduce_over_network(const torch::Tensor& tensor, ReduceOp op, const Operation& operation) {
  const Reduction whole{tensor.scalar_type(), op, tensor.numel()};
  if (adds_by_host(tensor)) {
    by_host_->all_reduce(bytes_of(tensor).data(), whole, of(operation, whole));
    return;
  }
  if (!on_device(tensor) && tensor.nbytes() <= kSmallSum) {
    const SpanScope span(timeline_, Activity::Wait, "exchange", operation.step);
    reduce_by_doubling(*transport_, bytes_of(tensor).data(), whole, of(operation, whole));
    return;
  }
  Combination sum = one_each(tensor, op, world_);
  sum.slices = even_slices(tensor.numel(), world_);
  combine_flat(tensor, sum, operation);
}

Work Collectives::all_reduce(const torch::Tensor& tensor, ReduceOp op, const Options& options) {
  require_reducible(tensor.scalar_type(), op);
  if (world_ == 1) return {};
  const bool there = on_device(tensor);
  OwnAllReduce* const own = there ? on_device_.get() : own_all_reduce_;
  const bool by_itself =
      options.any_order && op == ReduceOp::Sum && own != nullptr && own->adds(tensor.scalar_type());
  return perform("all_reduce", options, [=, this](const Operation& operation) {
    const bool in_memory = in_place_ != nullptr && !there;
    if (by_itself) {
      const torch::Tensor values = flat(tensor, place_of(tensor));
      own->add_all(values, operation);
      put_back(tensor, values);
      return;
    }
    // Does not make a view: for a few kilobytes that would cost as much as everything else.
    if (in_memory && is_plain(tensor)) {
      reduce_in_memory(tensor, op, operation);
      return;
    }
    const torch::Tensor values = flat(tensor, place_of(tensor));
    in_memory ? reduce_in_memory(values, op, operation) : reduce_over_network(values, op, operation);
    put_back(tensor, values);
  });
}

Work Collectives::reduce_scatter(const torch::Tensor& output, const torch::Tensor& input, ReduceOp op,
                                 const Options& options) {
  require_reducible(input.scalar_type(), op);
  require_fit(input, output, world_);
  return perform("reduce_scatter", options, [this, output, input, op](const Operation& operation) {
    const torch::Tensor room = flat_room(output, place_of(input));
    const torch::Tensor values = flat(input, place_of(input));
    if (adds_by_host(values)) {
      const Reduction whole{room.scalar_type(), op, room.numel()};
      by_host_->reduce_scatter(bytes_of(room).data(), bytes_of(values).data(), whole, of(operation, whole));
    } else {
      Combination sum = one_each(values, op, world_);
      for (int r = 0; r < world_; ++r) sum.slices.push_back({r * room.numel(), (r + 1) * room.numel()});
      sum.scatter = true;
      combine_flat(room, sum, operation);
    }
    put_back(output, room);
  });
}

Work Collectives::all_gather(const torch::Tensor& output, const torch::Tensor& input,
                             const Options& options) {
  require_fit(output, input, world_);
  return perform("all_gather", options, [this, output, input](const Operation& operation) {
    const torch::Tensor room = flat_room(output, place_of(input));
    give_to_all(flat(input, place_of(input)), parts_of(room, world_),
                of(operation, moved(input, output.numel())));
    put_back(output, room);
  });
}

Work Collectives::all_gather_uneven(const Tensors& outputs, const torch::Tensor& input,
                                    const Options& options) {
  require_one_each(outputs, world_);
  require_fit(outputs[static_cast<size_t>(rank_)], input, 1);
  return perform("all_gather_uneven", options, [this, outputs, input](const Operation& operation) {
    Tensors rooms;
    int64_t count = 0;
    for (const torch::Tensor& output : outputs) {
      rooms.push_back(flat_room(output, place_of(input)));
      count += output.numel();
    }
    give_to_all(flat(input, place_of(input)), rooms, of(operation, moved(input, count)));
    for (size_t r = 0; r < rooms.size(); ++r) put_back(outputs[r], rooms[r]);
  });
}

Work Collectives::all_to_all(const torch::Tensor& output, const torch::Tensor& input,
                             const Options& options) {
  require_fit(output, input, 1);
  if (input.numel() % world_ != 0)
    fail(ErrorKind::InvalidArgument, "{} elements cannot be divided into {} equal parts", input.numel(),
         world_);
  return perform("all_to_all", options, [this, output, input](const Operation& operation) {
    const torch::Tensor room = flat_room(output, place_of(input));
    const torch::Tensor values = apart(flat(input, place_of(input)), {room});
    exchange(parts_of(values, world_), parts_of(room, world_), of(operation, moved(input, input.numel())));
    put_back(output, room);
  });
}

Work Collectives::all_to_all_uneven(const Tensors& outputs, const Tensors& inputs, const Options& options) {
  require_one_each(outputs, world_);
  require_one_each(inputs, world_);
  const size_t me = static_cast<size_t>(rank_);
  require_fit(outputs[me], inputs[me], 1);
  return perform("all_to_all_uneven", options, [this, outputs, inputs, me](const Operation& operation) {
    Tensors rooms;
    Tensors values;
    for (const torch::Tensor& output : outputs) rooms.push_back(flat_room(output, place_of(inputs[me])));
    for (const torch::Tensor& input : inputs)
      values.push_back(apart(flat(input, place_of(inputs[me])), rooms));
    exchange(values, rooms, of(operation, moved(inputs[me], -1)));
    for (size_t r = 0; r < rooms.size(); ++r) put_back(outputs[r], rooms[r]);
  });
}

void Collectives::send_everywhere(const torch::Tensor& values, int root, const Operation& operation) {
  if (adds_by_host(values)) {
    by_host_->broadcast(bytes_of(values), root, operation);
    return;
  }
  const size_t ranks = static_cast<size_t>(world_);
  const torch::Tensor none = values.narrow(0, 0, 0);
  Tensors nothing(ranks, none);
  if (static_cast<int64_t>(values.nbytes()) <= kSmallBroadcast) {
    Tensors outputs = nothing;
    outputs[static_cast<size_t>(root)] = values;
    exchange(rank_ == root ? Tensors(ranks, values) : nothing, outputs, operation);
    return;
  }
  const Tensors slices = slices_of(values, even_slices(values.numel(), world_));
  const torch::Tensor& mine = slices[static_cast<size_t>(rank_)];
  Tensors from_root = nothing;
  from_root[static_cast<size_t>(root)] = mine;
  exchange(rank_ == root ? slices : nothing, from_root, operation);
  exchange(Tensors(ranks, mine), slices, operation);
}

Work Collectives::broadcast(const torch::Tensor& tensor, int root, const Options& options) {
  require_rank(root);
  if (world_ == 1) return {};
  return perform("broadcast", options, [this, tensor, root](const Operation& operation) {
    const torch::Device place = place_of(tensor);
    const torch::Tensor values = rank_ == root ? flat(tensor, place) : flat_room(tensor, place);
    send_everywhere(values, root, of(operation, moved(tensor, tensor.numel())));
    if (rank_ != root) put_back(tensor, values);
  });
}

Work Collectives::gather(const torch::Tensor& output, const torch::Tensor& input, int root,
                         const Options& options) {
  require_rank(root);
  if (rank_ == root) require_fit(output, input, world_);
  return perform("gather", options, [this, output, input, root](const Operation& operation) {
    const torch::Tensor values = flat(input, place_of(input));
    Tensors sends(static_cast<size_t>(world_), values.narrow(0, 0, 0));
    Tensors recvs = sends;
    sends[static_cast<size_t>(root)] = values;
    const torch::Tensor room = rank_ == root ? flat_room(output, place_of(input)) : torch::Tensor();
    if (rank_ == root) recvs = parts_of(room, world_);
    exchange(sends, recvs, of(operation, moved(input, input.numel())));
    if (rank_ == root) put_back(output, room);
  });
}

Work Collectives::scatter(const torch::Tensor& output, const torch::Tensor& input, int root,
                          const Options& options) {
  require_rank(root);
  if (rank_ == root) require_fit(input, output, world_);
  return perform("scatter", options, [this, output, input, root](const Operation& operation) {
    const torch::Tensor room = flat_room(output, place_of(output));
    Tensors recvs(static_cast<size_t>(world_), room.narrow(0, 0, 0));
    Tensors sends = recvs;
    recvs[static_cast<size_t>(root)] = room;
    if (rank_ == root) sends = parts_of(flat(input, place_of(output)), world_);
    exchange(sends, recvs, of(operation, moved(output, output.numel())));
    put_back(output, room);
  });
}

Work Collectives::between_two(const char* name, const torch::Tensor& tensor, int peer, bool sending,
                              const Options& options) {
  require_rank(peer);
  if (peer == rank_) fail(ErrorKind::InvalidArgument, "rank {} cannot exchange messages with itself", rank_);
  return run_on(messages_[{peer, sending}], [this, name, tensor, peer, sending, options] {
    name_thread(timeline_, sending ? "sender" : "receiver");
    guarded(name, options, [&](const Operation& operation) {
      if (sending) {
        transport_->send(bytes_of(flat(tensor, torch::kCPU)), peer, operation);
      } else {
        const torch::Tensor room = flat_room(tensor, torch::kCPU);
        transport_->recv(bytes_of(room), peer, operation);
        put_back(tensor, room);
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
  return perform("barrier", options, [this](const Operation& operation) {
    if (in_place_ != nullptr) {
      in_place_->sync(operation);
      return;
    }
    if (by_host_ != nullptr) {
      by_host_->sync(operation);
      return;
    }
    const torch::Tensor here = torch::zeros({world_}, torch::kUInt8);
    exchange(parts_of(here, world_), parts_of(torch::empty_like(here), world_), operation);
  });
}

SharedVectors* Collectives::shared() { return in_place_ != nullptr ? this : nullptr; }

torch::Tensor Collectives::allocate(int64_t elements, torch::ScalarType type) {
  SharedBlock block;
  // Allocates at least one byte, so that no backend has to support empty blocks.
  const size_t size = std::max<size_t>(1, static_cast<size_t>(elements) * c10::elementSize(type));
  perform("allocate", {}, [&](const Operation& operation) { block = in_place_->allocate(size, operation); });
  return torch::from_blob(
      block.parts[static_cast<size_t>(rank_)], {elements}, [memory = block.memory](void*) {},
      torch::TensorOptions().dtype(type));
}

Collectives::Tensors Collectives::everyones(const torch::Tensor& mine) {
  if (mine.numel() == 0) return Tensors(static_cast<size_t>(world_), mine);  // it has no address
  const SharedBlock block =
      in_place_->everyones(static_cast<const std::byte*>(mine.data_ptr()), mine.nbytes());
  if (block.parts.empty())
    fail(ErrorKind::InvalidArgument, "a tensor of {} elements is not (part of) a shared vector",
         mine.numel());
  Tensors tensors;
  for (std::byte* part : block.parts) {
    tensors.push_back(torch::from_blob(
        part, mine.sizes(), mine.strides(), [memory = block.memory](void*) {}, mine.options()));
  }
  tensors[static_cast<size_t>(rank_)] = mine;
  return tensors;
}

void Collectives::sync(const Options& options) {
  perform("sync", options, [this](const Operation& operation) { in_place_->sync(operation); });
}

void Collectives::abandon(const std::string& why) noexcept { give_up(Error(ErrorKind::PeerLost, why)); }

std::unique_ptr<Communicator> Collectives::split(int colour) {
  torch::Tensor colours = torch::empty({world_}, torch::kInt64);
  all_gather(colours, torch::full({1}, colour, torch::kInt64), {}).wait();
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

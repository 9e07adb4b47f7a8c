#include "tutti/transport/ranks.h"

#include <algorithm>
#include <exception>

#include <fmt/format.h>

#include "tutti/base/text.h"
#include "tutti/transport/reduce.h"

namespace tutti::comm {
namespace {

bool overlap(const Array& a, const Array& b) {
  return a.data < b.data + b.size() && b.data < a.data + a.size();
}

// Describes elements that are moved and not combined, so that all ranks can check that they agree.
Operation moved(const Operation& operation, ElementType type, int64_t count, int root = -1) {
  return with_whole(operation, {type, ReduceOp::Sum, count}, root);
}

// Copies of inputs that received values would overwrite, as long as it lives.
class Apart {
 public:
  Apart(const Carrier& carrier, std::span<const Array> inputs, std::span<const Array> outputs)
      : inputs_(inputs.begin(), inputs.end()) {
    for (Array& input : inputs_) {
      if (std::none_of(outputs.begin(), outputs.end(),
                       [&](const Array& output) { return overlap(input, output); }))
        continue;
      memory_.push_back(carrier.memory_for(input.size()));
      const Array copy{memory_.back().get(), input.type, input.count};
      carrier.copy(input, copy);
      input = copy;
    }
  }
  const Arrays& inputs() const { return inputs_; }

 private:
  Arrays inputs_;
  std::vector<std::shared_ptr<std::byte>> memory_;
};

}  // namespace

Ranks::Ranks(std::unique_ptr<Transport> transport, std::chrono::milliseconds timeout, Timeline* timeline,
             std::unique_ptr<Carrier> on_device, std::function<void()> on_failure,
             std::unique_ptr<EpochSource> epochs)
    : epochs_(std::move(epochs)),
      on_failure_(std::move(on_failure)),
      transport_(std::move(transport)),
      on_device_(std::move(on_device)),
      timeout_(timeout),
      timeline_(timeline) {
  enter_epoch();
}

// If destroyed by an exception, this rank ends prematurely.
Ranks::~Ranks() {
  if (on_failure_ && std::uncaught_exceptions() > 0) on_failure_();
}

void Ranks::enter_epoch() {
  one_by_rank_ = one_by_rank(transport_->world());
  rank_ = transport_->rank();
  world_ = transport_->world();
  mailbox_ = std::make_unique<Mailbox>(*transport_);
  splits_ = 0;
}

// Operations that still run end first: they have failed, since a rank is lost, or they are complete. Without
// a next epoch these ranks stay broken.
void Ranks::reconfigure(const std::optional<Error>& why) {
  if (!epochs_)
    fail(ErrorKind::InvalidArgument,
         "the ranks of this communicator never change, as those of `tutti run --min` do");
  queue_.drain();
  {
    const std::lock_guard lock(mutex_);
    if (!broken_) broken_ = why.value_or(Error(ErrorKind::PeerLost, "the ranks did not meet again"));
  }
  messages_.clear();
  behind_ = false;
  on_device_.reset();
  mailbox_.reset();
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

std::string Ranks::name() const {
  return on_device_ == nullptr ? transport_->name()
                               : fmt::format("{}+{}", on_device_->name(), transport_->name());
}

void Ranks::throw_if_broken() {
  const std::lock_guard lock(mutex_);
  if (broken_) throw Error(*broken_);
}

std::optional<Error> Ranks::failure() {
  const std::lock_guard lock(mutex_);
  return broken_;
}

void Ranks::give_up_after(const Operation& operation, const char* why) noexcept {
  try {
    give_up(Error(ErrorKind::PeerLost,
                  fmt::format("{} failed on rank {}: {}", describe(operation), rank_, first_line(why))));
  } catch (const std::exception&) {
    // Out of memory: the others will detect by themselves that this rank is gone.
  }
}

// Informs both transport and device: ranks that wait in one may be waiting for ranks that wait in the other.
void Ranks::give_up(const Error& error) noexcept {
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

// A program may use another tag for each message: threads that have nothing to do are ended then.
Executor& Ranks::executor_of(const Line& line) {
  constexpr size_t kMany = 32;
  if (messages_.size() >= kMany + 2 * static_cast<size_t>(world_))
    std::erase_if(messages_,
                  [](const auto& entry) { return entry.first.tag != 0 && entry.second.is_idle(); });
  return messages_[line];
}

// If the executor cannot start its thread, this rank would be an operation behind the others: it gives up.
Work Ranks::run_on(Executor& executor, std::function<void()> operation) {
  try {
    return executor.run(std::move(operation));
  } catch (const Error& error) {
    give_up(error);
    throw;
  }
}

void Ranks::all_reduce(Carrier& carrier, const Array& input, const Array& output, ReduceOp op,
                       const Operation& operation) {
  add(carrier, output, input, op, {}, operation);
}

void Ranks::reduce_scatter(Carrier& carrier, const Array& output, const Array& input, ReduceOp op,
                           const Operation& operation) {
  reduce_scatter_uneven(carrier, output, input, std::vector(static_cast<size_t>(world_), output.count), op,
                        operation);
}

void Ranks::reduce_scatter_uneven(Carrier& carrier, const Array& output, const Array& input,
                                  const std::vector<int64_t>& lengths, ReduceOp op,
                                  const Operation& operation) {
  std::vector<ElementRange> slices;
  for (const int64_t length : lengths) {
    const int64_t begin = slices.empty() ? 0 : slices.back().end;
    slices.push_back({begin, begin + length});
  }
  add(carrier, output, input, op, std::move(slices), operation);
}

void Ranks::reduce(Carrier& carrier, const Array& output, const Array& input, ReduceOp op, int root,
                   const Operation& operation) {
  std::vector<int64_t> lengths(static_cast<size_t>(world_));
  lengths[static_cast<size_t>(root)] = input.count;
  reduce_scatter_uneven(carrier, output, input, lengths, op, operation);
}

void Ranks::add(Carrier& carrier, const Array& output, const Array& input, ReduceOp op,
                std::vector<ElementRange> slices, const Operation& operation) {
  const Reduction reduction{input.type, op, input.count};
  if (input.count == 0) return sync(with_whole(operation, reduction));
  const auto me = static_cast<size_t>(rank_);
  const Array replaced = slices.empty() ? input : input.part(slices[me]);
  const Apart apart(carrier, {&input, 1}, std::span(&output, output.data == replaced.data ? 0 : 1));
  ArraySum sum{reduction, &one_by_rank_, Arrays(static_cast<size_t>(world_)), {output}, std::move(slices)};
  sum.inputs[me] = apart.inputs()[0];
  carrier.combine({&sum, 1}, operation);
}

void Ranks::all_gather(Carrier& carrier, std::span<const Array> outputs, const Array& input,
                       const Operation& operation) {
  int64_t count = 0;
  for (const Array& output : outputs) count += output.count;
  const Operation whole = moved(operation, input.type, count);
  if (count == 0) return sync(whole);
  const bool in_place = outputs[static_cast<size_t>(rank_)].data == input.data;
  const Apart apart(carrier, {&input, 1}, outputs.first(in_place ? 0 : outputs.size()));
  carrier.all_gather(outputs, apart.inputs()[0], whole);
}

void Ranks::all_to_all(Carrier& carrier, const Array& output, const Array& input,
                       const Operation& operation) {
  const Operation whole = moved(operation, input.type, input.count);
  if (input.count == 0) return sync(whole);
  const Apart apart(carrier, {&input, 1}, {&output, 1});
  carrier.exchange_arrays(equal_parts(apart.inputs()[0], world_), equal_parts(output, world_), whole);
}

void Ranks::all_to_all_uneven(Carrier& carrier, std::span<const Array> outputs, std::span<const Array> inputs,
                              const Operation& operation) {
  const Apart apart(carrier, inputs, outputs);
  carrier.exchange_arrays(apart.inputs(), outputs,
                          moved(operation, inputs[static_cast<size_t>(rank_)].type, -1));
}

void Ranks::broadcast(Carrier& carrier, const Array& values, int root, const Operation& operation) {
  const Operation whole = moved(operation, values.type, values.count, root);
  if (values.count == 0) return sync(whole);
  carrier.broadcast(values, root, whole);
}

void Ranks::gather(Carrier& carrier, std::span<const Array> outputs, const Array& input, int root,
                   const Operation& operation) {
  const Operation whole = moved(operation, input.type, input.count, root);
  if (input.count == 0) return sync(whole);
  Arrays sends(static_cast<size_t>(world_), input.none());
  const Arrays nothing = sends;
  sends[static_cast<size_t>(root)] = input;
  carrier.exchange_arrays(sends, rank_ == root ? outputs : nothing, whole);
}

void Ranks::scatter(Carrier& carrier, const Array& output, std::span<const Array> inputs, int root,
                    const Operation& operation) {
  const Operation whole = moved(operation, output.type, output.count, root);
  if (output.count == 0) return sync(whole);
  Arrays recvs(static_cast<size_t>(world_), output.none());
  const Arrays nothing = recvs;
  recvs[static_cast<size_t>(root)] = output;
  const Apart apart(carrier, rank_ == root ? inputs : nothing, {&output, 1});
  carrier.exchange_arrays(apart.inputs(), recvs, whole);
}

void Ranks::send(const Array& values, int to, const Operation& operation, int tag) {
  transport_->send(values.bytes(), to, message(operation, values, to, tag));
}

void Ranks::recv(const Array& values, int from, const Operation& operation, int tag) {
  mailbox_->take(values, from, message(operation, values, from, tag));
}

int Ranks::recv_from_any(const Array& values, const Operation& operation, int tag) {
  return mailbox_->take_from_any(values, message(operation, values, kAnyRank, tag));
}

// Describes a message to or from this rank, or from any.
Operation Ranks::message(const Operation& asked, const Array& values, int peer, int tag) const {
  Operation operation = moved(asked, values.type, values.count);
  operation.peer = peer;
  operation.tag = tag;
  return operation;
}

std::unique_ptr<Ranks> Ranks::split(int colour) {
  std::vector<int64_t> colours(static_cast<size_t>(world_));
  int64_t own = colour;
  const Array all{reinterpret_cast<std::byte*>(colours.data()), ElementType::Int64, world_};
  const Array mine{reinterpret_cast<std::byte*>(&own), ElementType::Int64, 1};
  run("all_gather", {.what = "the colours of a split"}, [&](const Operation& operation) {
    all_gather(*transport_, equal_parts(all, world_), mine, operation);
  });
  const int number = splits_++;
  if (colour < 0) return nullptr;
  std::vector<int> ranks;
  for (int r = 0; r < world_; ++r) {
    if (colours[static_cast<size_t>(r)] == colour) ranks.push_back(r);
  }
  const std::string name = fmt::format("split{}/{}", number, colour);
  return part(ranks, name, name);
}

std::unique_ptr<Ranks> Ranks::part(const std::vector<int>& ranks, const std::string& name) {
  return part(ranks, name, "group/" + name);
}

// `board` is the place of the group on the board of these ranks.
std::unique_ptr<Ranks> Ranks::part(const std::vector<int>& ranks, const std::string& name,
                                   const std::string& board) {
  std::unique_ptr<Transport> transport;
  run("split", {}, [&](const Operation&) {
    try {
      transport = transport_->split(ranks, board);
    } catch (const Error& error) {
      fail(error.kind(), "the group '{}' was not made: {}", name, error.what());
    }
  });
  return std::make_unique<Ranks>(std::move(transport), timeout_, timeline_, nullptr, on_failure_);
}

std::unique_ptr<Ranks> Ranks::inside() {
  return std::make_unique<Ranks>(transport_->two_levels()->inside(), timeout_, timeline_, nullptr,
                                 on_failure_);
}

}  // namespace tutti::comm

#include "tutti/comm/test_conformance.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <vector>

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/transport/reduce.h"

namespace tutti::comm {
namespace {

using Tensors = std::vector<torch::Tensor>;

const std::vector<torch::ScalarType> kTypes = {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf,
                                               torch::kInt,   torch::kLong,   torch::kByte,     torch::kBool};
const std::vector<int64_t> kSizes = {0, 1, 17, 1000, 4097};
// Used for the most important types: more than fits into a staging buffer.
constexpr int64_t kLargeSize = 70001;

// Returns small integers, which every type represents exactly and which differ by rank.
torch::Tensor values(int rank, int64_t size, torch::ScalarType type, int64_t largest = 3) {
  return (torch::arange(size) * 7 + rank * 3 + 1).remainder(largest).to(type);
}

void expect_equal(const torch::Tensor& actual, const torch::Tensor& expected, const std::string& what) {
  if (actual.sizes() != expected.sizes() ||
      !torch::equal(actual.to(torch::kDouble), expected.to(torch::kDouble)))
    fail(ErrorKind::Bug, "{}: other values than expected", what);
}

torch::Tensor expected_bits_of(ReduceOp op, const Tensors& inputs) {
  torch::Tensor result = inputs.front();
  for (size_t i = 1; i < inputs.size(); ++i) {
    const torch::Tensor& next = inputs[i];
    result = op == ReduceOp::BitAnd  ? result.bitwise_and(next)
             : op == ReduceOp::BitOr ? result.bitwise_or(next)
                                     : result.bitwise_xor(next);
  }
  return result;
}

// Returns the result that LibTorch computes from the same values.
torch::Tensor expected_of(ReduceOp op, const Tensors& inputs, torch::ScalarType type) {
  const torch::Tensor all = torch::stack(inputs).to(torch::kDouble);
  if (all.numel() == 0) return inputs.front();
  switch (op) {
    case ReduceOp::Sum:
      return type == torch::kBool ? all.amax(0) : all.sum(0);
    case ReduceOp::Average:
      return all.mean(0);
    case ReduceOp::Min:
      return all.amin(0);
    case ReduceOp::Max:
      return all.amax(0);
    case ReduceOp::Product:
      return all.prod(0);
    case ReduceOp::BitAnd:
    case ReduceOp::BitOr:
    case ReduceOp::BitXor:
      return expected_bits_of(op, inputs);
  }
  return {};
}

void check_reduction(Communicator& comm, torch::ScalarType type, ReduceOp op, int64_t size) {
  const std::string what =
      fmt::format("{} of {} {} over {}", static_cast<int>(op), size, c10::toString(type), comm.world());
  Tensors inputs;
  for (int r = 0; r < comm.world(); ++r) inputs.push_back(values(r, size, type));
  const torch::Tensor expected = expected_of(op, inputs, type).to(type);
  const torch::Tensor mine = inputs[static_cast<size_t>(comm.rank())];
  comm.all_reduce(mine, op).wait();
  expect_equal(mine, expected, "all_reduce " + what);
  const torch::Tensor again = values(comm.rank(), size, type);
  comm.all_reduce(again, op, {.any_order = true}).wait();
  expect_equal(again, expected, "all_reduce in any order " + what);

  Tensors parted;
  for (int r = 0; r < comm.world(); ++r) parted.push_back(values(r, size * comm.world(), type));
  const torch::Tensor sum = expected_of(op, parted, type).to(type);
  const torch::Tensor part = torch::empty({size}, type);
  comm.reduce_scatter(part, parted[static_cast<size_t>(comm.rank())], op).wait();
  expect_equal(part, sum.narrow(0, comm.rank() * size, size), "reduce_scatter " + what);
}

// Rank r has r % 3 inputs, and every third leaf of the tree has none.
void check_combination(Communicator& comm, torch::ScalarType type, int64_t size, bool scatter) {
  std::vector<Source> leaves;
  Tensors inputs;
  torch::Tensor expected = torch::zeros({size}, torch::kDouble);
  for (int r = 0; r < comm.world(); ++r) {
    for (int i = 0; i < 1 + r % 3; ++i) {
      const auto leaf = static_cast<int64_t>(leaves.size());
      leaves.push_back({{0, leaf}, r, leaf % 3 != 1 || leaf == 1});
      const torch::Tensor input = values(static_cast<int>(leaf), size, type);
      if (leaves.back().present) expected += input.to(torch::kDouble);
      inputs.push_back(r == comm.rank() ? input : torch::Tensor());
    }
  }
  const auto sources = sources_of(leaves, static_cast<int64_t>(leaves.size()));
  SlicedSum sum{{.type = element_type(type), .op = ReduceOp::Sum, .count = size, .round_each = true},
                &sources,
                inputs,
                {}};
  if (scatter) sum.slices = even_slices(size, comm.world());
  const ElementRange own = slice_of(size, comm.rank(), comm.world());
  // The output may be one of the inputs.
  torch::Tensor whole = torch::empty({size}, type);
  for (const torch::Tensor& input : inputs) whole = input.defined() ? input : whole;
  const torch::Tensor output = scatter ? whole.narrow(0, own.begin, own.size()) : whole;
  sum.outputs = {output};
  comm.combine({&sum, 1}).wait();
  if (type == torch::kBool) expected = expected.clamp_max(1);
  if (scatter) expected = expected.narrow(0, own.begin, own.size());
  expect_equal(output, expected.to(type),
               fmt::format("combine {} {} over {}", size, c10::toString(type), comm.world()));
}

void check_movements_of(Communicator& comm, torch::ScalarType type, int64_t size) {
  const int world = comm.world();
  const int rank = comm.rank();
  const std::string what = fmt::format("{} {} over {}", size, c10::toString(type), world);
  Tensors each;
  for (int r = 0; r < world; ++r) each.push_back(values(r, size, type));
  const torch::Tensor mine = each[static_cast<size_t>(rank)];
  const torch::Tensor together = torch::cat(each);

  const torch::Tensor gathered = torch::empty({size * world}, type);
  comm.all_gather(gathered, mine).wait();
  expect_equal(gathered, together, "all_gather " + what);

  Tensors uneven;
  Tensors wanted;
  for (int r = 0; r < world; ++r) {
    wanted.push_back(values(r, size + 3 * r, type));
    uneven.push_back(torch::empty_like(wanted.back()));
  }
  comm.all_gather_uneven(uneven, wanted[static_cast<size_t>(rank)]).wait();
  for (int r = 0; r < world; ++r)
    expect_equal(uneven[static_cast<size_t>(r)], wanted[static_cast<size_t>(r)], "all_gather_uneven " + what);

  const int last = world - 1;
  for (const int root : {0, last}) {
    const torch::Tensor copy = mine.clone();
    comm.broadcast(copy, root).wait();
    expect_equal(copy, each[static_cast<size_t>(root)], "broadcast " + what);
    const torch::Tensor at_root = torch::zeros({size * world}, type);
    comm.gather(at_root, mine, root).wait();
    if (rank == root) expect_equal(at_root, together, "gather " + what);
    const torch::Tensor part = torch::empty({size}, type);
    comm.scatter(part, together, root).wait();
    expect_equal(part, mine, "scatter " + what);
  }
}

// Returns the tensor that rank `from` sends to rank `to`; for some pairs it is empty.
torch::Tensor letter(int from, int to, int64_t size) {
  return values(from * 5 + to, (from + to) % 3 == 2 ? 0 : size + from + 2 * to, torch::kFloat, 1000);
}

void check_all_to_all(Communicator& comm, int64_t size) {
  Tensors inputs;
  Tensors outputs;
  Tensors expected;
  for (int r = 0; r < comm.world(); ++r) {
    inputs.push_back(letter(comm.rank(), r, size));
    expected.push_back(letter(r, comm.rank(), size));
    outputs.push_back(torch::empty_like(expected.back()));
  }
  comm.all_to_all_uneven(outputs, inputs).wait();
  for (size_t r = 0; r < outputs.size(); ++r) expect_equal(outputs[r], expected[r], "all_to_all_uneven");

  Tensors even;
  for (int r = 0; r < comm.world(); ++r) even.push_back(values(r, size * comm.world(), torch::kInt, 1000));
  const torch::Tensor output = torch::empty({size * comm.world()}, torch::kInt);
  comm.all_to_all(output, even[static_cast<size_t>(comm.rank())]).wait();
  for (int r = 0; r < comm.world(); ++r) {
    expect_equal(output.narrow(0, r * size, size),
                 even[static_cast<size_t>(r)].narrow(0, comm.rank() * size, size), "all_to_all");
  }
}

// Also checks all_to_all in place.
void check_all_to_all_over_itself(Communicator& comm, int64_t size) {
  const torch::Tensor whole = values(comm.rank(), size * comm.world() + 1, torch::kInt, 1000);
  const torch::Tensor input = whole.narrow(0, 0, size * comm.world());
  Tensors expected;
  for (int r = 0; r < comm.world(); ++r)
    expected.push_back(
        values(r, size * comm.world() + 1, torch::kInt, 1000).narrow(0, comm.rank() * size, size));
  const torch::Tensor shifted = whole.clone().narrow(0, 0, size * comm.world());
  const torch::Tensor beside =
      torch::from_blob(shifted.data_ptr<int>() + 1, {size * comm.world()}, shifted.options());
  comm.all_to_all(beside, shifted).wait();
  expect_equal(beside, torch::cat(expected), "all_to_all one element further");
  comm.all_to_all(input, input).wait();
  expect_equal(input, torch::cat(expected), "all_to_all in place");

  Tensors letters;
  Tensors theirs;
  for (int r = 0; r < comm.world(); ++r) {
    letters.push_back(values(comm.rank() * 7 + r, size, torch::kFloat, 1000));
    theirs.push_back(values(r * 7 + comm.rank(), size, torch::kFloat, 1000));
  }
  // The tensor sent to one rank shares memory with the one received from another.
  Tensors turned(letters.rbegin(), letters.rend());
  const auto me = static_cast<size_t>(comm.rank());
  comm.all_to_all_uneven(turned, letters).wait();
  expect_equal(turned[me], theirs[me], "all_to_all_uneven in place, of this rank");
  expect_equal(torch::cat(turned), torch::cat(theirs), "all_to_all_uneven in place");
}

// Runs `body` on a group of all ranks, which it may break. Returns the kind of error that it threw, if any.
std::optional<ErrorKind> misfit(Communicator& comm, const std::function<void(Communicator&)>& body) {
  const auto group = comm.split(0);
  std::optional<ErrorKind> kind;
  try {
    body(*group);
  } catch (const Error& error) {
    kind = error.kind();
  }
  // No rank leaves while another still waits.
  comm.barrier().wait();
  return kind;
}

void expect_misfit(std::optional<ErrorKind> kind, const std::string& what) {
  if (kind == ErrorKind::InvalidArgument) return;
  fail(ErrorKind::Bug, "{}: {}", what, kind ? to_string(*kind) : "was accepted");
}

template <class Call>
void expect_refused(Call call, const std::string& what) {
  try {
    call();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::InvalidArgument) return;
    throw;
  }
  fail(ErrorKind::Bug, "{} was accepted", what);
}

}  // namespace

void check_reductions(Communicator& comm) {
  for (const torch::ScalarType type : kTypes) {
    for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product,
                              ReduceOp::Average, ReduceOp::BitAnd, ReduceOp::BitOr, ReduceOp::BitXor}) {
      if (op == ReduceOp::Average && !c10::isFloatingType(type)) continue;
      if (op >= ReduceOp::BitAnd && !c10::isIntegralType(type, true)) continue;
      for (const int64_t size : kSizes) check_reduction(comm, type, op, size);
      if (op == ReduceOp::Sum && (type == torch::kFloat || type == torch::kBFloat16))
        check_reduction(comm, type, op, kLargeSize);
    }
  }
  // Checks that values are compared as signed.
  const torch::Tensor below = torch::full({5}, -1 - comm.rank(), torch::kInt);
  comm.all_reduce(below, ReduceOp::Max).wait();
  expect_equal(below, torch::full({5}, -1, torch::kInt), "the largest of negative numbers");
}

void check_combinations(Communicator& comm) {
  for (const torch::ScalarType type : kTypes) {
    for (const int64_t size : kSizes) {
      check_combination(comm, type, size, false);
      check_combination(comm, type, size, true);
    }
  }
  check_combination(comm, torch::kFloat, kLargeSize, false);
  check_combination(comm, torch::kBFloat16, kLargeSize, true);
}

void check_movements(Communicator& comm) {
  for (const torch::ScalarType type : kTypes) {
    for (const int64_t size : kSizes) check_movements_of(comm, type, size);
    if (type == torch::kFloat) check_movements_of(comm, type, kLargeSize);
  }
  for (const int64_t size : {0, 1, 1000, 300000}) {
    check_all_to_all(comm, size);
    check_all_to_all_over_itself(comm, size);
  }
  comm.barrier().wait();
}

void check_strided_and_empty(Communicator& comm) {
  const torch::Tensor wide = torch::zeros({6, 8});
  const torch::Tensor columns = wide.t().narrow(0, 1, 5);
  columns.fill_(comm.rank() + 1);
  comm.all_reduce(columns, ReduceOp::Sum).wait();
  const double sum = comm.world() * (comm.world() + 1) / 2.0;
  expect_equal(columns, torch::full({5, 6}, sum), "all_reduce of a transposed part");
  expect_equal(wide.narrow(1, 0, 1), torch::zeros({6, 1}), "what lies beside the part");

  const torch::Tensor square = torch::full({4, 3}, comm.rank()).t();
  comm.broadcast(square, 0).wait();
  expect_equal(square, torch::zeros({3, 4}), "broadcast of a transposed tensor");
  const torch::Tensor gathered = torch::empty({4, 3 * comm.world()}).t();
  comm.all_gather(gathered, torch::full({4, 3}, comm.rank()).t().to(torch::kFloat)).wait();
  for (int r = 0; r < comm.world(); ++r)
    expect_equal(gathered.narrow(0, 3 * r, 3), torch::full({3, 4}, r), "all_gather of transposed tensors");
  // LibTorch negates this tensor only when it is read.
  const torch::Tensor negated = torch::_neg_view(torch::full({5}, comm.rank() + 1, torch::kFloat));
  comm.all_reduce(negated, ReduceOp::Min).wait();
  expect_equal(negated, torch::full({5}, -comm.world()), "all_reduce of a negated tensor");
  const torch::Tensor number = torch::full({}, comm.rank() + 1);
  comm.all_reduce(number, ReduceOp::Sum).wait();
  expect_equal(number, torch::full({}, sum), "all_reduce of a scalar");
}

void check_messages(Communicator& comm) {
  if (comm.world() == 1) return;
  const int next = (comm.rank() + 1) % comm.world();
  const int previous = (comm.rank() + comm.world() - 1) % comm.world();
  std::vector<Work> works;
  Tensors received;
  for (const int64_t size : {1, 0, 100000}) {
    // All ranks send before any receives, and send more than fits into a pipe.
    works.push_back(comm.send(values(comm.rank(), size, torch::kFloat, 1000), next));
    received.push_back(torch::empty({size}));
  }
  for (const torch::Tensor& tensor : received) works.push_back(comm.recv(tensor, previous));
  // A collective may run at the same time.
  comm.barrier().wait();
  for (const Work& work : works) work.wait();
  for (const torch::Tensor& tensor : received)
    expect_equal(tensor, values(previous, tensor.numel(), torch::kFloat, 1000), "recv");
}

void check_order_behind(Communicator& comm) {
  std::vector<Work> works;
  Tensors tensors;
  for (int i = 0; i < 20; ++i) {
    tensors.push_back(torch::full({1 + i * 500}, i + comm.rank()).to(torch::kFloat));
    works.push_back(comm.all_reduce(tensors.back(), ReduceOp::Sum, {.run = Run::Behind, .what = "a bucket"}));
  }
  // An operation in the calling thread runs after all operations that are behind.
  const torch::Tensor last = torch::ones({1});
  comm.all_reduce(last, ReduceOp::Sum).wait();
  for (const Work& work : works) {
    if (!work.done()) fail(ErrorKind::Bug, "an operation overtook another");
    work.wait();
  }
  for (int i = 0; i < 20; ++i) {
    const int sum = i * comm.world() + comm.world() * (comm.world() - 1) / 2;
    expect_equal(tensors[static_cast<size_t>(i)], torch::full({1 + i * 500}, sum), "all_reduce behind");
  }
}

void check_split(Communicator& comm) {
  const auto odd_or_even = comm.split(comm.rank() % 2);
  const torch::Tensor ranks = torch::full({1}, comm.rank());
  odd_or_even->all_reduce(ranks, ReduceOp::Sum).wait();
  int sum = 0;
  for (int r = comm.rank() % 2; r < comm.world(); r += 2) sum += r;
  expect_equal(ranks, torch::full({1}, sum), "all_reduce in half of the ranks");
  const auto without_the_last = comm.split(comm.rank() == comm.world() - 1 ? -1 : 0);
  if ((without_the_last == nullptr) != (comm.rank() == comm.world() - 1))
    fail(ErrorKind::Bug, "colour -1 is no group");
  comm.barrier().wait();
}

void check_bad_arguments(Communicator& comm) {
  const torch::Tensor tensor = torch::zeros({6});
  expect_refused([&] { comm.broadcast(tensor, comm.world()); }, "a root that is no rank");
  expect_refused([&] { comm.send(tensor, comm.rank()); }, "a message to oneself");
  expect_refused([&] { comm.all_gather(tensor, torch::zeros({7})); }, "an output of another size");
  expect_refused([&] { comm.all_gather(torch::zeros({comm.world()}), torch::zeros({1}, torch::kInt)); },
                 "an output of another type");
  expect_refused([&] { comm.all_reduce(torch::zeros({3}, torch::kLong), ReduceOp::Average); },
                 "the average of whole numbers");
  expect_refused([&] { comm.all_reduce(torch::zeros({3}), ReduceOp::BitXor); },
                 "bits of floating-point numbers");
  expect_refused([&] { comm.all_gather_uneven({}, tensor); }, "no output at all");
  expect_refused([&] { comm.all_reduce(torch::Tensor(), ReduceOp::Sum); }, "an undefined tensor");
  expect_refused([&] { comm.all_gather(tensor, torch::Tensor()); }, "an undefined input");
  expect_refused([&] { comm.all_reduce(torch::zeros({1}).expand({6}), ReduceOp::Sum); },
                 "a tensor whose elements share memory");
  expect_refused([&] { comm.broadcast(torch::zeros({3, 3}).to_sparse(), 0); }, "a sparse tensor");
  expect_refused([&] { comm.broadcast(torch::zeros({3}, torch::kMeta), 0); }, "a tensor without values");
  expect_refused([&] { comm.all_reduce(tensor, static_cast<ReduceOp>(99)); }, "an unknown reduction");
  // The communicator still works afterwards.
  comm.barrier().wait();
}

void check_large(Communicator& comm) {
  const int64_t size = (int64_t{16} << 20) + 3;
  const torch::Tensor tensor = torch::full({size}, comm.rank() + 1.0F);
  comm.all_reduce(tensor, ReduceOp::Sum).wait();
  const double sum = comm.world() * (comm.world() + 1) / 2.0;
  expect_equal(tensor, torch::full({size}, sum), "all_reduce of 64 MB");
}

void check_misfits(Communicator& comm) {
  if (comm.world() == 1) return;
  constexpr int64_t kExpected = 5;
  const Options soon{.timeout = std::chrono::seconds(2)};
  for (const int64_t sent : {kExpected - 2, kExpected + 2}) {
    const int last = comm.world() - 1;
    const auto message = misfit(comm, [&](Communicator& group) {
      if (group.rank() == 0) group.send(torch::zeros({sent}), last, soon).wait();
      if (group.rank() == last) group.recv(torch::zeros({kExpected}), 0, soon).wait();
    });
    if (comm.rank() == last) expect_misfit(message, fmt::format("a message of {}", sent));
    const auto other_type = misfit(comm, [&](Communicator& group) {
      if (group.rank() == 0) group.send(torch::zeros({kExpected}, torch::kInt), last, soon).wait();
      if (group.rank() == last) group.recv(torch::zeros({kExpected}), 0, soon).wait();
    });
    if (comm.rank() == last) expect_misfit(other_type, "a message of another type");

    const auto exchange = misfit(comm, [&](Communicator& group) {
      Tensors inputs;
      for (int r = 0; r < group.world(); ++r)
        inputs.push_back(torch::zeros({group.rank() == 0 && r > 0 ? sent : kExpected}));
      Tensors outputs(inputs.size(), torch::zeros({kExpected}));
      group.all_to_all_uneven(outputs, inputs, soon).wait();
      group.barrier(soon).wait();
    });
    expect_misfit(exchange, fmt::format("an exchange of {}", sent));
  }
}

void check_different_roots(Communicator& comm) {
  if (comm.world() == 1) return;
  for (const int64_t size : {5, 100000}) {
    const auto kind = misfit(comm, [&](Communicator& group) {
      group.broadcast(torch::zeros({size}), group.rank() == 0 ? 0 : 1, {.timeout = std::chrono::seconds(2)})
          .wait();
      group.barrier({.timeout = std::chrono::seconds(2)}).wait();
    });
    expect_misfit(kind, fmt::format("a broadcast of {} from two roots", size));
  }
}

// The call with the empty tensor finds it, and not the next one.
void check_empty_beside_others(Communicator& comm) {
  if (comm.world() == 1) return;
  const Options soon{.timeout = std::chrono::seconds(2)};
  const int last = comm.world() - 1;
  const auto expect_misfit_in = [&](const char* what, const auto& call) {
    const auto kind = misfit(comm, [&](Communicator& group) {
      const int64_t size = group.rank() == last ? 0 : 6;
      call(group, torch::zeros({size}), torch::zeros({size * group.world()}));
    });
    expect_misfit(kind, fmt::format("{} with an empty tensor at one rank", what));
  };
  expect_misfit_in("all_reduce", [&](Communicator& group, const torch::Tensor& part, const torch::Tensor&) {
    group.all_reduce(part, ReduceOp::Sum, soon).wait();
  });
  expect_misfit_in("all_gather",
                   [&](Communicator& group, const torch::Tensor& part, const torch::Tensor& whole) {
                     group.all_gather(whole, part, soon).wait();
                   });
  expect_misfit_in("all_to_all", [&](Communicator& group, const torch::Tensor&, const torch::Tensor& whole) {
    group.all_to_all(torch::zeros_like(whole), whole, soon).wait();
  });
}

void check_conformance(Communicator& comm) {
  check_reductions(comm);
  check_combinations(comm);
  check_movements(comm);
  check_strided_and_empty(comm);
  check_messages(comm);
  check_order_behind(comm);
  check_split(comm);
  check_bad_arguments(comm);
}

}  // namespace tutti::comm

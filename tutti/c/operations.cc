#include <cstdint>
#include <memory>
#include <vector>

#include "tutti/c/handles.h"
#include "tutti/transport/reduce.h"

namespace tutti::c {
namespace {

using comm::Array;
using comm::Arrays;

// An array for each rank. Without counts, all have `count` elements.
template <class Pointer>
Arrays arrays_of(Pointer const* values, const size_t* counts, size_t count, tutti_type type, int world,
                 const char* call) {
  if (values == nullptr) fail(ErrorKind::InvalidArgument, "{}: the buffers are NULL", call);
  Arrays arrays;
  for (int r = 0; r < world; ++r)
    arrays.push_back(array_of(values[r], counts == nullptr ? count : counts[r], type, call));
  return arrays;
}

void require_counts(const size_t* counts, const char* call) {
  if (counts == nullptr) fail(ErrorKind::InvalidArgument, "{}: the counts are NULL", call);
}

// Begins an operation by begin(ranks, options), which checks its arguments.
template <class Begin>
tutti_status run(tutti_comm* comm, const char* call, const tutti_options* given, const Begin& begin) {
  return carry_out(call, given,
                   [&](const comm::Options& asked) { return begin(ranks_of(comm, call), asked); });
}

void require_other_rank(int rank, const Ranks& ranks, const char* call) {
  require_rank(rank, ranks, call);
  if (rank == ranks.rank())
    fail(ErrorKind::InvalidArgument, "{}: rank {} cannot exchange messages with itself", call, rank);
}

}  // namespace
}  // namespace tutti::c

using namespace tutti::c;  // NOLINT(google-build-using-namespace): the interface is in no namespace
using tutti::ErrorKind;
using tutti::fail;
using tutti::comm::Array;
using tutti::comm::Arrays;
using tutti::comm::Operation;
using tutti::comm::Options;
using tutti::comm::ReduceOp;

tutti_status tutti_all_reduce(tutti_comm* comm, const void* input, void* output, size_t count,
                              tutti_type type, tutti_op op, const tutti_options* options) {
  constexpr const char* kCall = "tutti_all_reduce";
  return run(comm, kCall, options, [&](Ranks& ranks, const Options& asked) {
    const Array from = array_of(input, count, type, kCall);
    const Array to = array_of(output, count, type, kCall);
    const auto how = static_cast<ReduceOp>(op);
    require_reducible(from.type, how);
    return ranks.run("all_reduce", asked, [&ranks, from, to, how](const Operation& operation) {
      ranks.all_reduce(ranks.transport(), from, to, how, operation);
    });
  });
}

tutti_status tutti_reduce(tutti_comm* comm, const void* input, void* output, size_t count, tutti_type type,
                          tutti_op op, int root, const tutti_options* options) {
  constexpr const char* kCall = "tutti_reduce";
  return run(comm, kCall, options, [&](Ranks& ranks, const Options& asked) {
    require_rank(root, ranks, kCall);
    const Array from = array_of(input, count, type, kCall);
    const Array to = ranks.rank() == root ? array_of(output, count, type, kCall) : from.none();
    const auto how = static_cast<ReduceOp>(op);
    require_reducible(from.type, how);
    return ranks.run("reduce", asked, [&ranks, from, to, how, root](const Operation& operation) {
      ranks.reduce(ranks.transport(), to, from, how, root, operation);
    });
  });
}

tutti_status tutti_broadcast(tutti_comm* comm, void* values, size_t count, tutti_type type, int root,
                             const tutti_options* options) {
  constexpr const char* kCall = "tutti_broadcast";
  return run(comm, kCall, options, [&](Ranks& ranks, const Options& asked) {
    require_rank(root, ranks, kCall);
    const Array array = array_of(values, count, type, kCall);
    return ranks.run("broadcast", asked, [&ranks, array, root](const Operation& operation) {
      ranks.broadcast(ranks.transport(), array, root, operation);
    });
  });
}

tutti_status tutti_all_gather(tutti_comm* comm, const void* input, void* output, size_t count,
                              tutti_type type, const tutti_options* options) {
  constexpr const char* kCall = "tutti_all_gather";
  return run(comm, kCall, options, [&](Ranks& ranks, const Options& asked) {
    const Array from = array_of(input, count, type, kCall);
    const Array to = array_of(output, count * static_cast<size_t>(ranks.world()), type, kCall);
    return ranks.run("all_gather", asked, [&ranks, from, to](const Operation& operation) {
      ranks.all_gather(ranks.transport(), equal_parts(to, ranks.world()), from, operation);
    });
  });
}

tutti_status tutti_all_gather_v(tutti_comm* comm, const void* input, void* const* outputs,
                                const size_t* counts, tutti_type type, const tutti_options* options) {
  constexpr const char* kCall = "tutti_all_gather_v";
  return run(comm, kCall, options, [&](Ranks& ranks, const Options& asked) {
    require_counts(counts, kCall);
    const Arrays to = arrays_of(outputs, counts, 0, type, ranks.world(), kCall);
    const Array from = array_of(input, counts[ranks.rank()], type, kCall);
    return ranks.run("all_gather_v", asked, [&ranks, from, to](const Operation& operation) {
      ranks.all_gather(ranks.transport(), to, from, operation);
    });
  });
}

tutti_status tutti_reduce_scatter(tutti_comm* comm, const void* input, void* output, size_t count,
                                  tutti_type type, tutti_op op, const tutti_options* options) {
  constexpr const char* kCall = "tutti_reduce_scatter";
  return run(comm, kCall, options, [&](Ranks& ranks, const Options& asked) {
    const Array from = array_of(input, count * static_cast<size_t>(ranks.world()), type, kCall);
    const Array to = array_of(output, count, type, kCall);
    const auto how = static_cast<ReduceOp>(op);
    require_reducible(from.type, how);
    return ranks.run("reduce_scatter", asked, [&ranks, from, to, how](const Operation& operation) {
      ranks.reduce_scatter(ranks.transport(), to, from, how, operation);
    });
  });
}

tutti_status tutti_reduce_scatter_v(tutti_comm* comm, const void* input, void* output, const size_t* counts,
                                    tutti_type type, tutti_op op, const tutti_options* options) {
  constexpr const char* kCall = "tutti_reduce_scatter_v";
  return run(comm, kCall, options, [&](Ranks& ranks, const Options& asked) {
    require_counts(counts, kCall);
    std::vector<int64_t> lengths;
    Array from = array_of(input, 0, type, kCall);
    for (int r = 0; r < ranks.world(); ++r) {
      lengths.push_back(array_of(input, counts[r], type, kCall).count);
      from = array_of(input, static_cast<size_t>(from.count) + counts[r], type, kCall);
    }
    const Array to = array_of(output, counts[ranks.rank()], type, kCall);
    const auto how = static_cast<ReduceOp>(op);
    require_reducible(from.type, how);
    return ranks.run("reduce_scatter_v", asked, [&ranks, from, to, how, lengths](const Operation& operation) {
      ranks.reduce_scatter_uneven(ranks.transport(), to, from, lengths, how, operation);
    });
  });
}

tutti_status tutti_all_to_all(tutti_comm* comm, const void* input, void* output, size_t count,
                              tutti_type type, const tutti_options* options) {
  constexpr const char* kCall = "tutti_all_to_all";
  return run(comm, kCall, options, [&](Ranks& ranks, const Options& asked) {
    const Array from = array_of(input, count * static_cast<size_t>(ranks.world()), type, kCall);
    const Array to = array_of(output, count * static_cast<size_t>(ranks.world()), type, kCall);
    return ranks.run("all_to_all", asked, [&ranks, from, to](const Operation& operation) {
      ranks.all_to_all(ranks.transport(), to, from, operation);
    });
  });
}

tutti_status tutti_all_to_all_v(tutti_comm* comm, const void* const* inputs, const size_t* input_counts,
                                void* const* outputs, const size_t* output_counts, tutti_type type,
                                const tutti_options* options) {
  constexpr const char* kCall = "tutti_all_to_all_v";
  return run(comm, kCall, options, [&](Ranks& ranks, const Options& asked) {
    require_counts(input_counts, kCall);
    require_counts(output_counts, kCall);
    const Arrays from = arrays_of(inputs, input_counts, 0, type, ranks.world(), kCall);
    const Arrays to = arrays_of(outputs, output_counts, 0, type, ranks.world(), kCall);
    const auto me = static_cast<size_t>(ranks.rank());
    if (from[me].count != to[me].count)
      fail(ErrorKind::InvalidArgument, "{}: rank {} sends itself {} elements, but expects {}", kCall, me,
           from[me].count, to[me].count);
    return ranks.run("all_to_all_v", asked, [&ranks, from, to](const Operation& operation) {
      ranks.all_to_all_uneven(ranks.transport(), to, from, operation);
    });
  });
}

tutti_status tutti_gather(tutti_comm* comm, const void* input, void* const* outputs, size_t count,
                          tutti_type type, int root, const tutti_options* options) {
  constexpr const char* kCall = "tutti_gather";
  return run(comm, kCall, options, [&](Ranks& ranks, const Options& asked) {
    require_rank(root, ranks, kCall);
    const Array from = array_of(input, count, type, kCall);
    Arrays to;
    if (ranks.rank() == root) to = arrays_of(outputs, nullptr, count, type, ranks.world(), kCall);
    return ranks.run("gather", asked, [&ranks, from, to, root](const Operation& operation) {
      ranks.gather(ranks.transport(), to, from, root, operation);
    });
  });
}

tutti_status tutti_scatter(tutti_comm* comm, const void* const* inputs, void* output, size_t count,
                           tutti_type type, int root, const tutti_options* options) {
  constexpr const char* kCall = "tutti_scatter";
  return run(comm, kCall, options, [&](Ranks& ranks, const Options& asked) {
    require_rank(root, ranks, kCall);
    const Array to = array_of(output, count, type, kCall);
    Arrays from;
    if (ranks.rank() == root) from = arrays_of(inputs, nullptr, count, type, ranks.world(), kCall);
    return ranks.run("scatter", asked, [&ranks, from, to, root](const Operation& operation) {
      ranks.scatter(ranks.transport(), to, from, root, operation);
    });
  });
}

tutti_status tutti_send(tutti_comm* comm, const void* values, size_t count, tutti_type type, int to, int tag,
                        const tutti_options* options) {
  constexpr const char* kCall = "tutti_send";
  return run(comm, kCall, options, [&](Ranks& ranks, const Options& asked) {
    require_other_rank(to, ranks, kCall);
    const Array array = array_of(values, count, type, kCall);
    return ranks.run_message("send", {to, true}, asked, [&ranks, array, to, tag](const Operation& operation) {
      ranks.send(array, to, operation, tag);
    });
  });
}

tutti_status tutti_recv(tutti_comm* comm, void* values, size_t count, tutti_type type, int from, int tag,
                        int* source, const tutti_options* options) {
  constexpr const char* kCall = "tutti_recv";
  return run(comm, kCall, options, [&](Ranks& ranks, const Options& asked) {
    if (from != TUTTI_ANY_RANK) require_other_rank(from, ranks, kCall);
    const Array array = array_of(values, count, type, kCall);
    return ranks.run_message("recv", {from, false, tag}, asked,
                             [&ranks, array, from, tag, source](const Operation& operation) {
                               int sender = from;
                               if (from == TUTTI_ANY_RANK)
                                 sender = ranks.recv_from_any(array, operation, tag);
                               else
                                 ranks.recv(array, from, operation, tag);
                               if (source != nullptr) *source = sender;
                             });
  });
}

tutti_status tutti_barrier(tutti_comm* comm, const tutti_options* options) {
  return run(comm, "tutti_barrier", options, [&](Ranks& ranks, const Options& asked) {
    return ranks.run("barrier", asked, [&ranks](const Operation& operation) { ranks.sync(operation); });
  });
}

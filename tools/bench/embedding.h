#pragma once

#include <cstdint>

#include "tutti/base/json.h"
#include "tutti/comm/communicator.h"

namespace tutti::bench {

struct EmbeddingWork {
  int64_t tables = 26;
  int64_t rows = 38461;  // of each table
  int64_t dim = 32;
  int64_t ids = 65536;  // that each rank looks up in a step, in all tables together
  int64_t steps = 30;
};

// The medians over all steps, in milliseconds.
struct EmbeddingTimes {
  double lookup = 0;  // of all ids, for a forward pass
  double step = 0;    // lookup, backward pass, and an update by Adagrad
  double local = 0;   // index_select of the same ids from one table in this process, and a copy of the result
  int64_t touched = 0;  // rows of all tables that this rank looks up in a step, each once
};
Json to_json(const EmbeddingTimes& times);

// Measures lookups in sharded tables whose rows are spread over the ranks. Few ids are looked up often: id
// floor(rows u^4) for a random u. Every rank has to call it; returns the times of this rank.
EmbeddingTimes measure_embedding(comm::Communicator& comm, const EmbeddingWork& work);

}  // namespace tutti::bench

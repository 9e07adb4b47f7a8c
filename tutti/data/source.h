#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "tutti/data/batch.h"
#include "tutti/data/statistics.h"

namespace tutti::data {

// A collection of examples that can be read in any order. Const after construction, so many threads may read
// at the same time.
class Source {
 public:
  virtual ~Source() = default;

  // The number of examples; they are numbered from 0.
  virtual int64_t size() const = 0;

  // Returns the rows of these examples, in this order, in newly allocated memory. Thread-safe. Fails with an
  // Error that names the file and the record.
  virtual Batch read(std::span<const int64_t> examples) const = 0;

  // The ID of an example, or its number if it has none.
  virtual std::string id(int64_t example) const;
  // The file that the example is read from, for error messages: "data/shard3"; "" if there is none.
  virtual std::string place_of(int64_t example) const;
  // Examples that were skipped because of errors in them.
  struct LeftOut {
    int64_t examples = 0;
    std::string why = {};  // of one of them
  };
  virtual LeftOut left_out() const { return {}; }
  // A readable list of the parts that the examples come from, in their order; "" if unknown. It identifies
  // the data of a run: the same parts in another order are other data.
  virtual std::string parts() const { return {}; }
  // Statistics of the tensors of that name over all examples. Reads all examples, unless a source overrides
  // it.
  virtual TableStatistics statistics(const std::string& name) const;
};

// A source over tensors in memory, with one row per example. The tensors are shared, not copied; they must
// not be changed.
std::shared_ptr<const Source> from_tensors(Batch::Tensors tensors);

// For implementations of read(): throws a Bug that names `what` if an example is outside [0, size).
void check_examples(std::span<const int64_t> examples, int64_t size, std::string_view what);

}  // namespace tutti::data

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "tutti/data/batch.h"
#include "tutti/data/statistics.h"

namespace tutti::data {

// A collection of examples, read in any order. Const after construction, so that many threads may read at
// once.
class Source {
 public:
  virtual ~Source() = default;

  // Examples, numbered from 0.
  virtual int64_t size() const = 0;

  // The rows of these examples, in this order, in memory of their own. Thread-safe. Fails with an Error that
  // names the file and the record.
  virtual Batch read(std::span<const int64_t> examples) const = 0;

  // What people call an example: its number, where it has no ID.
  virtual std::string id(int64_t example) const;
  // Where it is read from, for error messages: "data/shard3"; "" where nobody would know more then.
  virtual std::string place_of(int64_t example) const;
  // Examples that were left out, because something was wrong with them.
  struct LeftOut {
    int64_t examples = 0;
    std::string why = {};  // of one of them
  };
  virtual LeftOut left_out() const { return {}; }
  // Of all examples' tensors of that name. Reads them all, unless a source knows better.
  virtual TableStatistics statistics(const std::string& name) const;
};

// A source over tensors in memory, one row an example. The tensors are shared, not copied: leave them
// unchanged.
std::shared_ptr<const Source> from_tensors(Batch::Tensors tensors);

// For implementations of read(): an example outside [0, size) is a Bug of the caller that names `what`.
void check_examples(std::span<const int64_t> examples, int64_t size, std::string_view what);

}  // namespace tutti::data

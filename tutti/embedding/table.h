#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/data/batch.h"
#include "tutti/embedding/lookups.h"
#include "tutti/embedding/row_layout.h"
#include "tutti/embedding/row_shard.h"

namespace tutti::embedding {

// The treatment of an id that is negative or not less than the number of rows.
enum class BadIds {
  Error,  // an InvalidArgument that names table, id and example
  Clamp,  // the nearest row is used
  Drop,   // it has a row of zeros that is not trained
};

// An id for which a table has no row, in a lookup of which the table knows the row but not the batch.
class BadId : public Error {
 public:
  BadId(const std::string& text, int64_t row) : Error(ErrorKind::InvalidArgument, text), row_(row) {}
  int64_t row() const { return row_; }

 private:
  int64_t row_;
};

// Options of a table and of the Embedding that reads it.
struct TableOptions {
  // The columns of a batch with ids of this table. Empty: the column with the name of the module, "user" for
  // one that is registered as "net.user".
  std::vector<std::string> columns = {};
  Placement placement = Placement::Mod;  // of a table that is not dynamic
  BadIds bad_ids = BadIds::Error;        // the treatment of ids outside of the table
  // Initial values are uniform in [-scale, scale).
  double initial_scale = 0.05;
  // Empty: the optimiser of the model, applied to the rows that are looked up.
  std::optional<RowOptimizerOptions> optimizer = {};
  // Tables of up to so many numbers are ordinary parameters, of which every worker has a copy.
  int64_t replicate_up_to = 65536;

  // Ids are any whole numbers from 0, and rows are made for those that are looked up. The number of rows of
  // the table is then the most that it may have, or 0 for no limit (Growth::most_rows).
  bool dynamic = false;
  WhenFull when_full = WhenFull::Refuse;  // see Growth, like all below
  int64_t admit_after = 1;                // lookups until an id gets a row
  int64_t evict_unused_for = 0;           // steps without a lookup after which a row is dropped; 0: never
  int64_t evict_below = 0;                // rows with fewer lookups are dropped; 0: none
};

// One table whose rows are spread over their owners, as the forward pass of one worker sees it. Lookups of a
// step use the rows that were fetched before it (Tables). Outside of steps, rows are read where they are, if
// this process can reach all of them. Not thread-safe.
class Table {
 public:
  // If `may_be_padded`, the id -1 stands for no id, and has a row of zeros. Throws InvalidArgument if the
  // numbers make no sense.
  Table(int64_t rows, int64_t dim, const TableOptions& options, bool may_be_padded);

  int64_t rows() const { return rows_; }
  int64_t dim() const { return dim_; }
  const TableOptions& options() const { return options_; }
  const std::string& name() const { return name_; }

  // Returns the rows of these ids, in the shape of the ids and then `dim`, for a forward pass. Before the
  // table is part of a training, it has its initial rows, or those that were put into alone(). If the table
  // is an ordinary parameter, `weight` has the rows.
  torch::Tensor look_up(const torch::Tensor& ids, const torch::Tensor& weight = {});

  // While it is set, this function makes the lookups instead. It may call `own`, which returns what the table
  // itself has. An export records lookups by it, and replaces them by others that can be traced.
  using LookUp =
      std::function<torch::Tensor(const torch::Tensor& ids, const std::function<torch::Tensor()>& own)>;
  void look_up_by(LookUp look_up) { replacement_ = std::move(look_up); }
  // Looks up ids in a tensor with all rows, by operators of LibTorch alone, so that it can be traced. Returns
  // the same as the table, which must not grow. An id for which the table throws is an error of LibTorch's
  // operator.
  torch::Tensor look_up_by_operators(const torch::Tensor& weight, const torch::Tensor& ids) const;

  // All rows of a table that is not part of a training yet.
  RowShard& alone();
  bool has_rows_alone() const { return alone_ != nullptr; }

  // Everything below is for Tables.
  // Returns what the owners have to know. `optimizer` is the model's.
  TableSpec spec(const OptimizerOptions& optimizer) const;
  // Sets the name, for errors, columns and checkpoints.
  void set_name(const std::string& name);
  // The rows are spread over so many owners from now on.
  void spread(int owners);
  // Lets this process read all rows where they are.
  void show(std::vector<torch::Tensor> of_owners);
  const DirectRows& direct() const { return direct_; }
  // The values that lookups have, of which only the last ones can be read where they are.
  void look_up_values(RowValues values) { values_ = values; }
  bool is_direct() const { return values_ == RowValues::Last && direct_.readable(); }
  // Reads the rows of these keys, outside of steps, unless they can be read directly; empty: this process
  // cannot.
  using ReadNow = std::function<torch::Tensor(std::span<const uint64_t> keys)>;
  void read_with(ReadNow read) { read_now_ = std::move(read); }

  const RowLayout& layout() const { return layout_; }
  Lookups& lookups() { return lookups_; }
  // The lookups of one lane: the columns of its batch; none if the batch has no examples.
  std::vector<Lookups::Column> columns_in(const Batch& batch) const;

 private:
  // The column that ids are from; none if a forward pass looks up others.
  struct Origin {
    const Batch* batch = nullptr;
    std::string column = {};
  };
  // Calls `visit_id(index, id)` for each id, with kNoRow for those that have none.
  std::string label() const;
  template <class Visit>
  void for_each_id(const torch::Tensor& ids, const Origin& from, const Visit& visit_id) const;
  std::vector<uint64_t> keys_of(const torch::Tensor& ids, const Origin& from) const;
  int64_t other_id(int64_t id, int64_t example, const Origin& from) const;
  torch::Tensor look_up_rows(const torch::Tensor& ids);
  torch::Tensor look_up_in(const torch::Tensor& weight, const torch::Tensor& ids) const;
  torch::Tensor look_up_now(const torch::Tensor& ids);
  torch::Tensor read_shown(std::span<const uint64_t> keys) const;

  const int64_t rows_;
  const int64_t dim_;
  const TableOptions options_;
  const bool may_be_padded_;
  std::string name_ = "embedding";
  std::vector<std::string> columns_;
  RowLayout layout_;
  Lookups lookups_;
  DirectRows direct_;
  RowValues values_ = RowValues::Last;
  ReadNow read_now_;
  LookUp replacement_;
  std::unique_ptr<RowShard> alone_;
  bool is_spread_ = false;
};

}  // namespace tutti::embedding

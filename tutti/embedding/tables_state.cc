#include <algorithm>
#include <cstring>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/comm/gather_all.h"
#include "tutti/data/sampler.h"
#include "tutti/embedding/tables.h"

// The state of tables: to and from checkpoints, and its checksum.
namespace tutti::embedding {
namespace {

// "user.weight" and "user.weight/sum".
std::string full_name(const std::string& table, const std::string& slot) {
  return slot.empty() ? table + ".weight" : table + ".weight/" + slot;
}

std::string part_name(const std::string& full, int owner, int world) {
  return fmt::format("{}[{}of{}]", full, owner + 1, world);
}

struct PartName {
  std::string full;
  int owner = 0;
  int world = 0;
};

[[noreturn]] void fail_not_a_part(const std::string& name) {
  fail(ErrorKind::DataLoss,
       "the checkpoint has rows that are called '{}', expected a name like 'user.weight[1of4]'", name);
}

PartName parse_part_name(const std::string& name) {
  const size_t open = name.rfind('[');
  const size_t of = name.rfind("of");
  if (open == std::string::npos || of == std::string::npos || of < open || !name.ends_with(']'))
    fail_not_a_part(name);
  PartName part{.full = name.substr(0, open)};
  try {
    part.owner = std::stoi(name.substr(open + 1, of - open - 1)) - 1;
    part.world = std::stoi(name.substr(of + 2));
  } catch (const std::exception&) {
    fail_not_a_part(name);
  }
  if (part.owner < 0 || part.owner >= part.world) fail_not_a_part(name);
  return part;
}

uint64_t hash_of(uint64_t seed, std::span<const float> row) {
  uint64_t hash = seed;
  for (const float value : row) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    hash = data::mix(hash ^ bits);
  }
  return hash;
}

}  // namespace

std::vector<store::NamedTensor> Tables::state() const {
  std::vector<store::NamedTensor> state;
  for (const auto& [name, table] : tables_) {
    const auto add = [&, &table_name = name, &of = table](const std::string& slot,
                                                          const torch::Tensor& tensor) {
      state.push_back({part_name(full_name(table_name, slot), comm_->rank(), of->layout().world()), tensor});
    };
    add("", table->values());
    for (const auto& slot : table->optimizer().slots()) add(slot.name, slot.tensor);
  }
  return state;
}

std::vector<store::NamedTensor> Tables::gather_state() const {
  const std::vector<store::NamedTensor> own = state();
  const auto name_at = [](const std::string& name, int owner) {
    const PartName part = parse_part_name(name);
    return part_name(part.full, owner, part.world);
  };
  const comm::Options options{.what = kRows};
  if (comm_->rank() != 0) {
    for (const auto& [name, tensor] : own) comm_->send(tensor.contiguous(), 0, options).wait();
    return {};
  }
  std::vector<store::NamedTensor> all = own;
  for (int owner = 1; owner < comm_->world(); ++owner) {
    size_t next = 0;
    for (const auto& [name, table] : tables_) {
      const size_t tensors = 1 + table->optimizer().slots().size();
      for (size_t i = 0; i < tensors; ++i, ++next) {
        std::vector<int64_t> shape = own[next].tensor.sizes().vec();
        shape[0] = table->layout().count(owner);
        const torch::Tensor theirs = torch::empty(shape, torch::kFloat32);
        comm_->recv(theirs, owner, options).wait();
        all.push_back({name_at(own[next].name, owner), theirs});
      }
    }
  }
  return all;
}

Json Tables::facts() const {
  Json facts = Json::object();
  for (const auto& [name, table] : tables_) facts[name] = table->facts();
  return facts;
}

// Returns the layout of rows in a checkpoint of that many workers. Throws InvalidArgument if they are not
// those of this table.
RowLayout Tables::saved_layout(const Table& table, const Json& facts, int world) {
  const std::string what = "the table '" + table.name() + "' in the checkpoint";
  if (!facts.contains(table.name()))
    fail(ErrorKind::DataLoss, "the checkpoint says nothing of the table '{}'", table.name());
  const Json& saved = facts.at(table.name());
  const auto rows = value_in<int64_t>(saved, "rows", what);
  const auto dim = value_in<int64_t>(saved, "dim", what);
  if (rows != table.rows() || dim != table.dim())
    fail(ErrorKind::InvalidArgument, "{} has {} rows of {}, but in the model it has {} of {}", what, rows,
         dim, table.rows(), table.dim());
  return RowLayout(parse_placement(value_in<std::string>(saved, "placement", what), what), rows, world);
}

// Takes this worker's rows from a tensor that rank 0 has, which sends it to all in pieces.
void Tables::take_rows(const torch::Tensor& at_rank_0, const RowLayout& before, int owner,
                       const RowLayout& now, const torch::Tensor& to) const {
  constexpr int64_t kPiece = int64_t{1} << 24;  // numbers
  const int64_t width = to.dim() == 1 ? 1 : to.size(1);
  const int64_t rows = before.count(owner);
  const int64_t at_a_time = std::max<int64_t>(1, kPiece / width);
  auto* own = static_cast<float*>(to.data_ptr());
  for (int64_t begin = 0; begin < rows; begin += at_a_time) {
    const int64_t count = std::min(rows - begin, at_a_time);
    const torch::Tensor piece =
        comm_->rank() == 0 ? at_rank_0.narrow(0, begin, count).to(torch::kFloat32).contiguous().view({-1})
                           : torch::empty({count * width}, torch::kFloat32);
    if (comm_->world() > 1) comm_->broadcast(piece, 0, {.what = kRows}).wait();
    const auto* from = static_cast<const float*>(piece.data_ptr());
    for (int64_t row = begin; row < begin + count; ++row, from += width) {
      const RowLayout::Place place = now.place_of(before.id_at({owner, row}));
      if (place.owner == comm_->rank())
        std::memcpy(own + place.row * width, from, static_cast<size_t>(width) * sizeof(float));
    }
  }
}

// Returns this worker's part of the rows of that name, and their table.
std::pair<const Table*, torch::Tensor> Tables::find(const std::string& full) const {
  for (const auto& [name, table] : tables_) {
    if (full == full_name(name, "")) return {table.get(), table->values()};
    for (const auto& slot : table->optimizer().slots()) {
      if (full == full_name(name, slot.name)) return {table.get(), slot.tensor};
    }
  }
  fail(ErrorKind::InvalidArgument,
       "the checkpoint has the rows '{}', which this model and its optimisers do not have; resume with those "
       "of the "
       "checkpoint, or begin with its weights alone (--resume weights)",
       full);
}

void Tables::restore(const std::vector<store::NamedTensor>& state, const Json& facts, bool with_optimizer) {
  // The names and sizes of what rank 0 has.
  Json outline = {{"facts", facts}, {"tensors", Json::array()}};
  for (const auto& [name, tensor] : state) outline["tensors"].push_back({name, tensor.sizes().vec()});
  if (comm_->world() > 1)
    outline =
        parse_json(comm::gather_all(*comm_, comm_->rank() == 0 ? outline.dump() : std::string(), kRows)[0],
                   kRows, ErrorKind::DataLoss);
  std::map<std::string, int64_t> found;  // the number of rows by name
  for (size_t i = 0; i < outline.at("tensors").size(); ++i) {
    const auto name = outline.at("tensors")[i].at(0).get<std::string>();
    const auto shape = outline.at("tensors")[i].at(1).get<std::vector<int64_t>>();
    const PartName part = parse_part_name(name);
    if (!with_optimizer && part.full.find('/') != std::string::npos) continue;
    const auto [table, own] = find(part.full);
    const RowLayout before = saved_layout(*table, outline.at("facts"), part.world);
    std::vector<int64_t> expected = own.sizes().vec();
    expected[0] = before.count(part.owner);
    if (shape != expected)
      fail(ErrorKind::DataLoss, "the rows '{}' of the checkpoint have the shape [{}], expected [{}]", name,
           fmt::join(shape, ", "), fmt::join(expected, ", "));
    take_rows(comm_->rank() == 0 ? state[i].tensor : torch::Tensor(), before, part.owner, table->layout(),
              own);
    found[part.full] += shape[0];
  }
  for (const auto& [name, table] : tables_) {
    std::vector<std::string> wanted = {full_name(name, "")};
    if (with_optimizer) {
      for (const auto& slot : table->optimizer().slots()) wanted.push_back(full_name(name, slot.name));
    }
    for (const std::string& full : wanted) {
      if (found[full] != table->rows())
        fail(ErrorKind::InvalidArgument, "the checkpoint has {} of the {} rows of '{}'", found[full],
             table->rows(), full);
    }
  }
  if (shared_ != nullptr && !empty()) shared_->sync({.what = kRows});
}

std::string Tables::checksum() const {
  std::vector<int64_t> sums;
  for (const auto& [name, table] : tables_) {
    uint64_t first = 0;
    uint64_t second = 0;
    const auto dim = static_cast<size_t>(table->dim());
    const auto* row = static_cast<const float*>(table->values().data_ptr());
    for (int64_t i = 0; i < table->values().size(0); ++i, row += dim) {
      const auto id = static_cast<uint64_t>(table->layout().id_at({comm_->rank(), i}));
      const uint64_t hash = hash_of(data::mix(id + 1), {row, dim});
      first += hash;
      second += data::mix(hash ^ 0x9e3779b97f4a7c15ULL);
    }
    sums.push_back(static_cast<int64_t>(first));
    sums.push_back(static_cast<int64_t>(second));
  }
  std::vector<uint64_t> total(sums.size(), 0);
  const auto all = comm_->world() == 1
                       ? std::vector<torch::Tensor>{torch::tensor(sums, torch::kLong)}
                       : comm::gather_all(*comm_, torch::tensor(sums, torch::kLong), "a checksum of rows");
  for (const torch::Tensor& theirs : all) {
    for (size_t i = 0; i < total.size(); ++i)
      total[i] += static_cast<uint64_t>(static_cast<const int64_t*>(theirs.data_ptr())[i]);
  }
  std::string text;
  for (const uint64_t number : total) text += fmt::format("{:016x}", number);
  return text;
}

}  // namespace tutti::embedding

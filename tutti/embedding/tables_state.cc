#include <algorithm>
#include <cstring>
#include <map>

#include <fmt/format.h>
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
  const comm::Options options{.what = "the rows of tables"};
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

void Tables::restore(const std::vector<store::NamedTensor>& state, const Json& facts) {
  // What rank 0 has, as all see it.
  Json outline = {{"facts", facts}, {"tensors", Json::array()}};
  for (const auto& [name, tensor] : state) outline["tensors"].push_back({name, tensor.sizes().vec()});
  const std::string own = comm_->rank() == 0 ? outline.dump() : std::string();
  const auto told = comm_->world() == 1 ? std::vector<std::string>{own}
                                        : comm::gather_all(*comm_, own, "the rows of tables");
  outline = parse_json(told[0], "the rows of tables", ErrorKind::DataLoss);

  std::map<std::string, int64_t> rows_found;  // by full name
  for (size_t i = 0; i < outline.at("tensors").size(); ++i) {
    const Json& entry = outline.at("tensors")[i];
    const auto saved_name = entry.at(0).get<std::string>();
    const auto shape = entry.at(1).get<std::vector<int64_t>>();
    const PartName part = parse_part_name(saved_name);
    Named* found = nullptr;
    torch::Tensor own_rows;
    for (Named& each : tables_) {
      if (part.full == full_name(each.name, "")) own_rows = each.table->values();
      for (const auto& slot : each.table->optimizer().slots()) {
        if (part.full == full_name(each.name, slot.name)) own_rows = slot.tensor;
      }
      if (own_rows.defined()) {
        found = &each;
        break;
      }
    }
    if (found == nullptr)
      fail(ErrorKind::InvalidArgument,
           "the checkpoint has the rows '{}', which this model and its optimiser do not have; resume with "
           "those of the "
           "checkpoint, or start with --resume weights",
           part.full);
    const Json& saved = outline.at("facts").at(found->name);
    const RowLayout& layout = found->table->layout();
    const auto count = value_in<int64_t>(saved, "rows", "the facts of a table");
    if (count != layout.rows() ||
        value_in<int64_t>(saved, "dim", "the facts of a table") != found->table->dim())
      fail(ErrorKind::InvalidArgument, "the table '{}' has {} rows of {}, but in the checkpoint it is {}",
           found->name, layout.rows(), found->table->dim(), saved.dump());
    const RowLayout before(
        parse_placement(value_in<std::string>(saved, "placement", "the facts of a table"), "a table"), count,
        part.world);
    if (shape.empty() || shape[0] != before.count(part.owner) ||
        shape.size() != static_cast<size_t>(own_rows.dim()) ||
        (shape.size() > 1 && shape[1] != own_rows.size(1)))
      fail(ErrorKind::DataLoss, "the rows '{}' of the checkpoint do not have the expected shape", saved_name);
    rows_found[part.full] += shape[0];

    const int64_t width = own_rows.dim() == 1 ? 1 : own_rows.size(1);
    constexpr int64_t kPiece = int64_t{1} << 24;  // floats that are sent at a time
    const int64_t step = std::max<int64_t>(1, kPiece / width);
    for (int64_t begin = 0; begin < shape[0]; begin += step) {
      const int64_t end = std::min(shape[0], begin + step);
      torch::Tensor piece =
          comm_->rank() == 0 ? state[i].tensor.narrow(0, begin, end - begin).to(torch::kFloat32).contiguous()
                             : torch::empty({(end - begin) * width}, torch::kFloat32);
      piece = piece.view({-1});
      if (comm_->world() > 1) comm_->broadcast(piece, 0, {.what = "the rows of tables"}).wait();
      const auto* from = static_cast<const float*>(piece.data_ptr());
      auto* to = static_cast<float*>(own_rows.data_ptr());
      for (int64_t row = begin; row < end; ++row, from += width) {
        const RowLayout::Place place = layout.place_of(before.id_at({part.owner, row}));
        if (place.owner == comm_->rank())
          std::memcpy(to + place.row * width, from, static_cast<size_t>(width) * sizeof(float));
      }
    }
  }
  for (const auto& [name, table] : tables_) {
    std::vector<std::string> wanted = {full_name(name, "")};
    for (const auto& slot : table->optimizer().slots()) wanted.push_back(full_name(name, slot.name));
    for (const std::string& full : wanted) {
      if (rows_found[full] != table->rows())
        fail(ErrorKind::InvalidArgument, "the checkpoint has {} of the {} rows of '{}'", rows_found[full],
             table->rows(), full);
    }
  }
  if (shared_ != nullptr && !empty()) shared_->sync({.what = "the rows of tables"});
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

#include "tutti/embedding/former_rows.h"

#include <algorithm>
#include <map>
#include <utility>

#include <nlohmann/json.hpp>
#include <torch/types.h>

#include "tutti/comm/gather_all.h"
#include "tutti/embedding/row_state.h"

namespace tutti::embedding {
namespace {

constexpr const char* kFormerRows = "the rows of other workers";  // for errors

// For each owner of an epoch, the rank in the present epoch that gives its rows to the others.
using Givers = std::vector<int>;

// Each rank offers lists of an epoch, the number of its owners, the number of owners whose rows it holds, and
// these: first itself, then others. Returns the givers by epoch.
std::map<int64_t, Givers> givers_in(const std::vector<torch::Tensor>& offers) {
  std::map<int64_t, Givers> epochs;
  for (size_t rank = 0; rank < offers.size(); ++rank) {
    const auto* number = static_cast<const int64_t*>(offers[rank].data_ptr());
    const auto* const end = number + offers[rank].numel();
    while (number != end) {
      const int64_t epoch = *number++;
      Givers& givers = epochs[epoch];
      givers.resize(static_cast<size_t>(*number++), kNobody);
      const int64_t held = *number++;
      for (int64_t i = 0; i < held; ++i) {
        const int64_t owner = *number++;
        int& giver = givers.at(static_cast<size_t>(owner));
        if (i == 0 || giver == kNobody) giver = static_cast<int>(rank);
      }
    }
  }
  return epochs;
}

// A part of a table that is sent at a time.
struct Piece {
  size_t table = 0;
  RowShard::State rows;
};

std::vector<Piece> pieces_of(const std::vector<const OwnedRows*>& given) {
  std::vector<Piece> pieces;
  for (const OwnedRows* rows : given) {
    for (size_t t = 0; t < rows->shards().size(); ++t) {
      const RowShard& shard = rows->shards()[t];
      for_each_chunk(shard.spec().name, state_with_ids(shard), [&](const RowChunk& chunk) {
        pieces.push_back({t, chunk.rows});
      });
    }
  }
  return pieces;
}

// Returns what each rank has to hold of a piece.
std::vector<store::Snapshot> parts_of(const Piece& piece, const HeldRows& to) {
  std::vector<std::vector<int>> receivers;
  for (int owner = 0; owner < to.world(); ++owner) receivers.push_back(to.receivers_of(owner));
  const RowShard& shard = to.own().shards()[piece.table];
  std::vector<store::Snapshot> parts;
  for (const RowShard::State& part : split(piece.rows, shard.layout(), receivers))
    parts.push_back({tensors_of(shard.spec().name, part), {{"table", piece.table}}});
  return parts;
}

void put(const store::Snapshot& part, HeldRows& to) {
  const auto table = part.values.at("table").get<size_t>();
  for (OwnedRows& rows : to.all()) {
    RowShard& shard = rows.shards().at(table);
    shard.put(state_of(shard.spec().name, part.tensors), false);
  }
}

// Sets the steps of the averages, which are the same on all owners that are left, and the sums of the counts.
void put_totals(comm::Communicator& comm, const std::vector<const OwnedRows*>& given, HeldRows& to) {
  const size_t tables = to.own().shards().size();
  std::vector<int64_t> own = {0};
  for (const OwnedRows* rows : given) own.front() = std::max(own.front(), rows->averaged_steps());
  for (size_t t = 0; t < tables; ++t) {
    GrowthCounts counts;
    for (const OwnedRows* rows : given) counts += rows->shards()[t].counts();
    own.insert(own.end(), {counts.admitted, counts.evicted, counts.refused});
  }
  int64_t steps = 0;
  std::vector<GrowthCounts> counts(tables);
  for (const torch::Tensor& theirs : comm::gather_all(comm, torch::tensor(own, torch::kLong), kFormerRows)) {
    const auto* number = static_cast<const int64_t*>(theirs.data_ptr());
    steps = std::max(steps, *number++);
    for (GrowthCounts& of_table : counts) {
      of_table += {.admitted = number[0], .evicted = number[1], .refused = number[2]};
      number += 3;
    }
  }
  to.put_totals(steps, counts);
}

}  // namespace

void FormerRows::keep(uint64_t epoch, std::unique_ptr<HeldRows> rows) {
  epochs_.push_back({epoch, std::move(rows)});
}

bool FormerRows::find(comm::Communicator& comm) {
  std::vector<int64_t> offer;
  for (const auto& [epoch, rows] : epochs_) {
    const std::vector<int> given = rows->given();
    offer.insert(offer.end(),
                 {static_cast<int64_t>(epoch), rows->world(), static_cast<int64_t>(given.size())});
    offer.insert(offer.end(), given.begin(), given.end());
  }
  const auto epochs = givers_in(comm::gather_all(comm, torch::tensor(offer, torch::kLong), kFormerRows));
  const auto found = std::find_if(epochs.rbegin(), epochs.rend(), [](const auto& entry) {
    return std::find(entry.second.begin(), entry.second.end(), kNobody) == entry.second.end();
  });
  given_.clear();
  if (found == epochs.rend()) return false;
  const auto& [epoch, givers] = *found;
  std::erase_if(epochs_,
                [&, &of = epoch](const OfEpoch& each) { return static_cast<int64_t>(each.epoch) != of; });
  for (size_t owner = 0; owner < givers.size(); ++owner)
    if (givers[owner] == comm.rank()) given_.push_back(static_cast<int>(owner));
  for (const int owner : given_) {
    const auto& all = mine()->all();
    const bool is_held =
        std::any_of(all.begin(), all.end(), [&](const OwnedRows& rows) { return rows.owner() == owner; });
    if (!is_held) mine()->adopt(owner);
  }
  return true;
}

void FormerRows::hand_over(comm::Communicator& comm, HeldRows& to) {
  std::vector<const OwnedRows*> given;
  for (const int owner : given_) {
    const auto& all = mine()->all();
    given.push_back(
        &*std::find_if(all.begin(), all.end(), [&](const OwnedRows& rows) { return rows.owner() == owner; }));
  }
  to.reset();
  put_totals(comm, given, to);
  const std::vector<Piece> pieces = pieces_of(given);
  const std::vector<int64_t> rounds =
      comm::gather_all(comm, static_cast<int64_t>(pieces.size()), kFormerRows);
  const auto most = static_cast<size_t>(*std::max_element(rounds.begin(), rounds.end()));
  for (size_t i = 0; i < most; ++i) {
    const std::vector<store::Snapshot> parts =
        i < pieces.size() ? parts_of(pieces[i], to)
                          : std::vector<store::Snapshot>(static_cast<size_t>(comm.world()));
    const std::vector<store::Snapshot> received = comm::exchange(comm, parts, kFormerRows);
    HeldRows::Room room = to.room();
    for (const store::Snapshot& part : received) {
      if (part.empty()) continue;
      const auto table = part.values.at("table").get<size_t>();
      to.add_rows(room, table, ids_in(state_of(to.own().shards()[table].spec().name, part.tensors)));
    }
    reserve_together(comm, to, room);
    for (const store::Snapshot& part : received)
      if (!part.empty()) put(part, to);
  }
  to.set_whole();
}

}  // namespace tutti::embedding

#include "tutti/embedding/held_rows.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include <torch/utils.h>

#include "tutti/base/error.h"

namespace tutti::embedding {
namespace {

constexpr size_t kFloatsInWord = sizeof(int64_t) / sizeof(float);

size_t words_for(size_t floats) { return (floats + kFloatsInWord - 1) / kFloatsInWord; }

size_t count_of(const std::vector<std::span<const float>>& values) {
  size_t count = 0;
  for (const auto& part : values) count += part.size();
  return count;
}

int64_t* words_in(const torch::Tensor& message) { return static_cast<int64_t*>(message.data_ptr()); }

// A message has for each owner whose rows the receiver holds the number of heads, the number of floats, the
// heads, and the floats of all tables one after the other.
constexpr size_t kCounts = 2;

void write(const RowGradients& gradients, int64_t*& to) {
  const size_t floats = count_of(gradients.values);
  *to++ = static_cast<int64_t>(gradients.heads.size());
  *to++ = static_cast<int64_t>(floats);
  to = std::copy(gradients.heads.begin(), gradients.heads.end(), to);
  auto* number = static_cast<char*>(static_cast<void*>(to));
  for (const auto& part : gradients.values) {
    if (!part.empty()) std::memcpy(number, part.data(), part.size_bytes());
    number += part.size_bytes();
  }
  to += words_for(floats);
}

// Reads what write() has written.
class MessageReader {
 public:
  explicit MessageReader(const torch::Tensor& message)
      : left_(words_in(message), static_cast<size_t>(message.numel())) {}

  RowGradients next(const OwnedRows& rows) {
    const auto counts = take(kCounts);
    if (counts[0] < 0 || counts[1] < 0) fail_not_gradients();
    const auto heads = take(static_cast<size_t>(counts[0]));
    const auto floats = static_cast<size_t>(counts[1]);
    const void* const numbers = take(words_for(floats)).data();
    return {{heads.begin(), heads.end()}, rows.split(heads, {static_cast<const float*>(numbers), floats})};
  }

 private:
  std::span<const int64_t> take(size_t words) {
    if (words > left_.size()) fail_not_gradients();
    const auto taken = left_.subspan(0, words);
    left_ = left_.subspan(words);
    return taken;
  }
  [[noreturn]] static void fail_not_gradients() {
    fail(ErrorKind::InvalidArgument, "the gradients of rows end too early");
  }

  std::span<const int64_t> left_;
};

}  // namespace

std::vector<int> holders_of_copies(const std::vector<std::string>& host_of_rank) {
  const int world = static_cast<int>(host_of_rank.size());
  std::vector<int> holders(host_of_rank.size(), kNobody);
  std::vector<int> copies(host_of_rank.size(), 0);
  for (int owner = 0; owner < world; ++owner) {
    // A rank on this host, copies that are there already, and the distance after the owner.
    const auto cost = [&](int rank) {
      return std::tuple(host_of_rank[static_cast<size_t>(rank)] == host_of_rank[static_cast<size_t>(owner)],
                        copies[static_cast<size_t>(rank)], (rank - owner + world) % world);
    };
    int& best = holders[static_cast<size_t>(owner)];
    for (int rank = 0; rank < world; ++rank) {
      if (rank != owner && (best == kNobody || cost(rank) < cost(best))) best = rank;
    }
    if (best != kNobody) ++copies[static_cast<size_t>(best)];
  }
  return holders;
}

HeldRows::HeldRows(const std::vector<TableSpec>& tables, int rank, std::vector<int> holders, int64_t seed,
                   const RowPlace& place)
    : rank_(rank), holders_(std::move(holders)) {
  all_.emplace_back(tables, rank, world(), seed, place);
  for (int owner = 0; owner < world(); ++owner)
    if (holders_[static_cast<size_t>(owner)] == rank) all_.emplace_back(tables, owner, world(), seed);
}

HeldRows::HeldRows(const std::vector<TableSpec>& tables, int rank, int world, int64_t seed,
                   comm::SharedVectors& shared)
    : rank_(rank), holders_(static_cast<size_t>(world), kNobody), seed_(seed) {
  memory_ = std::make_unique<RowMemory>(shared, rank, [&](const RowPlace& place) {
    all_.clear();
    all_.emplace_back(tables, rank, world, seed, place);
  });
  size_t largest_row = 0;
  for (const RowShard& shard : own().shards()) largest_row = std::max(largest_row, shard.row_bytes());
  memory_->make_logs(largest_row);
  own().keep_log(memory_->log());
}

void HeldRows::set_whole() {
  is_whole_ = true;
  if (memory_) memory_->log().set_whole(true);
}

std::vector<int> HeldRows::given() const {
  std::vector<int> owners;
  for (const OwnedRows& rows : all_) owners.push_back(rows.owner());
  for (int owner = 0; memory_ && owner < world(); ++owner) {
    if (std::find(owners.begin(), owners.end(), owner) == owners.end() && memory_->log_of(owner).is_whole())
      owners.push_back(owner);
  }
  return owners;
}

void HeldRows::release() {
  if (memory_) memory_->log().release();
}

void HeldRows::adopt(int owner) {
  memory_->log_of(owner).take_over();
  std::vector<TableSpec> tables;
  for (const RowShard& shard : own().shards()) tables.push_back(shard.spec());
  all_.emplace_back(tables, owner, world(), seed_, memory_->of(owner));
  all_.back().keep_log(memory_->log_of(owner));
  all_.back().take_back();
}

std::vector<int> HeldRows::receivers_of(int owner) const {
  const int holder = holders_[static_cast<size_t>(owner)];
  return holder == kNobody ? std::vector<int>{owner} : std::vector<int>{owner, holder};
}

// In the order of all() on the receiver.
torch::Tensor HeldRows::message_to(int rank, const TableGradients& gradients) const {
  std::vector<const RowGradients*> sent = {&gradients.of_owners[static_cast<size_t>(rank)]};
  for (size_t owner = 0; owner < holders_.size(); ++owner)
    if (holders_[owner] == rank) sent.push_back(&gradients.of_owners[owner]);
  size_t words = 0;
  for (const RowGradients* each : sent)
    words += kCounts + each->heads.size() + words_for(count_of(each->values));
  const torch::Tensor message = torch::empty({static_cast<int64_t>(words)}, torch::kLong);
  int64_t* to = words_in(message);
  for (const RowGradients* each : sent) write(*each, to);
  return message;
}

void HeldRows::resume_adopted(int64_t last) {
  for (OwnedRows& rows : all_)
    if (is_adopted(rows) && rows.log()->step() == last) rows.resume_step();
}

// The words of the record, and for each table the slots of rows and of ids that wait.
HeldRows::Room HeldRows::room() const {
  Room room = {0};
  for (const RowShard& shard : own().shards()) {
    const auto [rows, waiting] = shard.room();
    room.insert(room.end(), {rows, waiting});
  }
  return room;
}

void HeldRows::add_rows(Room& room, size_t table, int64_t rows) const {
  if (!own().shards()[table].layout().grows()) return;
  room[1 + 2 * table] += rows;
  room[2 + 2 * table] += rows;
}

HeldRows::Room HeldRows::room_for(const Sums& sums) const {
  Room room = this->room();
  int64_t most_words = 0;
  for (size_t t = 0; t < own().shards().size(); ++t) {
    int64_t rows = 0;
    for (const std::vector<RowSumsView>& of_worker : sums.front())
      if (!of_worker.empty()) rows += static_cast<int64_t>(of_worker[t].sums.size());
    const auto [words, words_of_ids] = own().shards()[t].words_of_log(rows);
    room.front() += words;
    most_words = std::max(most_words, words_of_ids);
    add_rows(room, t, rows);
  }
  room.front() += most_words;
  return room;
}

void HeldRows::reserve(const Room& room) {
  memory_->reserve(room.front());
  for (size_t t = 0; t < own().shards().size(); ++t)
    own().shards()[t].reserve({room[1 + 2 * t], room[2 + 2 * t]});
  memory_->end_replacements();
}

void reserve_together(comm::Communicator& comm, HeldRows& rows, const HeldRows::Room& room) {
  if (!rows.has_memory()) return;
  HeldRows::Room most = room;
  comm.all_reduce(torch::from_blob(most.data(), {static_cast<int64_t>(most.size())}, torch::kLong),
                  comm::ReduceOp::Max, {.what = "the room for rows"})
      .wait();
  rows.reserve(most);
}

HeldRows::Sums HeldRows::receive(const TableGradients& own, const std::vector<torch::Tensor>& messages,
                                 const std::vector<LaneRange>& lanes) const {
  Sums sums(all_.size());
  for (size_t worker = 0; worker < lanes.size(); ++worker) {
    const bool is_own = static_cast<int>(worker) == rank_;
    std::optional<MessageReader> reader;
    if (!is_own) reader.emplace(messages[worker]);
    for (size_t i = 0; i < all_.size(); ++i) {
      const auto owner = static_cast<size_t>(all_[i].owner());
      sums[i].push_back(is_own ? all_[i].sums_in(own.of_owners[owner], lanes[worker])
                               : all_[i].sums_in(reader->next(all_[i]), lanes[worker]));
    }
  }
  return sums;
}

// With one lane the gradients are of the mean loss.
void HeldRows::add_up(const Sums& sums, int64_t lanes, int64_t examples, int64_t step) {
  if (memory_) memory_->log().begin(step + 1, own().averaged_steps());
  const double divisor = lanes == 1 ? 0 : static_cast<double>(examples);
  for (size_t i = 0; i < all_.size(); ++i) all_[i].add_up(sums[i], lanes, divisor);
  has_received_ = true;
}

void HeldRows::begin_step(int64_t step) {
  if (memory_) memory_->log().take_over();
  for (OwnedRows& rows : all_)
    if (!is_adopted(rows)) rows.begin_step(step);
}

metrics::ExactSum HeldRows::squares(const std::vector<int>& owners) const {
  metrics::ExactSum sum;
  for (const OwnedRows& rows : all_)
    if (std::find(owners.begin(), owners.end(), rows.owner()) != owners.end()) sum.add(rows.squares());
  return sum;
}

void HeldRows::update(double factor, double rate, int64_t step) {
  if (memory_) memory_->log().take_over();
  last_ = {factor, rate, step};
  for (OwnedRows& rows : all_) rows.update(factor, rate, step);
  has_received_ = false;
}

void HeldRows::complete_adopted(int64_t last) {
  for (OwnedRows& rows : all_) {
    if (is_adopted(rows) && rows.log()->step() == last) rows.update(last_.factor, last_.rate, last_.step);
  }
}

void HeldRows::skip_step() {
  for (OwnedRows& rows : all_) rows.skip_step();
  has_received_ = false;
}

void HeldRows::evict(int64_t step) {
  for (OwnedRows& rows : all_)
    for (RowShard& shard : rows.shards()) shard.evict(step);
}

void HeldRows::reset() {
  is_whole_ = false;
  if (memory_) memory_->log().set_whole(false);
  for (OwnedRows& rows : all_)
    for (RowShard& shard : rows.shards()) shard.reset();
}

void HeldRows::put_totals(int64_t averaged_steps, const std::vector<GrowthCounts>& counts) {
  for (OwnedRows& rows : all_) {
    rows.put_averaged_steps(averaged_steps);
    for (size_t t = 0; t < rows.shards().size(); ++t)
      rows.shards()[t].put_counts(rows.owner() == 0 ? counts.at(t) : GrowthCounts());
  }
}

}  // namespace tutti::embedding

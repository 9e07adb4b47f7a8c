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
                   const RowShard::Allocate& allocate)
    : rank_(rank), holders_(std::move(holders)) {
  all_.emplace_back(tables, rank, world(), seed, allocate);
  for (int owner = 0; owner < world(); ++owner)
    if (holders_[static_cast<size_t>(owner)] == rank) all_.emplace_back(tables, owner, world(), seed);
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

void HeldRows::receive(TableGradients own, std::vector<torch::Tensor> messages,
                       const std::vector<LaneRange>& lanes) {
  gradients_ = std::move(own);
  messages_ = std::move(messages);
  lanes_ = lanes.back().end;
  sums_.assign(all_.size(), {});
  for (size_t worker = 0; worker < lanes.size(); ++worker) {
    const bool is_own = static_cast<int>(worker) == rank_;
    std::optional<MessageReader> reader;
    if (!is_own) reader.emplace(messages_[worker]);
    for (size_t i = 0; i < all_.size(); ++i) {
      const auto owner = static_cast<size_t>(all_[i].owner());
      sums_[i].push_back(is_own ? all_[i].sums_in(gradients_.of_owners[owner], lanes[worker])
                                : all_[i].sums_in(reader->next(all_[i]), lanes[worker]));
    }
  }
  has_received_ = true;
}

// With one lane the gradients are of the mean loss.
void HeldRows::begin_step(int64_t examples, int64_t step) {
  const double divisor = lanes_ == 1 ? 0 : static_cast<double>(examples);
  for (size_t i = 0; i < all_.size(); ++i) all_[i].begin_step(sums_[i], lanes_, divisor, step);
  sums_.clear();
  messages_.clear();
  gradients_ = {};
}

metrics::ExactSum HeldRows::squares(const std::vector<int>& owners) const {
  metrics::ExactSum sum;
  for (const OwnedRows& rows : all_)
    if (std::find(owners.begin(), owners.end(), rows.owner()) != owners.end()) sum.add(rows.squares());
  return sum;
}

void HeldRows::update(double factor, double rate, int64_t step) {
  for (OwnedRows& rows : all_) rows.update(factor, rate, step);
  has_received_ = false;
}

void HeldRows::skip_step() {
  for (OwnedRows& rows : all_) rows.skip_step();
  sums_.clear();
  messages_.clear();
  gradients_ = {};
  has_received_ = false;
}

void HeldRows::evict(int64_t step) {
  for (OwnedRows& rows : all_)
    for (RowShard& shard : rows.shards()) shard.evict(step);
}

void HeldRows::reset() {
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

#include "tutti/embedding/step_log.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <torch/utils.h>

#include "tutti/base/check.h"
#include "tutti/base/error.h"

namespace tutti::embedding {
namespace {

// The words of the state. After them come the saved rows of a block.
enum Word : size_t {
  kStep,
  kAveragedSteps,
  kDone,   // the number of blocks that are done
  kSaved,  // one more than the number of the block that is saved; 0: none
  kIds,    // the number of tables whose ids are changed, and in the lower half the number of saved entries
  kIsWhole,
  kProcess,
  kStartTime,
  kWords,
};

constexpr int64_t kNoProcess = 0;  // in place of a process
constexpr size_t kRowsAhead = 8;   // rows are far apart, so each is fetched before it is needed

constexpr int64_t kMostEntries = (int64_t{1} << 32) - 1;

int64_t words_of_bytes(size_t bytes) {
  return static_cast<int64_t>((bytes + sizeof(int64_t) - 1) / sizeof(int64_t));
}

int64_t load(int64_t& word) { return std::atomic_ref(word).load(std::memory_order_acquire); }
// Writes a word after everything that this process has written before, and before everything that it writes
// afterwards.
void store(int64_t& word, int64_t value) {
  std::atomic_thread_fence(std::memory_order_release);
  std::atomic_ref(word).store(value, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
}

// Returns when a process was started; 0 if it has ended.
int64_t start_time_of(int64_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(") ");
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(line.substr(name_end + 2));
  char state = ' ';
  fields >> state;
  if (state == 'Z' || state == 'X') return 0;
  constexpr int kFieldsBetween = 18;  // between the state and the time, see proc(5)
  int64_t field = 0;
  for (int i = 0; i <= kFieldsBetween; ++i) fields >> field;
  return field;
}

// Rows that are negative are skipped.
template <class Copy>
void for_each_row(std::span<const RowArray> arrays, std::span<const int64_t> rows, std::byte* saved,
                  const Copy& copy) {
  for (const RowArray& array : arrays) {
    for (size_t i = 0; i < rows.size(); ++i, saved += array.width) {
      if (i + kRowsAhead < rows.size() && rows[i + kRowsAhead] >= 0) {
        const std::byte* const next = array.begin + static_cast<size_t>(rows[i + kRowsAhead]) * array.width;
        fetch_for_reading(reinterpret_cast<const float*>(next),
                          static_cast<int64_t>(array.width / sizeof(float)));
      }
      if (rows[i] < 0) continue;
      copy(array.begin + static_cast<size_t>(rows[i]) * array.width, saved, array.width);
    }
  }
}

}  // namespace

size_t StepLog::rows_in_block(size_t row_bytes) { return std::max<size_t>(1, kBlockBytes / row_bytes); }

int64_t StepLog::words_of_state(size_t largest_row_bytes) {
  return static_cast<int64_t>(kWords) + words_of_bytes(std::max(kBlockBytes, largest_row_bytes));
}

StepLog::StepLog(torch::Tensor state, torch::Tensor gradients)
    : state_(std::move(state)), gradients_(std::move(gradients)) {}

void StepLog::set_writer() {
  state()[kProcess] = getpid();
  state()[kStartTime] = start_time_of(getpid());
}

void StepLog::begin() {
  state()[kStep] = -1;
  set_writer();
}

// Workers that are threads of one process have ended when they are lost.
void StepLog::take_over() {
  constexpr std::chrono::seconds kLongest{60};
  constexpr std::chrono::milliseconds kPause{1};
  const int64_t writer = state()[kProcess];
  if (writer == getpid()) return;
  const auto deadline = std::chrono::steady_clock::now() + kLongest;
  while (writer != kNoProcess && start_time_of(writer) == state()[kStartTime]) {
    if (std::chrono::steady_clock::now() > deadline)
      fail(ErrorKind::Timeout,
           "the process {} of a worker that is lost has not ended for {} s, so its rows of sharded tables "
           "cannot be taken over",
           writer, kLongest.count());
    std::this_thread::sleep_for(kPause);
  }
  set_writer();
}

void StepLog::release() { store(state()[kProcess], kNoProcess); }

void StepLog::set_whole(bool is_whole) { store(state()[kIsWhole], is_whole ? 1 : 0); }
bool StepLog::is_whole() const { return load(state()[kIsWhole]) != 0; }
int64_t StepLog::step() const { return load(state()[kStep]); }
int64_t StepLog::averaged_steps() const { return state()[kAveragedSteps]; }

void StepLog::begin(int64_t step, int64_t averaged_steps) {
  store(state()[kStep], step);
  state()[kAveragedSteps] = averaged_steps;
  state()[kDone] = state()[kSaved] = state()[kIds] = 0;
  read_again();
}

// A table has the number of rows, the rows, the values, and if it grows the numbers of lookups and the slots.
int64_t StepLog::words_of(int64_t rows, int64_t dim, bool grows) {
  return 1 + (grows ? 3 : 1) * rows + words_of_bytes(static_cast<size_t>(rows * dim) * sizeof(float));
}

StepLog::Means StepLog::write(const RowSums& means, bool grows) {
  const auto rows = static_cast<int64_t>(means.sums.size());
  const int64_t words = words_of(rows, means.dim, grows);
  TUTTI_CHECK(used_ + words <= room(), "no room for the gradients of {} rows", rows);
  int64_t* to = gradients() + used_;
  used_ += words;
  *to++ = rows;
  for (const RowSum& sum : means.sums) *to++ = sum.row;
  auto* const values = static_cast<float*>(static_cast<void*>(to));
  std::copy(means.values.begin(), means.values.end(), values);
  if (!grows) return {{values, means.values.size()}};
  to = gradients() + used_ - 2 * rows;
  for (const RowSum& sum : means.sums) *to++ = sum.lookups;
  return {{values, means.values.size()}, {to, means.sums.size()}};
}

std::pair<RowSums, StepLog::Means> StepLog::read(int64_t dim, bool grows) {
  int64_t* from = gradients() + used_;
  const int64_t rows = *from++;
  used_ += words_of(rows, dim, grows);
  RowSums sums{.dim = dim};
  for (int64_t i = 0; i < rows; ++i) sums.sums.push_back({.row = *from++});
  Means means;
  means.values = {static_cast<const float*>(static_cast<const void*>(from)), static_cast<size_t>(rows * dim)};
  if (!grows) return {std::move(sums), means};
  from = gradients() + used_ - 2 * rows;
  for (RowSum& sum : sums.sums) sum.lookups = *from++;
  means.slots = {from, sums.sums.size()};
  return {std::move(sums), means};
}

// Entries are saved from the end of the memory to its beginning.
void StepLog::save(int64_t array, int64_t index, const int64_t* entry) {
  int64_t& ids = state()[kIds];
  const int64_t saved = ids & kMostEntries;
  TUTTI_CHECK(used_ + words_of_entries(saved + 1) <= room(), "no room for {} ids", saved + 1);
  int64_t* const to = gradients() + room() - words_of_entries(saved + 1);
  to[0] = array;
  to[1] = index;
  std::copy_n(entry, kEntryWords - 2, to + 2);
  store(ids, ids + 1);
}

int64_t StepLog::changed_ids() const { return state()[kIds] / (kMostEntries + 1); }
void StepLog::keep_changes(int64_t changed_ids) { store(state()[kIds], changed_ids * (kMostEntries + 1)); }

void StepLog::take_back(std::span<int64_t* const> arrays) {
  for (int64_t i = state()[kIds] & kMostEntries; i > 0; --i) {
    const int64_t* const saved = gradients() + room() - words_of_entries(i);
    std::copy_n(saved + 2, kEntryWords - 2,
                arrays[static_cast<size_t>(saved[0])] + saved[1] * (kEntryWords - 2));
  }
  keep_changes();
}

bool StepLog::begin_block(std::span<const RowArray> arrays, std::span<const int64_t> rows) {
  const int64_t block = next_block_++;
  if (block < state()[kDone]) return false;
  auto* const saved = static_cast<std::byte*>(static_cast<void*>(state() + kWords));
  if (state()[kSaved] == block + 1) {
    for_each_row(arrays, rows, saved,
                 [](std::byte* row, const std::byte* copy, size_t width) { std::memcpy(row, copy, width); });
    return true;
  }
  for_each_row(arrays, rows, saved,
               [](const std::byte* row, std::byte* copy, size_t width) { std::memcpy(copy, row, width); });
  store(state()[kSaved], block + 1);
  return true;
}

void StepLog::end_block() { store(state()[kDone], next_block_); }

}  // namespace tutti::embedding

#include "tutti/data/tables/shard_file.h"

#include <algorithm>
#include <cstring>

#include <ATen/Functions.h>

namespace tutti::data {

KeptRows::KeptRows(int64_t rows, size_t row_bytes)
    : row_bytes_(row_bytes),
      cells_(std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(rows) * row_bytes)),
      states_(static_cast<size_t>(rows)) {}

void KeptRows::copy(int64_t row, std::span<CellBuffer> to) const {
  const std::byte* from = place(row);
  for (CellBuffer& buffer : to) {
    std::copy_n(from, buffer.row_bytes(), buffer.row<std::byte>());
    from += buffer.row_bytes();
    buffer.end_rows();
  }
}

void KeptRows::cache_row(int64_t row, std::span<const CellBuffer> from, int64_t at) {
  uint8_t expected = kNone;
  std::atomic<uint8_t>& state = states_[static_cast<size_t>(row)];
  if (!state.compare_exchange_strong(expected, kBeingWritten)) return;
  std::byte* to = place(row);
  for (const CellBuffer& buffer : from) {
    const auto bytes = buffer.bytes_of(at);
    to = std::copy(bytes.begin(), bytes.end(), to);
  }
  state.store(kThere, std::memory_order_release);
}

size_t ShardFile::row_bytes() const {
  if (!table) return 0;
  size_t bytes = 0;
  for (const CellBuffer& buffer : table->buffers(0)) {
    if (!buffer.kind().is_dense()) return 0;
    bytes += buffer.row_bytes();
  }
  return bytes;
}

std::vector<std::string> ShardFile::columns(size_t view) const {
  if (table) return table->views()[view].columns;
  std::vector<std::string> shape = {c10::toString(tensor.scalar_type())};
  for (int64_t i = 1; i < tensor.dim(); ++i) shape.push_back(std::to_string(tensor.size(i)));
  return shape;
}

void ShardFile::read(int64_t begin, int64_t end, std::span<CellBuffer> to, std::string& scratch) const {
  if (!kept) return table->read(begin, end, to, scratch);
  for (int64_t row = begin; row < end;) {
    int64_t missing = row;
    while (missing < end && !kept->has(missing)) ++missing;
    const int64_t first = to.front().rows();
    if (missing > row) table->read(row, missing, to, scratch);
    for (int64_t read = row; read < missing; ++read) kept->cache_row(read, to, first + read - row);
    for (row = missing; row < end && kept->has(row); ++row) kept->copy(row, to);
  }
}

std::vector<int64_t> rows_beside(const ShardFile& file, const ShardFile& other) {
  if (file.has_ids() && other.has_ids()) return file.table->ids().join_some(other.table->ids());
  std::vector<int64_t> at_place(static_cast<size_t>(other.rows_in_file()), -1);
  for (int64_t row = 0; row < other.size(); ++row)
    at_place[static_cast<size_t>(other.row_in_file(row))] = row;
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < file.size(); ++row)
    rows.push_back(at_place[static_cast<size_t>(file.row_in_file(row))]);
  return rows;
}

torch::Tensor tensor_rows(const std::vector<RowPlace>& places) {
  std::vector<torch::Tensor> rows;
  for (const auto& [file, row] : places) rows.push_back(file->tensor.select(0, row));
  return at::stack(rows);
}

std::vector<CellBuffer> read_rows(const std::vector<RowPlace>& places) {
  std::vector<CellBuffer> buffers = places[0].file->table->buffers(static_cast<int64_t>(places.size()));
  std::string scratch;
  for (size_t begin = 0, end = 0; begin < places.size(); begin = end) {
    const auto& [file, row] = places[begin];
    for (end = begin + 1; end < places.size(); ++end) {
      if (places[end].file != file || places[end].row != row + static_cast<int64_t>(end - begin)) break;
    }
    file->read(row, row + static_cast<int64_t>(end - begin), buffers, scratch);
  }
  return buffers;
}

}  // namespace tutti::data

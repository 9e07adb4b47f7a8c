#include "tutti/ps/server_rows.h"

#include <algorithm>

#include <nlohmann/json.hpp>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/ps/wire.h"

// The rows of sharded tables on parameter servers: the methods of a client, and ServerRows.
namespace tutti::ps {
namespace {

constexpr int64_t kMostHeads = int64_t{1} << 40;

torch::Tensor tensor_of(const std::vector<int64_t>& list) {
  const torch::Tensor tensor = torch::empty({static_cast<int64_t>(list.size())}, torch::kLong);
  std::copy(list.begin(), list.end(), static_cast<int64_t*>(tensor.data_ptr()));
  return tensor;
}

// Does not copy.
torch::Tensor tensor_of(std::span<const float> numbers) {
  return torch::from_blob(const_cast<float*>(numbers.data()), {static_cast<int64_t>(numbers.size())},
                          torch::kFloat32);
}

}  // namespace

void append_rows(rpc::Message& message, const embedding::RowGradients& rows) {
  Json numbers = Json::array();
  append(message, {tensor_of(rows.heads)});
  for (const std::span<const float> values : rows.values) {
    numbers.push_back(values.size());
    append(message, {tensor_of(values)});
  }
  message.head["rows"] = {{"heads", rows.heads.size()}, {"numbers", std::move(numbers)}};
}

embedding::RowGradients rows_in(const Json& head, Reader& reader) {
  embedding::RowGradients rows;
  const auto found = head.find("rows");
  if (found == head.end()) return rows;
  const torch::Tensor heads = reader.take_tensor(number_within(*found, "heads", 0, kMostHeads), torch::kLong);
  const auto* number = static_cast<const int64_t*>(heads.data_ptr());
  rows.heads.assign(number, number + heads.numel());
  for (const int64_t count : counts_in(*found, "numbers")) {
    const torch::Tensor values = reader.take_tensor(count, torch::kFloat32);
    rows.values.emplace_back(static_cast<const float*>(values.data_ptr()),
                             static_cast<size_t>(values.numel()));
    rows.owners.push_back(std::make_shared<torch::Tensor>(values));
  }
  return rows;
}

size_t bytes_of_rows(const Json& head) {
  const auto found = head.find("rows");
  if (found == head.end()) return 0;
  size_t bytes = static_cast<size_t>(number_within(*found, "heads", 0, kMostHeads)) * sizeof(int64_t);
  for (const int64_t count : counts_in(*found, "numbers"))
    bytes += static_cast<size_t>(count) * sizeof(float);
  return bytes;
}

// The servers make the tables with their initial rows, and then get those that are known.
void Client::begin_rows(const RowsToBegin& rows) {
  if (rows.tables.empty()) return;
  Json tables = Json::array();
  for (const embedding::TableSpec& table : rows.tables) tables.push_back(to_json(table));
  Json counts = Json::object();
  for (const auto& [table, of_table] : rows.counts) counts[table] = to_json(of_table);
  peers_.for_all([&](size_t i) {
    Json head = {{"tables", tables},
                 {"owner", i},
                 {"owners", peers_.size()},
                 {"seed", rows.seed},
                 {"averaged_steps", rows.averaged_steps}};
    if (i == 0) head["counts"] = counts;
    peers_.call(i, "tables", {std::move(head), {}}, peers_.patience("the tables"));
  });
  const auto send = [&](bool changed) {
    return [this, &rows, changed](const embedding::RowChunk& chunk) { send_rows(rows, chunk, changed); };
  };
  if (rows.all) rows.all(send(false));
  if (rows.all_are_saved) tell_all("rows_saved", Json::object(), "the tables");
  if (rows.changed) rows.changed(send(true));
}

void Client::send_rows(const RowsToBegin& rows, const embedding::RowChunk& chunk, bool changed) {
  const auto table = std::find_if(rows.tables.begin(), rows.tables.end(),
                                  [&](const embedding::TableSpec& each) { return each.name == chunk.table; });
  if (table == rows.tables.end())
    fail(ErrorKind::InvalidArgument, "the checkpoint has the table '{}', which this model does not have",
         chunk.table);
  const embedding::RowLayout layout(table->placement, table->rows, servers());
  const std::vector<embedding::RowShard::State> parts = embedding::split(chunk.rows, layout);
  peers_.for_all([&](size_t i) {
    const auto tensors = embedding::tensors_of(chunk.table, parts[i]);
    rpc::Message message{{{"table", chunk.table}, {"changed", changed}}, {}};
    message.head["rows"] = pack_named(tensors, message.pieces);
    peers_.call(i, "rows", message, peers_.patience("the rows of tables"));
  });
}

std::vector<torch::Tensor> Client::read_rows(const embedding::RowOwners::Request& asked,
                                             std::optional<int64_t> step) {
  std::vector<torch::Tensor> rows;
  for (const int64_t numbers : asked.numbers) rows.push_back(torch::empty({numbers}, torch::kFloat32));
  peers_.for_all([&](size_t i) {
    rpc::Message message = request({{"asked", asked.asked[i].size()}}, {tensor_of(asked.asked[i])});
    if (asked.values == embedding::RowValues::Average) message.head["average"] = true;
    if (step) message.head["step"] = *step;
    call(i, "read_rows", message, {rows[i]}, peers_.patience("the rows of tables", step.value_or(step_)));
  });
  return rows;
}

store::NamedTensors Client::all_rows(embedding::RowValues values) {
  std::vector<store::NamedTensors> rows(peers_.size());
  peers_.for_all([&](size_t i) {
    rpc::Message message = request();
    if (values == embedding::RowValues::Average) message.head["average"] = true;
    const rpc::Message answer = peers_.call(i, "all_rows", message, peers_.patience("the rows of tables"));
    Reader reader(answer);
    rows[i] = unpack_named(answer.head.at("rows"), reader);
  });
  store::NamedTensors all;
  for (auto& of_server : rows) all.insert(all.end(), of_server.begin(), of_server.end());
  return all;
}

Client::RowsSummary Client::sum_up_rows() {
  std::vector<Json> answers(peers_.size());
  peers_.for_all([&](size_t i) {
    answers[i] = peers_.call(i, "sum_rows", request(), peers_.patience("a checksum of rows")).head;
  });
  RowsSummary summary;
  std::vector<std::vector<uint64_t>> sums;
  for (const Json& answer : answers) {
    sums.push_back(answer.at("sums").get<std::vector<uint64_t>>());
    for (const auto& [table, counts] : answer.at("counts").items())
      summary.counts[table] += embedding::counts_of_json(counts);
  }
  summary.checksum = embedding::joined_checksum(sums);
  return summary;
}

std::vector<torch::Tensor> ServerRows::read(const Request& request) {
  if (settle_) settle_();
  return client_.read_rows(request, step_);
}

void ServerRows::begin_reading(comm::Executor& thread) {
  if (announced_.asked.empty() || is_reading_) return;
  is_reading_ = true;
  reading_ = thread.run([this] { rows_ = client_.read_rows(announced_, {}); });
}

std::vector<torch::Tensor> ServerRows::read_announced() {
  if (!is_reading_) return read(announced_);
  is_reading_ = false;
  reading_.wait();
  return std::move(rows_);
}

void ServerRows::withdraw() {
  announced_ = {};
  if (!std::exchange(is_reading_, false)) return;
  try {
    reading_.wait();
  } catch (const Error&) {
    // Nobody needs the rows any more, and the next call finds out what is wrong.
  }
}

}  // namespace tutti::ps

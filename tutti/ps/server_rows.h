#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "tutti/embedding/tables.h"
#include "tutti/ps/client.h"
#include "tutti/transport/executor.h"

namespace tutti::ps {

// The rows of sharded tables on parameter servers, as one worker reads them. Not thread-safe.
class ServerRows final : public embedding::RowOwners {
 public:
  // The client must outlive this. `settle` is called before rows are read, so that the connections are free.
  explicit ServerRows(Client& client, std::function<void()> settle = {})
      : client_(client), settle_(std::move(settle)) {}

  int count() const override { return client_.servers(); }
  bool answer_one() const override { return true; }
  // Reads from now on the rows as they are at this step, for which it waits; empty: the newest ones.
  void at_step(std::optional<int64_t> step) { step_ = step; }

  std::vector<torch::Tensor> read(const Request& request) override;
  // Announced rows can be read by another thread while this one computes.
  bool hear_ahead() const override { return reads_ahead_; }
  void read_ahead(bool reads) { reads_ahead_ = reads; }
  // Begins to read what was announced in the thread; does nothing if nothing was.
  void begin_reading(comm::Executor& thread);
  std::vector<torch::Tensor> read_announced() override;
  void withdraw() override;

 private:
  Client& client_;
  const std::function<void()> settle_;
  std::optional<int64_t> step_;
  bool reads_ahead_ = false;
  bool is_reading_ = false;
  std::vector<torch::Tensor> rows_;  // written by the thread
  comm::Work reading_;
};

}  // namespace tutti::ps

#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/transport/rendezvous.h"

namespace tutti::comm {

// A store with clone(), which is pure virtual in LibTorch 2.15 and unknown to 1.13.
class ClonableStore : public c10d::Store {
 public:
  c10::intrusive_ptr<c10d::Store> clone() { return copy(); }  // NOLINT(modernize-use-override)

 protected:
  virtual c10::intrusive_ptr<c10d::Store> copy() = 0;
};

// Presents a board as a c10d::Store, which the backends of c10d use while they connect.
class BoardStore final : public ClonableStore {
 public:
  BoardStore(std::shared_ptr<Rendezvous> board, std::chrono::steady_clock::time_point deadline)
      : board_(std::move(board)), deadline_(deadline) {}

  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    board_->set(key, {value.begin(), value.end()});
  }
  std::vector<uint8_t> get(const std::string& key) override {
    const std::string value = board_->get(key, until(deadline_));
    return {value.begin(), value.end()};
  }
  bool check(const std::vector<std::string>& keys) override {
    return std::all_of(keys.begin(), keys.end(), [&](const std::string& key) { return board_->peek(key); });
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) board_->get(key, until(deadline_));
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override { wait(keys); }
  int64_t add(const std::string&, int64_t) override { unused(); }
  bool deleteKey(const std::string&) override { unused(); }
  int64_t getNumKeys() override { unused(); }

 protected:
  c10::intrusive_ptr<c10d::Store> copy() override {
    return c10::make_intrusive<BoardStore>(board_, deadline_);
  }

 private:
  [[noreturn]] static void unused() {
    fail(ErrorKind::Bug, "this version of c10d calls an operation that the board does not support");
  }

  const std::shared_ptr<Rendezvous> board_;
  const std::chrono::steady_clock::time_point deadline_;
};

}  // namespace tutti::comm

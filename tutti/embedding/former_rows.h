#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/embedding/held_rows.h"

namespace tutti::embedding {

// Moves the rows of a former epoch to the owners and holders of the present one, when workers were lost or
// have come. Not thread-safe.
//
// If another worker is lost on the way, some workers may have the rows in the new places and others not yet,
// so every worker keeps the former rows until all have the new ones.
class FormerRows {
 public:
  // Takes the rows that this worker has held in an epoch, all of them after the same step as on the others.
  void keep(uint64_t epoch, std::unique_ptr<HeldRows> rows);
  void drop() { epochs_.clear(); }

  // Finds the newest epoch of which all rows are here: each owner, or somebody else who holds its rows.
  // Returns false if there is none. All workers have to call this. Drops the rows of other epochs.
  bool find(comm::Communicator& comm);
  // Once they were found: what this worker has held; null if it has come since.
  HeldRows* mine() { return epochs_.empty() ? nullptr : epochs_.front().rows.get(); }
  // The owners of that epoch whose rows this worker gives to the others.
  const std::vector<int>& given() const { return given_; }
  // Gives the rows to those who hold them in the present epoch, which then are whole. All workers have to
  // call this, and drop() once they know that all have returned.
  void hand_over(comm::Communicator& comm, HeldRows& to);

 private:
  struct OfEpoch {
    uint64_t epoch = 0;
    std::unique_ptr<HeldRows> rows;
  };
  std::vector<OfEpoch> epochs_;  // in ascending order, at most two
  std::vector<int> given_;
};

}  // namespace tutti::embedding

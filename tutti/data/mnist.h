#pragma once

#include <string>
#include <utility>

#include "tutti/data/feed.h"

namespace tutti::data {

// Training and test digits. Batches have "image" (float32, Nx1x28x28, 0 to 1) and "label" (int64, N).
class Digits {
 public:
  Digits(Feed train, Feed test) : train_(std::move(train)), test_(std::move(test)) {}

  Feed train() const { return train_; }
  Feed test() const { return test_; }

 private:
  Feed train_;
  Feed test_;
};

// The four IDX files of MNIST in `dir`, plain or .gz, under their usual names. They stay in memory as bytes
// and are converted to floats batch by batch. A missing file is an InvalidArgument. A file that is damaged,
// has no digits, or does not match its labels is a DataLoss that names the file and the byte or record.
//
// If `dir` is empty, returns 60,000 and 10,000 drawn digits.
Digits mnist(const std::string& dir);

}  // namespace tutti::data

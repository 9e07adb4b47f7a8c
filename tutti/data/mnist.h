#pragma once

#include <string>
#include <utility>

#include "tutti/data/feed.h"

namespace tutti::data {

// Digits to learn from and to be tested on. Batches have "image" (float32, Nx1x28x28, 0 to 1) and "label"
// (int64, N).
class Digits {
 public:
  Digits(Feed train, Feed test) : train_(std::move(train)), test_(std::move(test)) {}

  Feed train() const { return train_; }
  Feed test() const { return test_; }

 private:
  Feed train_;
  Feed test_;
};

// The four IDX files of MNIST in `dir`, plain or .gz, under the names that they are handed around with. They
// stay in memory as bytes and become floats batch by batch. A file that is missing is an InvalidArgument; one
// that is damaged, holds no digits, or does not go with its labels, a DataLoss that names file and byte or
// record.
//
// Where `dir` is empty: 60,000 and 10,000 drawn digits.
Digits mnist(const std::string& dir);

}  // namespace tutti::data

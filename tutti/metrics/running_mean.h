#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <torch/types.h>

namespace tutti::metrics {

// A sum of doubles that is rounded only once, when its value is computed. Therefore the value depends neither
// on the order of the numbers nor on how they were distributed over workers.
//   J. R. Shewchuk, Adaptive Precision Floating-Point Arithmetic and Fast Robust Geometric Predicates, 1997:
//   the sum is a list of parts that do not overlap. Python's math.fsum does the same.
class ExactSum {
 public:
  void add(double number);
  void add(const ExactSum& other);
  // Returns the double nearest to the sum; infinite or NaN if an ordinary sum would be.
  double value() const;

  // Converts the state to finite numbers, which text such as JSON can represent, and back.
  std::vector<double> numbers() const;
  static ExactSum from(std::span<const double> numbers);

 private:
  std::vector<double> parts_;  // in ascending order of magnitude
  double beyond_ = 0;          // the sum of all numbers that were not finite
};

// The sum of many numbers, divided by the sum of their counts or weights, with the same bits in any order.
// Numbers on a GPU stay there until value() or counters() is called, so that no batch waits for a copy. Not
// thread-safe.
class RunningMean {
 public:
  // Adds numbers and counts of any shape on any device.
  void add(const torch::Tensor& numbers, const torch::Tensor& counts);
  void add(const torch::Tensor& numbers, int64_t count);
  void add(double number, double count);

  std::vector<double> counters() const;
  void merge(std::span<const double> counters);
  // Returns nullopt if the sum of the counts is 0.
  std::optional<double> value() const;

 private:
  void fold() const;

  mutable std::vector<torch::Tensor> numbers_;  // flat, in double precision, not added to sum_ yet
  mutable std::vector<torch::Tensor> counts_;   // their counts
  mutable int64_t waiting_ = 0;                 // number of elements in both
  mutable ExactSum sum_;
  mutable ExactSum count_;
};

}  // namespace tutti::metrics

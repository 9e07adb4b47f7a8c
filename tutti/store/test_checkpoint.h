#pragma once

#include <filesystem>
#include <set>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/file.h"
#include "tutti/base/hashes.h"
#include "tutti/store/checkpoint.h"

namespace tutti::store {

// For tests: a checkpoint whose numbers all depend on its step and `mark`, so that a mixture is detected.
inline Checkpoint checkpoint_of(int64_t step, int64_t mark = 0, int64_t elements = 64) {
  const auto value = static_cast<double>(step * 1000 + mark);
  Checkpoint checkpoint;
  checkpoint.step = step;
  checkpoint.weights = {{"conv1.weight", torch::full({elements / 8, 8}, value)},
                        {"norm.count", torch::full({}, value, torch::kLong)}};
  checkpoint.optimizer = {{"exp_avg/conv1.weight", torch::full({elements / 8, 8}, value)},
                          {"exp_avg_sq/conv1.weight", torch::full({elements / 8, 8}, value)}};
  checkpoint.state = {{"value", value}, {"lanes", 4}};
  return checkpoint;
}

// Writes a manifest with any contents and a correct checksum.
inline void write_any_manifest(const std::string& path, nlohmann::json contents) {
  contents.erase("checksum");
  const std::string rest = contents.dump(2).substr(1) + "\n";
  replace_file(path, fmt::format("{{\n  \"checksum\": \"crc32c:{:08x}\",", crc32c(as_bytes(rest))) + rest);
}

inline std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.insert(entry.path().filename().string());
  return names;
}

// Returns the mark of a checkpoint made by checkpoint_of(); fails the test if its parts do not match.
inline int64_t checked_mark(const Checkpoint& checkpoint) {
  const double value = checkpoint.state.at("value").get<double>();
  EXPECT_EQ(checkpoint.weights.size(), 2U);
  EXPECT_EQ(checkpoint.optimizer.size(), 2U);
  for (const auto* part : {&checkpoint.weights, &checkpoint.optimizer}) {
    for (const NamedTensor& named : *part) {
      EXPECT_TRUE(named.tensor.to(torch::kDouble).eq(value).all().item<bool>()) << named.name;
    }
  }
  const auto mark = static_cast<int64_t>(value) - checkpoint.step * 1000;
  EXPECT_GE(mark, 0);
  EXPECT_LT(mark, 1000);
  return mark;
}

}  // namespace tutti::store

#pragma once

#include <cstdint>
#include <string>

#include "tutti/data/feed.h"

namespace example {

constexpr int64_t kTables = 26;
constexpr int64_t kNumbers = 13;

struct ClickOptions {
  int64_t examples = 100000;
  int64_t rows = 384615;  // of each table
  uint64_t seed = 1;
};

// "id0" to "id25".
std::string id_column(int64_t table);

// Clicks that are drawn with a known probability, which depends on the ids and on 13 numbers. Ids follow a
// power law, so a few are frequent and most are rare. An example is a function of seed and index, so no data
// are read. Columns: id0 to id25 (int64), "numbers" (13 floats), "click" (0 or 1), and "truth", the logit of
// the true probability, by which the best possible predictions can be compared.
tutti::data::Feed clicks(const ClickOptions& options);

}  // namespace example

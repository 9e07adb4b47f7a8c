#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tutti::data {

// The text format of a table: one line per row, one cell per column. Lines may end with \r\n; the last one
// needs no end. A byte order mark is skipped.
struct TextFormat {
  char separator = '\t';
  // Cells may be "in quotes", and then contain separators, line ends, and "" for one quote.
  bool quotes = false;
  // The first row has the names of the columns. Otherwise they are named 1, 2, 3, ...
  bool header = true;
  // The column with the ID of the example. Empty: the first.
  std::string id = {};
  // The texts for a missing value, besides an empty cell.
  std::vector<std::string> missing = {"NA", "N/A", "NaN", "nan", "NULL", "null"};
};

inline TextFormat tsv() { return {}; }
inline TextFormat csv() { return {.separator = ',', .quotes = true}; }
// Returns the format for a file's ending: CSV for .csv, else TSV.
inline TextFormat format_of(std::string_view file) { return file.ends_with(".csv") ? csv() : tsv(); }

}  // namespace tutti::data

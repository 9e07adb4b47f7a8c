#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tutti::data {

// How a table is written as text: a row a line, a cell a column. A line may end with \r\n, the last one with
// nothing; a byte order mark is passed over.
struct TextFormat {
  char separator = '\t';
  // A cell may be "in quotes", and then hold separators, line ends, and "" for one quote.
  bool quotes = false;
  // The first row has the columns' names. Else they are called 1, 2, 3, ...
  bool header = true;
  // The column that says which example a row is of. Empty: the first.
  std::string id = {};
  // What stands for a value that nobody knows, beside an empty cell.
  std::vector<std::string> missing = {"NA", "N/A", "NaN", "nan", "NULL", "null"};
};

inline TextFormat tsv() { return {}; }
inline TextFormat csv() { return {.separator = ',', .quotes = true}; }
// As its name ends: .csv, else as TSV.
inline TextFormat format_of(std::string_view file) { return file.ends_with(".csv") ? csv() : tsv(); }

}  // namespace tutti::data

#pragma once

#include <string>

#include "tutti/data/feed.h"

namespace example {

// The columns: "user" and "movie" (int64), "stars" (1 to 5), and "liked" (1 for at least 4 stars, else 0).
struct Ratings {
  tutti::data::Feed train;
  tutti::data::Feed test;  // every fifth rating
  int64_t users = 0;       // one more than the largest number
  int64_t movies = 0;
};

// Reads `folder`/ratings.tsv, which has no header: user, movie, stars. "" for the folder: draws ratings.
Ratings ratings(const std::string& folder);

}  // namespace example

#include "examples/11_movies/ratings.h"

#include <numeric>
#include <vector>

#include <torch/torch.h>

#include "tutti/data/source.h"
#include "tutti/data/tables/table_feed.h"

namespace example {
namespace {

namespace data = tutti::data;

struct Columns {
  torch::Tensor user;
  torch::Tensor movie;
  torch::Tensor stars;
};

Columns read(const std::string& folder) {
  const data::TextFormat format = {.header = false, .ids = data::Ids::RowNumbers};
  const data::Feed table =
      data::table_feed(folder, {{"user", {"ratings.tsv", format, data::int64(), {"1"}}},
                                {"movie", {"ratings.tsv", format, data::int64(), {"2"}}},
                                {"stars", {"ratings.tsv", format, data::float32(), {"3"}}}});
  std::vector<int64_t> all(static_cast<size_t>(table.size()));
  std::iota(all.begin(), all.end(), 0);
  const tutti::Batch batch = table.read(all);
  return {batch["user"].squeeze(1), batch["movie"].squeeze(1), batch["stars"].squeeze(1)};
}

// Users and movies have four hidden properties each, and some movies are seen far more often than others.
Columns draw() {
  constexpr int64_t kUsers = 500;
  constexpr int64_t kMovies = 800;
  constexpr int64_t kRatings = 40000;
  auto random = at::make_generator<at::CPUGeneratorImpl>(1);
  const torch::Tensor of_users = torch::randn({kUsers, 4}, random) * 0.5;
  const torch::Tensor of_movies = torch::randn({kMovies, 4}, random) * 0.7;
  Columns drawn;
  drawn.user = torch::randint(kUsers, {kRatings}, random, torch::kLong);
  drawn.movie = (torch::rand({kRatings}, random).square() * kMovies).to(torch::kLong);
  const torch::Tensor match =
      (of_users.index_select(0, drawn.user) * of_movies.index_select(0, drawn.movie)).sum(1);
  drawn.stars = (3.5 + match + of_movies.select(1, 0).index_select(0, drawn.movie) +
                 torch::randn({kRatings}, random) * 0.6)
                    .round()
                    .clamp(1, 5);
  return drawn;
}

data::Feed feed_of(const Columns& columns, const torch::Tensor& is_in) {
  const auto pick = [&](const torch::Tensor& column) { return column.masked_select(is_in); };
  const torch::Tensor stars = pick(columns.stars);
  return data::Feed(data::from_tensors({{"user", pick(columns.user)},
                                        {"movie", pick(columns.movie)},
                                        {"stars", stars},
                                        {"liked", (stars >= 4).to(torch::kFloat32)}}));
}

}  // namespace

Ratings ratings(const std::string& folder) {
  const Columns all = folder.empty() ? draw() : read(folder);
  const torch::Tensor is_test = torch::arange(1, all.stars.numel() + 1).remainder(5) == 0;
  return {feed_of(all, is_test.logical_not()), feed_of(all, is_test), all.user.max().item<int64_t>() + 1,
          all.movie.max().item<int64_t>() + 1};
}

}  // namespace example

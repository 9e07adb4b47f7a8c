#include "tutti/kernels/random.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/kernels/same_kernels.h"
#include "tutti/kernels/test_targets.h"

namespace tutti::kernels::random_test {
namespace {

using Block = std::array<uint32_t, 4>;

// Philox 4x32-10 as in the paper.
Block philox(Block x, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * x[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * x[2];
    x = {static_cast<uint32_t>(b >> 32) ^ x[1] ^ key0, static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ x[3] ^ key1, static_cast<uint32_t>(a)};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return x;
}

Block block_of(const Draw& draw, int64_t number) {
  const auto low = [](uint64_t x) { return static_cast<uint32_t>(x); };
  const auto high = [](uint64_t x) { return static_cast<uint32_t>(x >> 32); };
  const auto i = static_cast<uint64_t>(number);
  return philox({low(i), high(i), low(draw.number), high(draw.number)}, low(draw.key), high(draw.key));
}

// The words of which element i is made, for elements of 4 and 8 bytes.
uint32_t word32(const Draw& draw, int64_t i) {
  return block_of(draw, i / 64 * 16 + i % 16)[static_cast<size_t>(i / 16 % 4)];
}

uint64_t word64(const Draw& draw, int64_t i) {
  const Block block = block_of(draw, i / 16 * 8 + i % 8);
  const size_t half = i / 8 % 2 == 0 ? 0 : 2;
  return block[half] | uint64_t{block[half + 1]} << 32;
}

// The draw that the next operator makes of a generator.
Draw draw_of(const at::Generator& generator) {
  at::Generator copy = generator.clone();
  const uint64_t key = copy.current_seed();
  return {key, copy.get<at::CPUGeneratorImpl>()->random64()};
}

using Operator = std::pair<std::string, std::function<void(at::Tensor)>>;

const std::vector<Operator> kOperators = {
    {"uniform", [](at::Tensor x) { x.uniform_(-1, 2); }},
    {"normal", [](at::Tensor x) { x.normal_(1, 3); }},
    {"log_normal", [](at::Tensor x) { x.log_normal_(0, 0.5); }},
    {"exponential", [](at::Tensor x) { x.exponential_(2); }},
    {"cauchy", [](at::Tensor x) { x.cauchy_(1, 2); }},
    {"geometric", [](at::Tensor x) { x.geometric_(0.3); }},
    {"bernoulli", [](at::Tensor x) { x.bernoulli_(0.3); }},
    {"random", [](at::Tensor x) { x.random_(); }},
    {"random below", [](at::Tensor x) { x.random_(-3, 100); }},
};

class Random : public testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(33); }
  at::Tensor ranks() const { return (torch::arange(kCount, torch::kDouble) + 0.5) / kCount; }

  // The statistic of Kolmogorov and Smirnov, which exceeds 1.95 once in a thousand samples.
  double distance(const at::Tensor& sample, const at::Tensor& probability_below) const {
    const at::Tensor cumulative = std::get<0>(probability_below.sort());
    EXPECT_EQ(sample.numel(), kCount);
    return ((cumulative - ranks()).abs().max().item<double>() + 0.5 / kCount) * std::sqrt(kCount);
  }

  static constexpr int64_t kCount = 200'000;
  const SameKernels same_;
};

TEST_F(Random, has_the_published_numbers_of_philox) {
  EXPECT_EQ(philox({0, 0, 0, 0}, 0, 0), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t ones = ~uint32_t{0};
  EXPECT_EQ(philox({ones, ones, ones, ones}, ones, ones),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST_F(Random, has_the_words_of_philox_at_any_index_on_every_target) {
  const Draw draw = {0x0123456789abcdef, 0xfedcba9876543210};
  on_every_target([&] {
    for (const int64_t first : {int64_t{0}, int64_t{1} << 33, int64_t{3} << 40}) {
      const int64_t count = kDrawPiece + 77;
      std::vector<int64_t> integers_of(static_cast<size_t>(count));
      std::vector<float> uniforms(static_cast<size_t>(count));
      integers(draw, first, first + count, 0, 0, integers_of.data());
      fill(Distribution::kUniform, draw, first, first + count, 0.0F, 1.0F, uniforms.data());
      for (int64_t i = 0; i < count; ++i) {
        const auto k = static_cast<size_t>(i);
        ASSERT_EQ(static_cast<uint64_t>(integers_of[k]), word64(draw, first + i)) << i;
        ASSERT_EQ(uniforms[k], std::ldexp(static_cast<float>(word32(draw, first + i) >> 8), -24)) << i;
      }
    }
  });
}

TEST_F(Random, has_the_same_bits_on_every_target_and_with_any_threads) {
  for (const auto& [name, draw] : kOperators) {
    for (const at::ScalarType type :
         {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kBool}) {
      const bool any_type =
          name == "bernoulli" || name == "random" || (name == "geometric" && type != at::kBool);
      if (!at::isFloatingType(type) && !any_type) continue;
      for (const int64_t count : {0, 1, 15, 16, 17, 63, 65, 1000, 70'001}) {
        SCOPED_TRACE(name + " of " + at::toString(type) + ", " + std::to_string(count));
        computed_everywhere([&, &draw = draw] {
          torch::manual_seed(5);
          at::Tensor x = torch::empty({count}, type);
          draw(x);
          return x;
        });
      }
    }
  }
}

TEST_F(Random, an_element_depends_on_its_index_and_not_on_where_it_lies) {
  for (const auto& [name, draw] : kOperators) {
    SCOPED_TRACE(name);
    const at::Tensor rows = torch::empty({70, 90});
    const at::Tensor columns = torch::empty({90, 70}).t();
    const at::Tensor apart = torch::zeros({70, 2, 91, 3}).select(3, 1).select(1, 1).narrow(1, 0, 90);
    const at::Tensor last = torch::empty({1, 35, 2, 90}).to(at::MemoryFormat::ChannelsLast);
    for (const at::Tensor& each : {rows, columns, apart, last}) {
      torch::manual_seed(8);
      draw(each);
      EXPECT_TRUE(same_bits(each.reshape({70, 90}), rows));
    }
    torch::manual_seed(8);
    const at::Tensor some = torch::empty({50});
    draw(some);
    EXPECT_TRUE(same_bits(some, rows.flatten().narrow(0, 0, 50)));
  }
}

TEST_F(Random, exponential_numbers_are_those_of_their_formula) {
  const Draw draw = draw_of(at::detail::getDefaultCPUGenerator());
  const at::Tensor x = torch::empty({kCount}, torch::kDouble).exponential_(1);
  for (int64_t i = 0; i < kCount; i += 7) {
    const uint64_t word = word64(draw, i);
    const long double complement = (static_cast<long double>(~word) + 0.5L) * 0x1p-64L;
    const auto expected = static_cast<double>(-std::log1p(-complement));
    const double ulp = std::ldexp(1.0, std::ilogb(expected) - 52);
    if (word >> 62 != 3) continue;  // u is from 3/4 to 1
    EXPECT_NEAR(x[i].item<double>(), expected, 3 * ulp) << i;
  }
  const Draw next = draw_of(at::detail::getDefaultCPUGenerator());
  const at::Tensor y = torch::empty({kCount}).exponential_(1);
  for (int64_t i = 0; i < kCount; i += 7) {
    const double expected = -std::log((word32(next, i) + 0.5) * 0x1p-32);
    const double ulp = std::ldexp(1.0, std::ilogb(expected) - 23);
    EXPECT_NEAR(y[i].item<float>(), expected, 3 * ulp) << i;
  }
}

// Sines and cosines of Box and Muller, in pairs that lie 16 (8) elements apart.
TEST_F(Random, normal_numbers_are_those_of_their_formula) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const bool narrow = type == at::kFloat;
    const Draw draw = draw_of(at::detail::getDefaultCPUGenerator());
    const at::Tensor x = torch::empty({6400}, type).normal_(0, 1).to(torch::kDouble);
    const int64_t apart = narrow ? 16 : 8;
    for (int64_t i = 0; i < x.numel(); ++i) {
      if (i / apart % 2 == 1) continue;
      const uint64_t u = narrow ? uint64_t{word32(draw, i)} << 32 | 0x80000000 : word64(draw, i);
      const uint64_t v = narrow ? uint64_t{word32(draw, i + apart)} << 32 : word64(draw, i + apart);
      const long double fraction = static_cast<long double>(u) * 0x1p-64L;
      const long double radius = std::sqrt(-2 * std::log(fraction));
      const long double quarter = static_cast<long double>(static_cast<int64_t>(v << 2)) * 0x1p-64L;
      long double cosine = std::cos(quarter * std::numbers::pi_v<long double> / 2);
      long double sine = std::sin(quarter * std::numbers::pi_v<long double> / 2);
      if (v >> 63 == 1) std::swap(cosine, sine);
      const long double sign = (v >> 62 & 1) == 1 ? -1 : 1;
      const double tolerance = narrow ? 2e-6 : 1e-14;
      EXPECT_NEAR(x[i].item<double>(), static_cast<double>(sign * radius * cosine), tolerance);
      EXPECT_NEAR(x[i + apart].item<double>(), static_cast<double>(sign * radius * sine), tolerance);
    }
  }
}

TEST_F(Random, samples_have_their_distributions) {
  const auto pi = std::numbers::pi;
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    for (int i = 0; i < 2; ++i) {
      SCOPED_TRACE(testing::Message() << at::toString(type) << ", sample " << i);
      const auto sample = [&] { return torch::empty({kCount}, type); };
      at::Tensor x = sample().uniform_(-1, 3).to(torch::kDouble);
      EXPECT_LT(distance(x, (x + 1) / 4), 1.95);
      x = sample().normal_(2, 0.5).to(torch::kDouble);
      EXPECT_LT(distance(x, torch::special::ndtr((x - 2) * 2)), 1.95);
      x = sample().log_normal_(1, 0.25).to(torch::kDouble);
      EXPECT_LT(distance(x, torch::special::ndtr((x.log() - 1) * 4)), 1.95);
      x = sample().exponential_(3).to(torch::kDouble);
      EXPECT_GT(x.min().item<double>(), 0);
      EXPECT_LT(distance(x, -torch::expm1(-3 * x)), 1.95);
      x = sample().cauchy_(1, 2).to(torch::kDouble);
      EXPECT_LT(distance(x, torch::atan((x - 1) / 2) / pi + 0.5), 1.95);
    }
  }
}

TEST_F(Random, normal_samples_have_the_moments_and_are_independent) {
  constexpr int64_t kMany = 4'000'000;
  const at::Tensor x = torch::randn({kMany}).to(torch::kDouble);
  const double error = 1 / std::sqrt(kMany);
  EXPECT_NEAR(x.mean().item<double>(), 0, 4 * error);
  EXPECT_NEAR(x.pow(2).mean().item<double>(), 1, 4 * std::sqrt(2) * error);
  EXPECT_NEAR(x.pow(3).mean().item<double>(), 0, 4 * std::sqrt(15) * error);
  EXPECT_NEAR(x.pow(4).mean().item<double>(), 3, 4 * std::sqrt(96) * error);
  for (const int64_t lag : {1, 2, 8, 16, 32, 48, 64, 4096}) {
    const at::Tensor before = x.narrow(0, 0, kMany - lag);
    const at::Tensor after = x.narrow(0, lag, kMany - lag);
    EXPECT_NEAR((before * after).mean().item<double>(), 0, 4 * error) << lag;
    EXPECT_NEAR((before.pow(2) * after.pow(2)).mean().item<double>(), 1, 4 * std::sqrt(8) * error) << lag;
  }
  EXPECT_GT(x.max().item<double>(), 4.5);
  EXPECT_LT(x.min().item<double>(), -4.5);
}

// Pearson's chi-square, which exceeds its mean by 4 standard deviations less than once in ten thousand times.
void expect_counts(const at::Tensor& counts, const at::Tensor& probabilities) {
  const at::Tensor expected = probabilities * counts.sum();
  const double chi_square = ((counts - expected).pow(2) / expected).sum().item<double>();
  const auto freedom = static_cast<double>(counts.numel() - 1);
  EXPECT_LT(chi_square, freedom + 4 * std::sqrt(2 * freedom));
}

TEST_F(Random, discrete_samples_have_their_probabilities) {
  const auto counts_of = [](const at::Tensor& x, int64_t bins) {
    return torch::bincount(x.to(torch::kLong), {}, bins).to(torch::kDouble);
  };
  for (const double p : {0.5, 0.1, 0.999, 1e-3}) {
    const at::Tensor probabilities = torch::tensor({1 - p, p}, torch::kDouble);
    for (const at::ScalarType type : {at::kFloat, at::kBool, at::kInt}) {
      const at::Tensor x = torch::empty({kCount}, type).bernoulli_(p);
      expect_counts(counts_of(x, 2), probabilities);
    }
    expect_counts(counts_of(torch::bernoulli(torch::full({kCount}, p)), 2), probabilities);
  }
  for (const double p : {0.05, 0.3, 0.7}) {
    const at::Tensor trials = torch::empty({kCount}, torch::kLong).geometric_(p);
    EXPECT_EQ(trials.min().item<int64_t>(), 1);
    at::Tensor chances = p * torch::pow(1 - p, torch::arange(10, torch::kDouble));
    chances = torch::cat({chances, (1 - chances.sum()).reshape({1})});
    expect_counts(counts_of((trials - 1).clamp_max(10), 11), chances);
  }
  const at::Tensor even = torch::full({97}, 1.0 / 97, torch::kDouble);
  expect_counts(counts_of(torch::randint(-40, 57, {kCount}) + 40, 97), even);
  expect_counts(counts_of(torch::empty({kCount}, torch::kLong).random_() % 97, 97), even);
  expect_counts(counts_of(torch::empty({kCount}, torch::kByte).random_(), 256),
                torch::full({256}, 1 / 256.0));
  const at::Tensor weights = torch::tensor({0.1, 0.4, 0.0, 0.3, 0.2});
  const at::Tensor chosen = torch::multinomial(weights.expand({kCount, 5}), 1).flatten();
  const at::Tensor counts = counts_of(chosen, 5);
  EXPECT_EQ(counts[2].item<double>(), 0);
  const at::Tensor others = torch::tensor({0, 1, 3, 4});
  expect_counts(counts.index({others}), weights.index({others}).to(torch::kDouble));
}

TEST_F(Random, permutations_are_uniform) {
  at::Tensor counts = torch::zeros({24}, torch::kDouble);
  for (int i = 0; i < 24'000; ++i) {
    const at::Tensor order = torch::randperm(4);
    const auto at = order.accessor<int64_t, 1>();
    int64_t rank = 0;
    for (int64_t k = 0, left = 24; k < 4; ++k) {
      left /= 4 - k;
      for (int64_t j = k + 1; j < 4; ++j) rank += at[j] < at[k] ? left : 0;
    }
    counts[rank] += 1;
  }
  expect_counts(counts, torch::full({24}, 1 / 24.0, torch::kDouble));
  const at::Tensor large = computed_everywhere([] {
    torch::manual_seed(2);
    return torch::randperm(20'001);
  });
  EXPECT_TRUE(torch::equal(std::get<0>(large.sort()), torch::arange(20'001)));
  EXPECT_EQ(torch::randperm(0).numel(), 0);
  EXPECT_EQ(torch::randperm(300, torch::kInt).scalar_type(), torch::kInt);
  EXPECT_THROW(torch::randperm(300, torch::kByte), std::exception);
}

TEST_F(Random, bounds_are_kept) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    SCOPED_TRACE(at::toString(type));
    const at::Tensor x = torch::empty({kCount}, type);
    for (const auto& [from, to] : {std::pair(0.0, 1.0), std::pair(0.0, 3.0), std::pair(-2048.0, -2047.0)}) {
      x.uniform_(from, to);
      EXPECT_GE(x.min().item<double>(), from);
      EXPECT_LT(x.max().item<double>(), to);
    }
    x.uniform_(0.5, 0.5);
    EXPECT_TRUE(x.eq(0.5).all().item<bool>());
    EXPECT_TRUE(x.bernoulli_(0).eq(0).all().item<bool>());
    EXPECT_TRUE(x.bernoulli_(1).eq(1).all().item<bool>());
    EXPECT_TRUE(x.bernoulli_(torch::ones({1})).eq(1).all().item<bool>());
    EXPECT_TRUE(x.bernoulli_(torch::zeros({kCount}, type)).eq(0).all().item<bool>());
    x.normal_(3, 0);
    EXPECT_TRUE(x.eq(3).all().item<bool>());
  }
  at::Tensor integers_of = torch::empty({kCount}, torch::kLong);
  at::_ops::random__from::call(integers_of, std::numeric_limits<int64_t>::lowest(), {}, {});
  EXPECT_LT(integers_of.min().item<int64_t>(), int64_t{-1} << 62);
  EXPECT_GT(integers_of.max().item<int64_t>(), int64_t{1} << 62);
  at::_ops::random__from::call(integers_of, int64_t{1} << 62, {}, {});
  EXPECT_GE(integers_of.min().item<int64_t>(), int64_t{1} << 62);
}

TEST_F(Random, wrong_arguments_are_refused_as_by_libtorch) {
  at::Tensor x = torch::empty({4});
  EXPECT_THROW(x.uniform_(1, 0), c10::Error);
  EXPECT_THROW(x.normal_(0, -1), c10::Error);
  EXPECT_THROW(x.exponential_(0), c10::Error);
  EXPECT_THROW(x.geometric_(1), c10::Error);
  EXPECT_THROW(x.bernoulli_(1.5), c10::Error);
  EXPECT_THROW(x.bernoulli_(torch::tensor({0.5, 0.5, 2.0, 0.5})), c10::Error);
  EXPECT_THROW(x.random_(3, 3), c10::Error);
  EXPECT_THROW(x.to(torch::kLong).uniform_(), c10::Error);
  EXPECT_THROW(x.to(torch::kByte).random_(0, 300), c10::Error);
  EXPECT_THROW(at::normal(x, -1), c10::Error);
}

TEST_F(Random, a_generator_continues_from_its_saved_state) {
  at::Generator generator = at::detail::createCPUGenerator(7);
  torch::empty({100}).normal_(0, 1, generator);
  const at::Tensor state = generator.get_state();
  const auto draws = [&](at::Generator from) {
    std::vector<at::Tensor> all;
    for (const int64_t count : {3, 100, 5000}) {
      all.push_back(torch::empty({count}).normal_(0, 1, from));
      all.push_back(torch::empty({count}).uniform_(0, 1, from));
      all.push_back(torch::randperm(count, from).to(torch::kFloat));
    }
    return torch::cat(all);
  };
  const at::Tensor first = draws(generator);
  EXPECT_FALSE(same_bits(first, draws(generator)));
  at::Generator other = at::detail::createCPUGenerator(1);
  other.set_state(state);
  EXPECT_TRUE(same_bits(first, draws(other)));
  EXPECT_FALSE(same_bits(torch::randn({9}), torch::randn({9})));  // of the default generator
}

TEST_F(Random, seeds_that_differ_in_any_bit_give_other_numbers) {
  std::vector<float> firsts;
  for (int bit = -1; bit < 64; ++bit) {
    torch::manual_seed(bit < 0 ? 0 : uint64_t{1} << bit);
    firsts.push_back(torch::rand({4})[3].item<float>());
  }
  std::sort(firsts.begin(), firsts.end());
  EXPECT_EQ(std::adjacent_find(firsts.begin(), firsts.end()), firsts.end());
}

TEST_F(Random, normal_takes_tensors) {
  const at::Tensor mean = torch::tensor({{10.0}, {-10.0}});
  const at::Tensor deviation = torch::tensor({0.0, 1.0, 2.0});
  const auto repeat = [](const at::Tensor& x) { return x.expand({20'000, 2, 3}); };
  const at::Tensor x = at::normal(repeat(mean), repeat(deviation));
  const double error = 1 / std::sqrt(20'000);
  for (int64_t i = 0; i < 2; ++i) {
    for (int64_t j = 0; j < 3; ++j) {
      const at::Tensor sample = x.select(1, i).select(1, j);
      EXPECT_NEAR(sample.mean().item<double>(), i == 0 ? 10 : -10, 5 * static_cast<double>(j) * error + 1e-6);
      EXPECT_NEAR(sample.std().item<double>(), static_cast<double>(j), 5 * static_cast<double>(j) * error);
    }
  }
  const auto seeded = [](auto&& make) {
    torch::manual_seed(3);
    return make();
  };
  const at::Tensor zero = torch::zeros({500});
  const at::Tensor plain = seeded([&] { return torch::randn({500}); });
  EXPECT_TRUE(same_bits(plain, seeded([&] { return at::normal(zero, 1); })));
  EXPECT_TRUE(same_bits(plain * 2, seeded([&] { return at::normal(0, zero + 2); })));
  at::Tensor out = torch::empty({0});
  seeded([&] { return at::normal_out(out, zero, zero + 1); });
  EXPECT_TRUE(same_bits(plain, out));
}

TEST_F(Random, dropout_keeps_the_same_elements_in_both_directions) {
  const at::Tensor x = torch::ones({300, 400}).requires_grad_();
  const at::Tensor y = torch::dropout(x, 0.25, /*train=*/true);
  y.sum().backward();
  EXPECT_TRUE(same_bits(y.detach(), x.grad()));
  expect_counts(torch::bincount(y.detach().ne(0).flatten().to(torch::kLong)).to(torch::kDouble),
                torch::tensor({0.25, 0.75}, torch::kDouble));
  EXPECT_EQ(y.max().item<float>(), 1 / 0.75F);
  computed_everywhere([&] {
    torch::manual_seed(6);
    return std::get<0>(torch::native_dropout(x.detach(), 0.25, true));
  });
}

TEST_F(Random, dropout_has_the_bits_of_bernoulli_div_and_mul) {
  at::Tensor x = torch::randn({13, 777});
  x[0][0] = -0.0;
  x[1][1] = INFINITY;
  for (const double p : {0.1, 0.3, 0.5, 0.77, 1e-12}) {
    torch::manual_seed(5);
    const at::Tensor noise = torch::empty_like(x).bernoulli_(1 - p).div_(1 - p);
    torch::manual_seed(5);
    const at::Tensor dropped = computed_everywhere([&] {
      torch::manual_seed(5);
      return torch::dropout(x, p, /*train=*/true);
    });
    EXPECT_TRUE(same_bits(dropped, x * noise)) << p;
    const at::Tensor leaf = torch::ones_like(x).requires_grad_();
    torch::manual_seed(5);
    const at::Tensor y = torch::dropout(leaf * leaf, p, /*train=*/true);
    const at::Tensor first = torch::autograd::grad({y.sum()}, {leaf}, {}, true, /*create_graph=*/true)[0];
    const at::Tensor second = torch::autograd::grad({first.sum()}, {leaf})[0];
    EXPECT_TRUE(same_bits(second, noise * 2)) << p;
  }
  EXPECT_TRUE(same_bits(x, torch::dropout(x, 0.5, /*train=*/false)));
  EXPECT_TRUE(same_bits(x * 0, torch::dropout(x, 1, /*train=*/true)));
  EXPECT_THROW(torch::dropout(x, 1.5, /*train=*/true), c10::Error);
}

TEST_F(Random, modules_begin_with_the_same_parameters_everywhere) {
  computed_everywhere([] {
    torch::manual_seed(1);
    const torch::nn::Linear linear(30, 50);
    const torch::nn::Conv2d convolution(3, 8, 3);
    const torch::nn::Embedding embedding(20, 7);
    const torch::nn::GRU recurrent(5, 6);
    std::vector<at::Tensor> all;
    for (const std::vector<at::Tensor>& some :
         {linear->parameters(), convolution->parameters(), embedding->parameters(), recurrent->parameters()})
      for (const at::Tensor& each : some) all.push_back(each.detach().flatten());
    all.push_back(torch::nn::init::xavier_normal_(torch::empty({9, 9})).flatten());
    return torch::cat(all);
  });
}

}  // namespace
}  // namespace tutti::kernels::random_test

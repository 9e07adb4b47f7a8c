// Tests the audits of sums and updates: in each step one rank flips a bit, in its memory or in a message that
// it receives, and is found, or the flip changes nothing.
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tutti/base/file.h"
#include "tutti/base/test_folder.h"
#include "tutti/comm/test_ranks.h"
#include "tutti/lanes/lanes.h"
#include "tutti/params/ftrl.h"
#include "tutti/params/optimizer_options.h"
#include "tutti/params/parameter_groups.h"
#include "tutti/step/audited_range.h"
#include "tutti/train/distributed_optimizer.h"
#include "tutti/train/loop.h"
#include "tutti/train/strategies/audits.h"
#include "tutti/train/test_training.h"

namespace tutti::audited_sums_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

void flip_bit(void* data, size_t size, uint64_t bit) {
  static_cast<unsigned char*>(data)[bit / 8 % size] ^= static_cast<unsigned char>(1U << bit % 8);
}

// A message that a rank receives with one wrong bit.
struct WrongMessage {
  std::string what = {};  // Operation::what
  int number = 0;         // of the messages of that name
  uint64_t bit = 0;
};

// Forwards to another transport, and flips a bit of the message that is due.
class Flipping final : public comm::testing::ForwardingTransport {
 public:
  Flipping(std::unique_ptr<comm::Transport> inner, std::optional<WrongMessage>& due)
      : ForwardingTransport(std::move(inner)), due_(due) {}
  std::string name() const override { return "flipping"; }
  void exchange(std::span<const comm::ConstBytes> sends, std::span<const comm::Bytes> recvs,
                const comm::Operation& operation) override {
    ForwardingTransport::exchange(sends, recvs, operation);
    if (!due_ || operation.what != due_->what || due_->number-- > 0) return;
    std::vector<comm::Bytes> received;
    for (size_t r = 0; r < recvs.size(); ++r)
      if (static_cast<int>(r) != rank() && !recvs[r].empty()) received.push_back(recvs[r]);
    const WrongMessage wrong = *std::exchange(due_, std::nullopt);
    if (received.empty()) return;
    const comm::Bytes bytes = received[wrong.bit % received.size()];
    flip_bit(bytes.data(), bytes.size(), wrong.bit / received.size());
  }

 private:
  std::optional<WrongMessage>& due_;
};

// A place in which one worker flips a bit.
struct Place {
  std::string name;
  bool is_always_found = false;  // false: the flip may be rounded away
  WrongMessage message = {};     // if it is one
};

// All parameters are in one range, so that every sum and every update is audited.
struct Training {
  std::string backend = "plain";
  std::string optimizer_state = "replicated";
  int world = 3;
  int64_t lanes = 5;
  int64_t steps = 100;
  std::vector<Place> places = {};

  struct Result {
    std::set<std::string> hashes = {};  // of the weights, of all ranks
    nlohmann::json audits = {};
  };
  Result run() const {
    Result result;
    std::mutex mutex;
    const TestFolder folder;
    const comm::testing::MakeTransport make =
        comm::testing::make_transports(backend, world, std::chrono::minutes(10));
    std::vector<std::optional<WrongMessage>> due(static_cast<size_t>(world));
    const auto errors = comm::testing::errors_of_ranks(
        world,
        [&](int rank) {
          auto transport = make(rank);
          if (backend == "plain")
            transport = std::make_unique<Flipping>(std::move(transport), due[static_cast<size_t>(rank)]);
          return std::make_unique<comm::Collectives>(std::move(transport), std::chrono::minutes(2));
        },
        [&](comm::Communicator& comm) {
          const std::string hash = train(comm, due[static_cast<size_t>(comm.rank())], folder / "report.json");
          const std::lock_guard lock(mutex);
          result.hashes.insert(hash);
        });
    EXPECT_THAT(errors, testing::Each(""));
    result.audits = nlohmann::json::parse(read_file(folder / "report.json")).at("audits");
    return result;
  }

  Place place_of(int64_t step) const { return places[static_cast<size_t>(step) % places.size()]; }
  // Every place comes with every rank.
  int victim_of(int64_t step) const {
    return static_cast<int>(static_cast<size_t>(step) / places.size() % static_cast<size_t>(world));
  }

 private:
  std::string train(comm::Communicator& comm, std::optional<WrongMessage>& due,
                    const std::string& report) const {
    RunConfig config = test_flags();
    config.training = {.strategy = "",
                       .lanes = lanes,
                       .steps = steps,
                       .nan_guard = false,
                       .audit = 1,
                       .audit_action = "redo"};
    config.reduction.optimizer_state = optimizer_state;
    if (comm.rank() == 0) config.output.report = report;
    config.output.log_level = "off";
    const Context context = test_context(config);
    torch::nn::Linear net(torch::nn::LinearOptions(64, 60).bias(false));
    {
      const torch::NoGradGuard no_grad;
      net->weight.copy_(torch::sin(torch::arange(64 * 60, torch::kFloat)).view({60, 64}) / 8);
    }
    Parameters parameters(*net);
    DistributedOptimizer opt(context, parameters, torch::optim::AdamOptions(1e-3),
                             {.group = comm::testing::borrowed(comm)});
    Loop loop(context, parameters, opt, {});
    std::mt19937_64 random(1);
    int64_t flipped_in = -1;
    while (loop.goes_on()) {
      const int64_t step = loop.step();
      const bool flips = !places.empty() && flipped_in != step && comm.rank() == victim_of(step);
      for (const int64_t lane : opt.lanes_of_step()) {
        opt.zero_grad();
        const torch::Tensor x = torch::sin(torch::arange(128, torch::kFloat).view({2, 64}) *
                                           static_cast<double>(1 + (step * lanes + lane) % 91));
        opt.backward(torch::mse_loss(net->forward(x), x.narrow(1, 0, 60).pow(2)), 2);
      }
      if (flips) {
        flipped_in = step;
        flip(place_of(step), random(), parameters, opt.optimizer(), due);
      }
      opt.step();
    }
    return parameters.sha256();
  }

  static void flip(const Place& place, uint64_t bit, const Parameters& parameters, const Optimizer& optimizer,
                   std::optional<WrongMessage>& due) {
    const torch::Tensor& weight = parameters.trained()[0].tensor;
    if (!place.message.what.empty()) due = {place.message.what, place.message.number, bit};
    if (place.name == "gradient") flip_bit(weight.grad().data_ptr(), weight.nbytes(), bit);
    if (place.name == "weight") flip_bit(weight.data_ptr(), weight.nbytes(), bit);
    if (place.name != "slot") return;
    const std::vector<Optimizer::Slot> slots = optimizer.slots_in(0, {0, weight.numel()});
    if (slots.empty()) return;  // before the first step
    const torch::Tensor& slot = slots[bit % slots.size()].vector;
    flip_bit(slot.data_ptr(), slot.nbytes(), bit / slots.size());
  }
};

const Place kGradient = {.name = "gradient", .is_always_found = true};
const Place kWeight = {.name = "weight"};
const Place kSlot = {.name = "slot"};
Place message(const std::string& what, int number = 0, bool is_always_found = false) {
  return {what, is_always_found, {what, number, 0}};
}

const std::vector<Training> kTrainings = {
    // The sums travel as the branches of all workers, and then as results.
    {.places = {kGradient, kWeight, kSlot, message("gradients"), message("gradients", 1, true),
                message("the lanes of an audited sum")}},
    {.optimizer_state = "sharded",
     .places = {kGradient, kWeight, message("gradients"), message("the parameters", 0, true),
                message("the lanes of an audited sum"), message("the slots of an audited update")}},
    {.backend = "shm", .places = {kGradient, kWeight, kSlot}},
    {.backend = "shm", .optimizer_state = "sharded", .places = {kGradient, kWeight}},
    {.backend = "aab", .places = {kGradient, kWeight, kSlot}}};

// Returns the number of flips that were found.
size_t expect_found(Training training) {
  const std::vector<Place> places = std::exchange(training.places, {});
  const Training::Result clean = training.run();
  EXPECT_EQ(clean.audits.at("made"), training.steps);
  EXPECT_THAT(clean.audits.at("found"), IsEmpty());
  training.places = places;
  const Training::Result flipped = training.run();
  EXPECT_EQ(flipped.hashes, clean.hashes) << training.backend << training.optimizer_state;
  std::map<int64_t, nlohmann::json> found;
  for (const nlohmann::json& each : flipped.audits.at("found")) {
    const auto step = each.at("step").get<int64_t>();
    EXPECT_TRUE(found.emplace(step, each).second) << each;
    EXPECT_EQ(each.at("certain"), true) << training.place_of(step).name << each;
    EXPECT_EQ(each.at("ranks"), std::vector<int>{training.victim_of(step)})
        << training.place_of(step).name << each;
  }
  std::map<std::string, std::pair<int, int>> counts;  // by place: found, and all
  for (int64_t step = 0; step < training.steps; ++step) {
    const Place place = training.place_of(step);
    counts[place.name].first += static_cast<int>(found.count(step));
    ++counts[place.name].second;
    if (place.is_always_found) {
      EXPECT_EQ(found.count(step), 1U) << place.name << step;
    }
  }
  for (const auto& [name, count] : counts)
    std::printf("%s, %s: %d of %d flips found in %s\n", training.backend.c_str(),
                training.optimizer_state.c_str(), count.first, count.second, name.c_str());
  return found.size();
}

TEST(AuditedSums, find_every_flip_that_changes_a_sum_or_an_update_and_leave_the_bits) {
  for (Training training : kTrainings) {
    training.steps = 36;
    EXPECT_GT(expect_found(training), 12U);
  }
}
TEST(AuditedSumsSoak, find_every_flip_that_changes_a_sum_or_an_update_and_leave_the_bits) {
  for (Training training : kTrainings) {
    training.steps = 3000;
    EXPECT_GT(expect_found(training), 1000U);
  }
}

OptimizerOptions own_sign_descent() {
  return ElementwiseOptimizer{.name = "sign_descent",
                              .rate = 1e-3,
                              .slots = {"mean"},
                              .numbers = {},
                              .update = [](const ElementwiseUpdate& u) {
                                u.slots[0].mul_(0.9).add_(u.grads, 0.1);
                                u.values.sub_(u.slots[0].sign() * u.rate);
                              }};
}

// Trains two layers of different types and sizes.
void expect_no_false_alarm(const OptimizerOptions& optimizer, const std::string& state,
                           const std::string& backend, const TestFolder& folder) {
  comm::testing::with_ranks(backend, 3, [&](comm::Communicator& comm) {
    RunConfig config = test_flags();
    config.training = {.strategy = "", .lanes = 4, .steps = 16, .audit = 1, .audit_action = "redo"};
    config.reduction.optimizer_state = state;
    if (comm.rank() == 0) config.output.report = folder / "report.json";
    config.output.log_level = "off";
    const Context context = test_context(config);
    torch::nn::Linear first(90, 300);
    torch::nn::Linear second(300, 7);
    second->to(torch::kDouble);
    torch::nn::Sequential net(first, second);
    {
      const torch::NoGradGuard no_grad;
      for (torch::Tensor& p : net->parameters())
        p.copy_(torch::sin(torch::arange(p.numel(), torch::kDouble)).view(p.sizes()) / 20);
    }
    Parameters parameters(*net);
    freeze(parameters, optimizer.groups);
    DistributedOptimizer opt(context, parameters, optimizer,
                             {.clip_norm = 0.05, .group = comm::testing::borrowed(comm)});
    Loop loop(context, parameters, opt, {});
    while (loop.goes_on()) {
      opt.set_learning_rate(1e-3 / static_cast<double>(1 + loop.step()));
      for (const int64_t lane : opt.lanes_of_step()) {
        opt.zero_grad();
        const torch::Tensor x = torch::sin(torch::arange(180, torch::kFloat).view({2, 90}) *
                                           static_cast<double>(1 + (loop.step() * 4 + lane) % 91));
        const torch::Tensor y = second->forward(torch::tanh(first->forward(x)).to(torch::kDouble));
        opt.backward((y - 1).pow(2).mean(), 2);
      }
      opt.step();
    }
  });
  const auto audits = nlohmann::json::parse(read_file(folder / "report.json")).at("audits");
  EXPECT_EQ(audits.at("made"), 16);
  EXPECT_THAT(audits.at("found"), IsEmpty()) << name_of(optimizer) << state << backend;
}

TEST(AuditedSums, raise_no_false_alarm_with_any_optimiser) {
  const TestFolder folder;
  const std::vector<ParameterGroup> groups = {{.names = "*.bias", .weight_decay = 0},
                                              {.names = "1.*", .rate = 0.3},
                                              {.names = "1.bias", .frozen = true}};
  const std::vector<OptimizerOptions> elementwise = {
      torch::optim::SGDOptions(1e-3),
      {torch::optim::SGDOptions(1e-3).momentum(0.9).nesterov(true).weight_decay(0.1), groups},
      {torch::optim::AdamOptions(1e-3).amsgrad(true), groups},
      {torch::optim::AdamWOptions(1e-3), groups},
      torch::optim::AdagradOptions(1e-3),
      torch::optim::RMSpropOptions(1e-3).momentum(0.9).centered(true),
      {FtrlOptions{.rate = 1e-3}, groups},
      own_sign_descent()};
  for (const OptimizerOptions& optimizer : elementwise) {
    for (const std::string state : {"replicated", "sharded"}) {
      expect_no_false_alarm(optimizer, state, "plain", folder);
      expect_no_false_alarm(optimizer, state, "shm", folder);
    }
  }
  // Its update is not computed again.
  const OptimizerOptions whole = ReplicatedOptimizer{
      .name = "whole", .make = [](const std::vector<torch::Tensor>& parameters) {
        return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(1e-3));
      }};
  expect_no_false_alarm(whole, "replicated", "shm", folder);
}

TEST(DrawRange, draws_every_element_as_often) {
  torch::nn::Sequential net(torch::nn::Linear(100, 300), torch::nn::Linear(300, 10));
  const Parameters parameters(*net);
  std::map<std::pair<size_t, int64_t>, int64_t> drawn;
  constexpr int64_t kDraws = 30'000;
  for (int64_t i = 0; i < kDraws; ++i) {
    const AuditedRange range = draw_range(parameters, lane_seed(1, i, -2));
    const Parameters::View& view = parameters.trained()[range.parameter];
    EXPECT_GE(range.elements.begin, view.offset);
    EXPECT_GT(range.elements.size(), 0);
    EXPECT_LE(range.elements.size(), kAuditedElements);
    ++drawn[{range.parameter, range.elements.begin - view.offset}];
  }
  // The weights of the first layer are four ranges, of which the last is shorter.
  EXPECT_EQ(drawn.size(), 7U);
  EXPECT_NEAR(static_cast<double>(drawn.at({0, 0})) / kDraws, 8192.0 / 33310, 0.01);
  EXPECT_NEAR(static_cast<double>(drawn.at({0, 3 * kAuditedElements})) / kDraws, 5424.0 / 33310, 0.01);
  EXPECT_NEAR(static_cast<double>(drawn.at({2, 0})) / kDraws, 3000.0 / 33310, 0.01);
}

// By rank: the hashes, of one character each, of `again` and of `got`.
TEST(JudgeRecomputed, believes_most_of_those_who_have_computed_it_again) {
  const std::vector<Recomputed> results = {{.name = "a", .maker = 1, .again = "."},
                                           {.name = "b", .again = "."}};
  const auto wrong = [&](const RecomputedByRank& first, const RecomputedByRank& second = {}) {
    const Verdict verdict = judge(results, first, second);
    EXPECT_TRUE(verdict.is_clear);
    return verdict.wrong;
  };
  EXPECT_TRUE(judge(results, {}, {"abab", "abab", "abab"}).has_passed);
  EXPECT_THAT(wrong({}, {"abab", "abab", "abaX"}), ElementsAre(2));
  EXPECT_THAT(wrong({}, {"abab", "abab", "aXaX"}), ElementsAre(2));
  EXPECT_THAT(wrong({}, {"abXb", "abab", "abab"}), ElementsAre(0));
  // Nobody has the right result: its maker is wrong. What follows from it is not judged.
  EXPECT_THAT(wrong({}, {"abXY", "abXY", "abXY"}), ElementsAre(1));
  EXPECT_THAT(wrong({"abXb", "abXb", "abXb"}, {"abab", "abab", "abab"}), ElementsAre(1));
  // Two that differ agree when the step was made again.
  EXPECT_THAT(wrong({"aXab", "abab"}, {"abab", "abab"}), ElementsAre(0));
  EXPECT_FALSE(judge(results, {}, {"abab", "aXaX"}).is_clear);
  EXPECT_THAT(judge(results, {}, {"abab", "aXaX"}).wrong, ElementsAre(0, 1));
  // Nobody has the right result, and nobody knows who has made it.
  EXPECT_FALSE(judge(results, {}, {"abaX", "abaX", "abaX"}).is_clear);
}

}  // namespace
}  // namespace tutti::audited_sums_test

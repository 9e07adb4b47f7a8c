#include "tutti/train/strategies/audits.h"

#include <cstring>
#include <map>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tutti/base/file.h"
#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/comm/test_ranks.h"
#include "tutti/lanes/lanes.h"
#include "tutti/step/lane_hashes.h"
#include "tutti/train/distributed_optimizer.h"
#include "tutti/train/loop.h"
#include "tutti/train/test_training.h"

namespace tutti::audits_test {
namespace {

using comm::testing::with_ranks;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> hosts_of(const std::string& letters) {
  std::vector<std::string> hosts;
  for (const char letter : letters) hosts.emplace_back(1, letter);
  return hosts;
}

TEST(DrawAudit, chooses_every_lane_and_every_other_rank_and_never_the_owner) {
  const std::vector<std::string> hosts = hosts_of("aaaa");
  std::map<int64_t, int> lanes;
  std::set<std::pair<int, int>> pairs;
  for (int64_t step = 0; step < 6000; ++step) {
    const AuditedLane audited = draw_audit(1, step, 6, hosts, 2);
    const LaneRange range = lanes_of(audited.owner, 4, 6);
    EXPECT_TRUE(range.begin <= audited.lane && audited.lane < range.end);
    ASSERT_EQ(audited.auditors.size(), 2U);
    EXPECT_FALSE(audited.is_audited_by(audited.owner));
    EXPECT_NE(audited.auditors[0], audited.auditors[1]);
    EXPECT_EQ(draw_audit(1, step, 6, hosts, 1).auditors[0], audited.auditors[0]);
    ++lanes[audited.lane];
    pairs.insert({audited.owner, audited.auditors[0]});
  }
  ASSERT_EQ(lanes.size(), 6U);
  for (const auto& [lane, count] : lanes) EXPECT_NEAR(count, 1000, 150) << lane;
  EXPECT_EQ(pairs.size(), 12U);
}

TEST(DrawAudit, prefers_other_hosts) {
  for (int64_t step = 0; step < 1000; ++step) {
    const AuditedLane audited = draw_audit(7, step, 8, hosts_of("aabb"), 3);
    EXPECT_NE(audited.owner / 2, audited.auditors.at(0) / 2);
    EXPECT_NE(audited.owner / 2, audited.auditors.at(1) / 2);
    EXPECT_EQ(audited.owner / 2, audited.auditors.at(2) / 2);
  }
}

TEST(DrawAudit, lets_a_rank_audit_itself_only_if_it_is_alone) {
  EXPECT_THAT(draw_audit(1, 3, 4, hosts_of("a"), 2).auditors, ElementsAre(0));
  EXPECT_EQ(draw_audit(1, 3, 4, hosts_of("aa"), 2).auditors.size(), 1U);
  // Ranks without lanes audit too.
  std::set<int> auditors;
  for (int64_t step = 0; step < 100; ++step)
    auditors.insert(draw_audit(1, step, 1, hosts_of("aaa"), 1).auditors[0]);
  EXPECT_THAT(auditors, ElementsAre(1, 2));
}

TEST(Judge, believes_most_of_the_last_results) {
  const std::vector<LaneResult> first = {{0, "x"}, {1, "y"}};
  const Verdict nobody = judge({}, first);
  EXPECT_FALSE(nobody.is_clear || nobody.has_passed);
  EXPECT_THAT(nobody.wrong, ElementsAre(0, 1));

  const Verdict owner = judge(first, std::vector<LaneResult>{{0, "x"}, {1, "y"}, {2, "y"}});
  EXPECT_TRUE(owner.is_clear && !owner.has_passed);
  EXPECT_THAT(owner.wrong, ElementsAre(0));
  EXPECT_THAT(owner.right, ElementsAre(1, 2));
  EXPECT_EQ(owner.one + owner.other, "yx");

  const Verdict auditor = judge(first, std::vector<LaneResult>{{0, "x"}, {1, "z"}, {2, "x"}});
  EXPECT_THAT(auditor.wrong, ElementsAre(1));

  const Verdict each_another = judge(first, std::vector<LaneResult>{{0, "x"}, {1, "y"}, {2, "z"}});
  EXPECT_FALSE(each_another.is_clear);
  EXPECT_THAT(each_another.wrong, ElementsAre(0, 1, 2));

  const Verdict two_wrong = judge(first, std::vector<LaneResult>{{0, "z"}, {1, "z"}, {2, "z"}});
  EXPECT_TRUE(two_wrong.is_clear && two_wrong.has_passed);
  EXPECT_THAT(two_wrong.wrong, ElementsAre(0, 1));
}

TEST(Judge, knows_who_was_wrong_once_if_a_fault_has_passed) {
  const std::vector<LaneResult> first = {{0, "x"}, {1, "y"}};
  const Verdict of_two = judge(first, std::vector<LaneResult>{{0, "x"}, {1, "x"}});
  EXPECT_TRUE(of_two.is_clear && of_two.has_passed);
  EXPECT_THAT(of_two.wrong, ElementsAre(1));
  EXPECT_THAT(of_two.right, ElementsAre(0));
  const Verdict alone =
      judge(std::vector<LaneResult>{{0, "x"}, {0, "y"}}, std::vector<LaneResult>{{0, "x"}, {0, "x"}});
  EXPECT_TRUE(alone.is_clear);
  EXPECT_THAT(alone.wrong, ElementsAre(0));
  EXPECT_THAT(alone.right, IsEmpty());
}

struct Net : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x, const std::function<void(const torch::Tensor&)>& see) {
    const torch::Tensor hidden = torch::tanh(norm(first(x)));
    see(hidden);
    return second(hidden);
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(3, 4));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(4));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(4, 2));
};

// Flips one bit that is drawn from the seed, where a lane is computed: of a weight, of an activation, or of
// the gradient of a parameter.
class Flip {
 public:
  explicit Flip(int64_t seed) : random_(static_cast<uint64_t>(seed)), place_(random_() % 3) {}
  // Flips, or flips back.
  void weight(const Parameters& parameters) { flip_if(0, parameters.trained()[choice(6)].tensor); }
  void activation(const torch::Tensor& hidden) { flip_if(1, hidden); }
  void gradient(const Parameters& parameters) { flip_if(2, parameters.trained()[choice(6)].tensor.grad()); }

 private:
  size_t choice(size_t count) {
    tensor_ = tensor_.value_or(random_());
    return *tensor_ % count;
  }
  void flip_if(uint64_t place, const torch::Tensor& tensor) {
    if (place_ != place) return;
    bit_ = bit_.value_or(random_());
    auto* const bytes = static_cast<unsigned char*>(tensor.data_ptr());
    bytes[*bit_ / 8 % tensor.nbytes()] ^= static_cast<unsigned char>(1U << *bit_ % 8);
  }

  std::mt19937_64 random_;
  const uint64_t place_;
  std::optional<uint64_t> tensor_;
  std::optional<uint64_t> bit_;
};

// The ranks are threads. In each step one of the ranks that compute the audited lane flips a bit, once.
struct Training {
  int world = 3;
  int64_t lanes = 5;
  int64_t steps = 200;
  bool flips = false;

  struct Result {
    std::set<std::string> hashes = {};  // of the weights, of all ranks
    nlohmann::json audits = {};
    std::set<int64_t> mattered = {};  // the steps whose flip has changed a bit of the lane's results
  };

  Result run() const {
    Result result;
    std::mutex mutex;
    const TestFolder folder;
    with_ranks("plain", world, [&](comm::Communicator& comm) {
      RunConfig config = test_flags();
      config.training = {.strategy = "",
                         .lanes = lanes,
                         .steps = steps,
                         .nan_guard = false,
                         .audit = 1,
                         .audit_action = "redo"};
      if (comm.rank() == 0) config.output.report = folder / "report.json";
      config.output.log_level = "off";
      OnRank rank{*this, comm, test_context(config)};
      rank.train();
      const std::lock_guard lock(mutex);
      result.hashes.insert(rank.parameters.sha256());
      result.mattered.merge(rank.mattered);
    });
    result.audits = nlohmann::json::parse(read_file(folder / "report.json")).at("audits");
    return result;
  }

 private:
  struct OnRank {
    const Training& training;
    comm::Communicator& comm;
    const Context context;
    const std::shared_ptr<Net> net = [] {
      static std::mutex mutex;  // the ranks share the generator
      const std::lock_guard lock(mutex);
      torch::manual_seed(1);
      return std::make_shared<Net>();
    }();
    Parameters parameters = Parameters(*net);
    std::set<int64_t> mattered = {};
    int64_t flipped_in = -1;

    void train() {
      DistributedOptimizer opt(context, parameters, torch::optim::SGDOptions(0.05),
                               {.group = comm::testing::borrowed(comm)});
      Loop loop(context, parameters, opt, {});
      const std::vector<std::string> hosts(static_cast<size_t>(comm.world()), "this");
      while (loop.goes_on()) {
        const int64_t step = loop.step();
        const AuditedLane audited = draw_audit(1, step, training.lanes, hosts, 1);
        const int victim = step % 2 == 0 ? audited.owner : audited.auditors[0];
        const bool due = training.flips && comm.rank() == victim && flipped_in != step;
        for (const int64_t lane : opt.lanes_of_step()) {
          opt.zero_grad();
          const torch::Tensor x = torch::sin(torch::arange(12, torch::kFloat).view({4, 3}) *
                                             static_cast<double>(1 + (step * training.lanes + lane) % 91));
          if (due && lane == audited.lane)
            compute_wrongly(x, step);
          else
            loss_of(x, [](const torch::Tensor&) {}).backward();
          opt.add_lane(4);
        }
        if (due) flipped_in = step;
        opt.step();
      }
    }
    torch::Tensor loss_of(const torch::Tensor& x, const std::function<void(const torch::Tensor&)>& see) {
      return torch::mse_loss(net->forward(x, see), x.narrow(1, 0, 2).pow(2));
    }
    // Computes the lane without the flip first, to know whether the flip matters.
    void compute_wrongly(const torch::Tensor& x, int64_t step) {
      const torch::Tensor before = parameters.buffer_vectors()[0].clone();
      const torch::Tensor count = net->norm->num_batches_tracked.clone();
      loss_of(x, [](const torch::Tensor&) {}).backward();
      const std::string right = state();
      parameters.buffer_vectors()[0].copy_(before);
      net->norm->num_batches_tracked.copy_(count);
      parameters.zero_grads();
      Flip flip(step);
      flip.weight(parameters);
      loss_of(x, [&](const torch::Tensor& hidden) { flip.activation(hidden); }).backward();
      flip.weight(parameters);
      flip.gradient(parameters);
      if (state() != right) mattered.insert(step);
    }
    std::string state() const {
      std::string bytes;
      for (const torch::Tensor& tensor : {parameters.grads(), parameters.buffer_vectors()[0]})
        bytes.append(static_cast<const char*>(tensor.data_ptr()), tensor.nbytes());
      return bytes;
    }
  };
};

void expect_no_false_alarm(int64_t steps) {
  for (const auto& [world, lanes] : {std::pair(1, 2), std::pair(2, 3), std::pair(3, 5), std::pair(4, 2)}) {
    const Training training{.world = world, .lanes = lanes, .steps = steps};
    const Training::Result result = training.run();
    EXPECT_EQ(result.hashes.size(), 1U);
    EXPECT_EQ(result.audits.at("made"), steps);
    EXPECT_EQ(result.audits.at("found").size(), 0U) << result.audits;
  }
}

void expect_all_flips_caught(int64_t steps) {
  Training training{.steps = steps};
  const Training::Result clean = training.run();
  training.flips = true;
  const Training::Result flipped = training.run();
  EXPECT_EQ(flipped.hashes, clean.hashes);
  std::set<int64_t> found;
  for (const auto& each : flipped.audits.at("found")) {
    EXPECT_EQ(each.at("certain"), true) << each;
    EXPECT_EQ(each.at("workers").size(), 1U) << each;
    found.insert(each.at("step").get<int64_t>());
  }
  EXPECT_EQ(found, flipped.mattered);
  std::printf("%zu of %zu flips that changed a result were found; %zu of %ld flips changed none\n",
              found.size(), flipped.mattered.size(), static_cast<size_t>(steps) - flipped.mattered.size(),
              steps);
}

TEST(Audits, raise_no_false_alarm) { expect_no_false_alarm(100); }
TEST(AuditsSoak, raise_no_false_alarm) { expect_no_false_alarm(25'000); }
TEST(Audits, find_every_flip_that_changes_a_result_and_leave_the_bits) { expect_all_flips_caught(200); }
TEST(AuditsSoak, find_every_flip_that_changes_a_result_and_leave_the_bits) {
  expect_all_flips_caught(15'000);
}

// A loop of the program's own that is not a Loop cannot make a step again.
TEST(Audits, end_a_bare_loop_at_the_first_difference) {
  const auto errors =
      comm::testing::errors_of_ranks("plain", 2, std::chrono::seconds(60), [](comm::Communicator& comm) {
        RunConfig config = test_flags();
        config.training.lanes = 2;
        config.training.audit = 2;
        const Context context = test_context(config);
        torch::nn::Linear net(2, 1);
        net->weight.data().fill_(comm.rank() == 0 ? 1 : 2);
        net->bias.data().zero_();
        Parameters parameters(*net);
        DistributedOptimizer opt(context, parameters, torch::optim::SGDOptions(0.05),
                                 {.group = comm::testing::borrowed(comm)});
        for (int step = 0; step < 2; ++step) {
          for (const int64_t lane : opt.lanes_of_step()) {
            opt.zero_grad();
            opt.backward(net->forward(torch::full({1, 2}, static_cast<double>(lane))).pow(2).mean());
          }
          opt.step();
        }
      });
  for (const std::string& error : errors)
    EXPECT_THAT(error, testing::AllOf(HasSubstr("at step 1, the results of lane "),
                                      HasSubstr("first in the gradient of weight")));
}

TEST(Audits, refuse_a_loop_that_does_not_know_them) {
  with_ranks("plain", 2, [](comm::Communicator& comm) {
    RunConfig config = test_flags();
    config.training.lanes = 2;
    config.training.audit = 100;
    const Context context = test_context(config);
    torch::nn::Linear net(2, 1);
    Parameters parameters(*net);
    DistributedOptimizer opt(context, parameters, torch::optim::SGDOptions(0.05),
                             {.group = comm::testing::borrowed(comm)});
    expect_error(ErrorKind::InvalidArgument, HasSubstr("use lanes_of_step()"), [&] { opt.zero_grad(); });
    for (const int64_t lane : opt.lanes_of_step()) {
      opt.zero_grad();
      opt.backward(net->forward(torch::full({1, 2}, static_cast<double>(lane))).pow(2).mean());
    }
    opt.step();
  });
}

TEST(LaneHashes, name_the_first_tensor_that_differs) {
  Net net;
  const Parameters parameters(net);
  const torch::Tensor numbers = torch::ones({4}, torch::kDouble);
  const std::string hashes = hashes_of_lane(parameters, numbers);
  const auto difference = [&] {
    return first_difference(parameters, hashes, hashes_of_lane(parameters, numbers));
  };
  EXPECT_EQ(first_difference(parameters, hashes, ""), "the number of examples");
  numbers[0] = 2;
  EXPECT_EQ(difference(), "the loss");
  net.norm->num_batches_tracked.add_(1);
  EXPECT_EQ(difference(), "the buffer norm.num_batches_tracked");
  parameters.trained()[3].grad[1] = 1;
  EXPECT_EQ(difference(), "the gradient of norm.bias");
  // The order counts.
  parameters.trained()[0].grad.zero_()[0][0] = 1;
  const std::string one = hashes_of_lane(parameters, numbers);
  parameters.trained()[0].grad.zero_()[0][1] = 1;
  EXPECT_EQ(first_difference(parameters, one, hashes_of_lane(parameters, numbers)),
            "the gradient of first.weight");
}

}  // namespace
}  // namespace tutti::audits_test

// Tests what becomes of a C++ function in an exported model, within this process.
#include "tutti/train/export/trace.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <torch/script.h>
#include <torch/torch.h>

#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/embedding/embedding.h"
#include "tutti/train/export/torchscript.h"
#include "tutti/train/test_training.h"

namespace tutti::trace_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Function = std::function<torch::Tensor(const torch::Tensor&)>;

std::vector<store::NamedTensor> named(const torch::OrderedDict<std::string, torch::Tensor>& tensors) {
  std::vector<store::NamedTensor> all;
  for (const auto& item : tensors) {
    if (item.value().defined()) all.push_back({item.key(), item.value()});
  }
  return all;
}

struct Empty : torch::nn::Module {};

// A function of one tensor, traced with the first 6 and the first 4 of these rows, written and read.
class Exported {
 public:
  Exported(const Function& function, const torch::Tensor& rows, const torch::nn::Module& module = Empty()) {
    const torch::NoGradGuard no_grad;
    const Computation computation{
        .parameters = named(module.named_parameters()),
        .buffers = named(module.named_buffers()),
        .functions = {{.arguments = {"x"},
                       .body = [&](const auto& inputs) { return Computation::Tensors{function(inputs[0])}; },
                       .sizes = {{.name = "examples", .places = {{0, 0}}}},
                       .examples = {{rows.narrow(0, 0, 6)}, {rows.narrow(0, 0, 4)}},
                       .drop_unused = true}}};
    written = format_.write(computation, folder_.path());
    loaded_ = format_.load(folder_.path(), torch::kCPU);
  }

  torch::Tensor operator()(const torch::Tensor& x) const {
    return loaded_->run(kDefaultFunction, {x}, LoadedComputation::Mode::Optimised).front();
  }
  LoadedComputation& loaded() const { return *loaded_; }
  std::string path() const { return folder_ / "model.pt"; }

  ExportFormat::Written written;

 private:
  const TestFolder folder_;
  const TorchScriptFormat format_;
  std::unique_ptr<LoadedComputation> loaded_;
};

void expect_same(const torch::Tensor& here, const torch::Tensor& there) {
  EXPECT_EQ(here.sizes(), there.sizes());
  EXPECT_EQ(here.scalar_type(), there.scalar_type());
  EXPECT_TRUE(here.allclose(there, 0, 0, /*equal_nan=*/true)) << here << there;
}

// Expects the same bits for other batches than those of the traces, and for the first calls as for later
// ones.
void expect_generalises(const Function& function, const torch::Tensor& rows,
                        const torch::nn::Module& module = Empty()) {
  const torch::NoGradGuard no_grad;
  const Exported exported(function, rows, module);
  EXPECT_THAT(exported.written.doubts, IsEmpty());
  for (const int64_t size : {6, 4, 1, 2, 3, 5}) {
    const torch::Tensor x = rows.narrow(0, 6 - size, size);
    for (int call = 0; call < 3; ++call) expect_same(exported(x), function(x));
  }
}

torch::Tensor rows(int64_t columns = 4) {
  torch::manual_seed(3);
  return torch::randn({6, columns});
}

TEST(Trace, follows_numbers_that_are_made_of_the_number_of_examples) {
  expect_generalises([](const torch::Tensor& x) { return x.view({x.size(0), -1}) * 2; }, rows());
  expect_generalises([](const torch::Tensor& x) { return x.view({x.size(0) * 2, 2}).sum(1); }, rows());
  expect_generalises([](const torch::Tensor& x) { return torch::zeros({x.size(0), 3}) + x.sum(); }, rows());
  expect_generalises([](const torch::Tensor& x) { return torch::arange(2 * x.size(0) + 5) * x[0][0]; },
                     rows());
  expect_generalises([](const torch::Tensor& x) { return x.narrow(0, x.size(0) - 1, 1); }, rows());
  expect_generalises([](const torch::Tensor& x) { return x.sum(0).expand({x.size(0), 4}); }, rows());
  expect_generalises([](const torch::Tensor& x) { return x.sum(1).div(static_cast<double>(x.size(1))); },
                     rows());
}

// A function of examples and a length, traced with 6 and 4 examples of the lengths 5 and 3.
void expect_generalises_to_lengths(const Function& function) {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(3);
  const torch::Tensor whole = torch::randn({7, 9});
  const auto cut = [&](int64_t examples, int64_t length) {
    return whole.narrow(0, 0, examples).narrow(1, 0, length).contiguous();
  };
  const Computation computation{
      .functions = {
          {.arguments = {"x"},
           .body = [&](const auto& inputs) { return Computation::Tensors{function(inputs[0])}; },
           .sizes = {{.name = "examples", .places = {{0, 0}}}, {.name = "length", .places = {{0, 1}}}},
           .examples = {{cut(6, 5)}, {cut(4, 5)}, {cut(6, 3)}, {cut(4, 3)}}}}};
  const TestFolder folder;
  const TorchScriptFormat format;
  format.write(computation, folder.path());
  const auto loaded = format.load(folder.path(), torch::kCPU);
  for (const int64_t examples : {1, 2, 6, 7}) {
    for (const int64_t length : {1, 2, 5, 9}) {
      for (int call = 0; call < 3; ++call)
        expect_same(
            loaded->run(kDefaultFunction, {cut(examples, length)}, LoadedComputation::Mode::Optimised)[0],
            function(cut(examples, length)));
    }
  }
}

TEST(Trace, follows_numbers_that_are_made_of_a_length) {
  expect_generalises_to_lengths([](const torch::Tensor& x) { return x.view({x.size(0) * x.size(1)}); });
  expect_generalises_to_lengths([](const torch::Tensor& x) { return x.view({x.size(1), x.size(0)}); });
  expect_generalises_to_lengths([](const torch::Tensor& x) { return x + torch::arange(x.size(1)); });
  expect_generalises_to_lengths([](const torch::Tensor& x) {
    return torch::ones({x.size(1), x.size(1)}).tril() * x[0][0];
  });
  expect_generalises_to_lengths([](const torch::Tensor& x) { return x.narrow(1, x.size(1) - 1, 1); });
  // 3 * examples * length - length + 2 * examples + 7
  expect_generalises_to_lengths([](const torch::Tensor& x) {
    return torch::arange(3 * x.size(0) * x.size(1) - x.size(1) + 2 * x.size(0) + 7) * x[0][0];
  });
}

TEST(Trace, says_by_which_size_a_model_decides) {
  const auto refuses = [](const Function& function, const std::string& part) {
    expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("cannot be exported"), HasSubstr(part)),
                 [&] { expect_generalises_to_lengths(function); });
  };
  refuses([](const torch::Tensor& x) { return x.size(1) > 4 ? x.relu() : x.tanh(); },
          "for a batch of 6 examples, length 5 than for one of 6 examples, length 3");
  refuses([](const torch::Tensor& x) { return x.narrow(1, 0, (x.size(1) + 3) / 4); },
          "aten::narrow is called with 2 for a batch of 6 examples, length 5 and with 1");
}

// Sizes that happen to be those of the batch, such as six columns, must not become the number of examples.
TEST(Trace, keeps_numbers_that_only_look_like_the_number_of_examples) {
  expect_generalises(
      [](const torch::Tensor& x) {
        return x.view({x.size(0), 2, 3}).flatten(1) + 6;
      },
      rows(6));
  expect_generalises([](const torch::Tensor& x) { return x.view({-1, 4}).narrow(1, 0, 4); }, rows(4));
}

TEST(Trace, refuses_to_guess) {
  const auto refuses = [](const Function& function, const std::string& part) {
    const torch::NoGradGuard no_grad;
    expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("cannot be exported"), HasSubstr(part)),
                 [&] { const Exported exported(function, rows()); });
  };
  refuses([](const torch::Tensor& x) { return x.size(0) > 5 ? x.relu() : x.tanh(); }, "aten::relu");
  refuses([](const torch::Tensor& x) { return x.size(0) > 5 ? x.relu() * 2 : x.relu(); }, "aten::mul");
  refuses([](const torch::Tensor& x) { return x / static_cast<double>(x.size(0)); }, "aten::div");
  refuses([](const torch::Tensor& x) { return x * x.abs().sum().item<double>(); }, "aten::mul");
  // A tensor that is filled by hand.
  refuses(
      [](const torch::Tensor& x) {
        torch::Tensor counts = torch::tensor({static_cast<double>(x.size(0))});
        counts.data_ptr<double>()[0] = static_cast<double>(x.size(0));
        return x + counts;
      },
      "");
  refuses([](const torch::Tensor&) { return torch::rand({3}).clone().data(); }, "");
}

TEST(Trace, names_operators_whose_result_the_program_has_read) {
  const torch::NoGradGuard no_grad;
  const Exported exported([](const torch::Tensor& x) { return x.sum().item<float>() > 1e9 ? x : x * 2; },
                          rows());
  ASSERT_EQ(exported.written.doubts.size(), 1U);
  EXPECT_THAT(exported.written.doubts[0], HasSubstr("aten::item"));
}

TEST(Trace, computes_a_network_in_evaluation_mode) {
  const auto net = test_net();
  net->eval();
  expect_generalises([&](const torch::Tensor& x) { return net->forward(x); },
                     test_feed().read(std::vector<int64_t>{0, 1, 2, 3, 4, 5})["image"], *net);
}

// PyTorch and the checkpoint of a run call the tensors by the same names.
TEST(Trace, keeps_the_names_of_all_tensors_and_what_they_are) {
  struct Inner : torch::nn::Module {
    torch::Tensor scale = register_parameter("a scale", torch::ones(4));
    torch::Tensor frozen = register_parameter("frozen", torch::ones(4), /*requires_grad=*/false);
    torch::Tensor mask = register_buffer("mask", torch::ones(4, torch::kBool));
    torch::Tensor none = register_parameter("none", torch::Tensor());
  };
  struct Net : torch::nn::Module {
    torch::nn::Sequential layers =
        register_module("layers", torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::ReLU()));
    std::shared_ptr<Inner> inner = register_module("inner", std::make_shared<Inner>());
    torch::Tensor bias = register_parameter("bias", torch::ones(4));
  };
  const auto net = std::make_shared<Net>();
  const torch::NoGradGuard no_grad;
  const Exported exported(
      [&](const torch::Tensor& x) {
        return (net->layers->forward(x) * net->inner->scale + net->bias).masked_fill(net->inner->mask, 0);
      },
      rows(), *net);
  torch::jit::Module module = torch::jit::load(exported.path());
  std::vector<std::string> trained;
  std::vector<std::string> frozen;
  for (const auto& parameter : module.named_parameters())
    (parameter.value.requires_grad() ? trained : frozen).push_back(parameter.name);
  EXPECT_THAT(trained,
              testing::UnorderedElementsAre("bias", "layers.0.weight", "layers.0.bias", "inner.a scale"));
  EXPECT_THAT(frozen, ElementsAre("inner.frozen"));
  std::vector<std::string> buffers;
  for (const auto& buffer : module.named_buffers()) buffers.push_back(buffer.name);
  EXPECT_THAT(buffers, ElementsAre("inner.mask"));
  module.train();
  module.eval();
  EXPECT_FALSE(module.is_training());
}

TEST(Trace, refuses_names_that_torchscript_uses_itself) {
  struct Net : torch::nn::Module {
    torch::Tensor training = register_parameter("training", torch::ones(4));
  };
  const auto net = std::make_shared<Net>();
  expect_error(ErrorKind::InvalidArgument, HasSubstr("'training'"), [&] {
    const Exported exported([&](const torch::Tensor& x) { return x * net->training; }, rows(), *net);
  });
}

// A device of the trace would stay in the program when the model is moved. The meta device stands for a GPU.
TEST(Trace, works_on_another_device) {
  torch::nn::Linear linear(4, 4);
  const torch::NoGradGuard no_grad;
  const Exported exported(
      [&](const torch::Tensor& x) {
        return linear->forward(x) + torch::arange(x.size(0), x.options()).unsqueeze(1) +
               torch::ones({4}, torch::kCPU);
      },
      rows(), *linear);
  torch::jit::Module module = torch::jit::load(exported.path(), torch::Device("meta"));
  const torch::Tensor result = module.forward({rows().to(torch::Device("meta"))}).toTensor();
  EXPECT_TRUE(result.device().is_meta());
  EXPECT_EQ(result.sizes(), (std::vector<int64_t>{6, 4}));
}

TEST(Trace, of_a_function_without_parameters_works_on_another_device) {
  const torch::NoGradGuard no_grad;
  const Exported exported([](const torch::Tensor& x) { return x + torch::ones({4}, x.options()); }, rows());
  torch::jit::Module module = torch::jit::load(exported.path());
  EXPECT_TRUE(module.forward({rows().to(torch::Device("meta"))}).toTensor().device().is_meta());
}

// Only the tensors themselves are written, and not the long vectors that a Trainer keeps them in.
TEST(Trace, writes_views_of_a_vector_as_tensors_of_their_own) {
  const auto net = test_net();
  const Parameters parameters(*net, {.allocate = {}, .layout = Layout::ChannelsLast});
  net->eval();
  const Exported exported([&](const torch::Tensor& x) { return net->forward(x); },
                          test_feed().read(std::vector<int64_t>{0, 1, 2, 3, 4, 5})["image"], *net);
  for (const auto& [name, tensor] : exported.loaded().tensors()) {
    EXPECT_EQ(tensor.storage().nbytes(), tensor.nbytes()) << name;
    EXPECT_EQ(tensor.storage_offset(), 0) << name;
  }
}

TEST(Trace, writes_an_error_of_the_disk_as_an_error) {
  const Computation computation{
      .parameters = {},
      .buffers = {},
      .functions = {{.arguments = {"x"},
                     .body = [](const auto& inputs) { return Computation::Tensors{inputs[0] + 1}; },
                     .sizes = {{.name = "examples", .places = {{0, 0}}}},
                     .examples = {{rows().narrow(0, 0, 6)}, {rows().narrow(0, 0, 4)}}}}};
  expect_error(ErrorKind::InvalidArgument, HasSubstr("No such file"),
               [&] { TorchScriptFormat().write(computation, "/nowhere"); });
}

TEST(Trace, says_that_a_file_is_not_a_model) {
  const TestFolder folder;
  expect_error(ErrorKind::DataLoss, HasSubstr("model.pt"),
               [&] { TorchScriptFormat().load(folder.path(), torch::kCPU); });
  folder.write("model.pt", "nothing");
  expect_error(ErrorKind::DataLoss, HasSubstr("model.pt"),
               [&] { TorchScriptFormat().load(folder.path(), torch::kCPU); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("torchscript"), [] { export_format("onnx"); });
}

// --- Embeddings

// Looks up ids in a table of five rows, as its forward() does and as an exported model does.
struct LookUps {
  explicit LookUps(embedding::BadIds bad_ids, bool padded = false)
      : table(5, 2, {.bad_ids = bad_ids}, padded), weight(torch::arange(10.0F).view({5, 2})) {}

  torch::Tensor own(const torch::Tensor& ids) { return table.look_up(ids, weight); }
  torch::Tensor exported(const torch::Tensor& ids) { return table.look_up_by_operators(weight, ids); }

  embedding::Table table;
  torch::Tensor weight;
};

torch::Tensor ids(std::vector<double> numbers, torch::ScalarType type = torch::kLong) {
  return torch::tensor(numbers, torch::kDouble).to(type);
}

TEST(TracedLookUp, is_that_of_the_table_for_all_good_ids) {
  using embedding::BadIds;
  for (const BadIds bad_ids : {BadIds::Error, BadIds::Clamp, BadIds::Drop}) {
    for (const bool padded : {false, true}) {
      LookUps both(bad_ids, padded);
      for (const auto type : {torch::kLong, torch::kInt, torch::kShort, torch::kFloat, torch::kDouble}) {
        expect_same(both.exported(ids({0, 4, 2, 2}, type)), both.own(ids({0, 4, 2, 2}, type)));
        expect_same(both.exported(ids({1, 3}, type).view({1, 2})), both.own(ids({1, 3}, type).view({1, 2})));
        expect_same(both.exported(ids({}, type)), both.own(ids({}, type)));
      }
    }
  }
}

TEST(TracedLookUp, treats_bad_ids_like_the_table) {
  using embedding::BadIds;
  const torch::Tensor bad = ids({-1, -7, 5, 1e12, 3});
  for (const bool padded : {false, true}) {
    for (const BadIds bad_ids : {BadIds::Clamp, BadIds::Drop}) {
      LookUps both(bad_ids, padded);
      expect_same(both.exported(bad), both.own(bad));
      expect_same(both.exported(bad.to(torch::kDouble)), both.own(bad.to(torch::kDouble)));
    }
    LookUps strict(BadIds::Error, padded);
    for (const double id : {-7.0, 5.0, 1e12}) {
      EXPECT_THROW(strict.own(ids({id})), Error) << id;
      EXPECT_ANY_THROW(strict.exported(ids({id}))) << id;
    }
  }
  LookUps padded(BadIds::Error, true);
  expect_same(padded.exported(ids({-1, 2})), padded.own(ids({-1, 2})));
  EXPECT_ANY_THROW(LookUps(BadIds::Error).exported(ids({-1})));
}

TEST(TracedLookUp, refuses_numbers_that_are_not_ids) {
  using embedding::BadIds;
  for (const BadIds bad_ids : {BadIds::Error, BadIds::Clamp, BadIds::Drop}) {
    LookUps both(bad_ids);
    for (const double id : {0.5, -0.5, 1e8, std::nan(""), std::numeric_limits<double>::infinity()}) {
      EXPECT_THROW(both.own(ids({id}, torch::kFloat)), Error) << id;
      EXPECT_ANY_THROW(both.exported(ids({id}, torch::kFloat))) << id;
    }
  }
}

TEST(TracedLookUp, pools_lists_of_any_length_and_empty_ones) {
  for (const nn::Pooling pooling : {nn::Pooling::Sum, nn::Pooling::Mean, nn::Pooling::Max}) {
    nn::EmbeddingBag bag(5, 3, pooling);
    const torch::NoGradGuard no_grad;
    bag->table()->look_up_by([&](const torch::Tensor& of, const auto&) {
      return bag->table()->look_up_by_operators(bag->weight, of);
    });
    torch::Tensor lists =
        torch::tensor({{1, 2, -1}, {-1, -1, -1}, {4, 4, 4}, {0, -1, 3}, {3, 1, 0}, {2, 2, -1}});
    const Exported exported([&](const torch::Tensor& x) { return bag->forward(x); }, lists, *bag);
    bag->table()->look_up_by({});
    for (const torch::Tensor& other :
         {lists, lists.narrow(1, 0, 1), lists.narrow(1, 0, 0), lists.narrow(0, 1, 1), lists.narrow(0, 0, 0)})
      expect_same(exported(other), bag->forward(other));
  }
}

}  // namespace
}  // namespace tutti::trace_test

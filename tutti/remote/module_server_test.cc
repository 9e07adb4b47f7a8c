// Tests the module service without a network, with valid and invalid messages.
#include <thread>

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tutti/base/test_errors.h"
#include "tutti/params/random_scope.h"
#include "tutti/ps/test_messages.h"
#include "tutti/ps/wire.h"
#include "tutti/remote/module_service.h"

namespace tutti::ps {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Tensors = std::vector<torch::Tensor>;

rpc::Message attach(const std::string& name, int64_t patience = 10000) {
  return {{{"module", name}, {"patience", patience}}, {}};
}

rpc::Message forward(const torch::Tensor& input, bool graph = true) {
  rpc::Message message;
  message.head = {{"graph", graph}, {"training", true}, {"autocast", ""}};
  message.head["gradients"] = std::vector<bool>{true};
  message.head["random"] = pack({generator_states(torch::kCPU).front()}, message.pieces);
  message.head["inputs"] = pack({input}, message.pieces);
  return message;
}

rpc::Message backward(int64_t of, const torch::Tensor& gradient, bool retain = false) {
  rpc::Message message;
  message.head = {{"of", of}, {"retain", retain}, {"parameters", true}};
  message.head["wanted"] = std::vector<bool>{true};
  message.head["gradients"] = pack({gradient}, message.pieces);
  return message;
}

torch::Tensor first(const rpc::Message& message, const char* name) {
  Reader reader(message);
  return unpack(message.head.at(name), reader).at(0);
}

class ModuleServiceOf : public ::testing::Test {
 protected:
  explicit ModuleServiceOf(const GraphLimits& limits = {}) : service_({"worker/1", {}}, limits) {
    service_.add("tail", make_served(tail_), torch::optim::SGDOptions(1.0));
  }
  void attach_all(std::initializer_list<uint64_t> ids) {
    service_.open();
    for (const uint64_t id : ids) call(id, "attach", attach("tail"));
  }
  rpc::Message call(uint64_t id, const char* method, const rpc::Message& request = {}) {
    return service_.serve(caller(id), method, request);
  }
  int64_t forward_of(uint64_t id) {
    return call(id, "forward", forward(torch::ones({2, 3}))).head.at("of").get<int64_t>();
  }

  torch::nn::Linear tail_{3, 1};
  ModuleService service_;
};

TEST_F(ModuleServiceOf, computes_what_the_module_does) {
  attach_all({0});
  const torch::Tensor x = torch::randn({2, 3});
  const rpc::Message answer = call(0, "forward", forward(x));
  EXPECT_TRUE(torch::equal(first(answer, "outputs"), tail_->forward(x).detach()));
  const rpc::Message back = call(0, "backward", backward(answer.head.at("of"), torch::ones({2, 1})));
  EXPECT_TRUE(torch::equal(first(back, "gradients"), tail_->weight.detach().expand({2, 3})));
  EXPECT_TRUE(torch::equal(tail_->weight.grad(), x.sum(0, true)));
  EXPECT_EQ(service_.graphs(), 0);
  const torch::Tensor before = tail_->bias.detach().clone();
  call(0, "step");
  EXPECT_TRUE(torch::equal(tail_->bias.detach(), before - 2));
}

TEST_F(ModuleServiceOf, keeps_a_graph_until_its_backward_and_longer_where_told_so) {
  attach_all({0});
  const int64_t id = forward_of(0);
  EXPECT_EQ(service_.graphs(), 1);
  EXPECT_GE(service_.graph_bytes(), 6 * 4);
  for (const bool retain : {true, false}) call(0, "backward", backward(id, torch::ones({2, 1}), retain));
  EXPECT_EQ(service_.graphs(), 0);
  EXPECT_EQ(service_.graph_bytes(), 0);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("worker/1: backward: this client has no forward"), [&] {
    call(0, "backward", backward(id, torch::ones({2, 1})));
  });
}

TEST_F(ModuleServiceOf, keeps_no_graph_where_none_is_wanted) {
  attach_all({0});
  const rpc::Message answer = call(0, "forward", forward(torch::ones({2, 3}), false));
  EXPECT_FALSE(answer.head.contains("of"));
  EXPECT_EQ(service_.graphs(), 0);
}

TEST_F(ModuleServiceOf, forgets_graphs_when_told_and_when_their_client_leaves) {
  attach_all({0, 1});
  const int64_t mine = forward_of(0);
  const int64_t theirs = forward_of(1);
  rpc::Message request;
  request.head["forget"] = {mine, theirs, 4711};
  call(0, "zero_grad", request);
  EXPECT_EQ(service_.graphs(), 1) << "that of somebody else stays";
  expect_error(ErrorKind::InvalidArgument, HasSubstr("this client has no"), [&] {
    call(0, "backward", backward(theirs, torch::ones({2, 1})));
  });
  service_.gone(caller(1));
  EXPECT_EQ(service_.graphs(), 0);
  EXPECT_EQ(service_.graph_bytes(), 0);
}

class ModuleServiceOfTwoGraphs : public ModuleServiceOf {
 protected:
  ModuleServiceOfTwoGraphs() : ModuleServiceOf({.graphs = 2, .bytes = 10000}) {}
};

TEST_F(ModuleServiceOfTwoGraphs, refuses_to_keep_more) {
  attach_all({0});
  const int64_t id = forward_of(0);
  expect_error(ErrorKind::Overloaded, HasSubstr("KiB"), [&] {
    call(0, "forward", forward(torch::ones({2000, 3})));
  });
  forward_of(0);
  expect_error(ErrorKind::Overloaded, HasSubstr("2 forward passes are waiting for their backward"),
               [&] { forward_of(0); });
  call(0, "forward", forward(torch::ones({2, 3}), false));
  call(0, "backward", backward(id, torch::ones({2, 1})));
  forward_of(0);
}

TEST_F(ModuleServiceOf, is_attached_to_by_name_once_all_modules_are_there) {
  expect_error(ErrorKind::Timeout, HasSubstr("has not added its modules"),
               [&] { call(0, "attach", attach("tail", 1)); });
  std::thread early([&] { call(0, "attach", attach("tail")); });
  service_.open();
  early.join();
  expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("worker/1"), HasSubstr("did you mean 'tail'?")),
               [&] { call(1, "attach", attach("tial")); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("worker/1 (host here, pid 101) has not attached"),
               [&] { call(1, "step"); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("does not support this request"),
               [&] { call(0, "dance"); });
}

TEST_F(ModuleServiceOf, wakes_who_waits_to_attach_when_it_leaves) {
  std::thread waiting([&] { EXPECT_THROW(call(0, "attach", attach("tail", 3600000)), Error); });
  // gone() may come before or during the wait in attach.
  while (service_.callers() == 0) {
  }
  service_.gone(caller(0));
  waiting.join();
}

TEST_F(ModuleServiceOf, takes_each_name_once_and_nothing_when_it_is_open) {
  const auto options = torch::optim::SGDOptions(1.0);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("already"),
               [&] { service_.add("tail", make_served(tail_), options); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("a forward function"), [&] {
    service_.add("other", {tail_.ptr(), {}}, options);
  });
  service_.open();
  expect_error(ErrorKind::InvalidArgument, HasSubstr("too late"),
               [&] { service_.add("late", make_served(torch::nn::Linear(1, 1)), options); });
}

TEST_F(ModuleServiceOf, says_what_the_module_says_of_wrong_shapes) {
  attach_all({0});
  expect_error(ErrorKind::InvalidArgument,
               AllOf(HasSubstr("worker/1: forward"), HasSubstr("mat1"), ::testing::Not(HasSubstr("\n"))),
               [&] {
                 call(0, "forward", forward(torch::ones({2, 4})));
               });
  EXPECT_EQ(service_.graphs(), 0);
  const int64_t id = forward_of(0);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("worker/1: backward"), [&] {
    call(0, "backward", backward(id, torch::ones({7, 1})));
  });
}

// Each missing or replaced field gives an error, and the service goes on.
TEST_F(ModuleServiceOf, refuses_messages_that_make_no_sense) {
  attach_all({0});
  const std::vector<Json> nonsense = {
      nullptr, -1, int64_t{1} << 60, "text", Json::array({1, 2}), Json::array({Json::object()}), 1.5};
  const auto worry = [&](const char* method, const rpc::Message& right) {
    for (const auto& [name, value] : right.head.items()) {
      for (const Json& other : nonsense) {
        rpc::Message wrong = right;
        wrong.head[name] = other;
        EXPECT_THROW(call(0, method, wrong), Error) << method << ": " << name << " " << other;
      }
    }
    rpc::Message short_of_a_piece = right;
    short_of_a_piece.pieces.pop_back();
    EXPECT_THROW(call(0, method, short_of_a_piece), Error) << method;
    rpc::Message one_too_many = right;
    one_too_many.pieces.push_back(right.pieces.back());
    EXPECT_THROW(call(0, method, one_too_many), Error) << method;
    EXPECT_THROW(call(0, method, {}), Error) << method;
  };
  const torch::Tensor own = generator_states(torch::kCPU).front();
  worry("forward", forward(torch::ones({2, 3})));
  rpc::Message garbage = forward(torch::ones({2, 3}));
  garbage.pieces[0] = piece_of(torch::zeros_like(own));
  expect_error(ErrorKind::InvalidArgument, HasSubstr("generator"), [&] { call(0, "forward", garbage); });
  EXPECT_TRUE(torch::equal(generator_states(torch::kCPU).front(), own));
  const int64_t id = forward_of(0);
  worry("backward", backward(id, torch::ones({2, 1}), true));
  worry("load", call(0, "state"));
  for (const Json& other : nonsense) {
    if (other.is_array()) continue;
    rpc::Message wrong;
    wrong.head["forget"] = other;
    EXPECT_THROW(call(0, "step", wrong), Error) << other;
  }
  forward_of(0);
}

TEST_F(ModuleServiceOf, refuses_tensors_that_reach_beyond_their_bytes) {
  attach_all({0});
  for (const auto& [shape, strides] : std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>>{
           {{2, 3}, {4, 1}},
           {{2, 3}, {3}},
           {{-2, -3}, {3, 1}},
           {{2, 3}, {-3, 1}},
           {{2, 3}, {int64_t{1} << 62, 1}},
           {{int64_t{1} << 40, int64_t{1} << 40}, {1, 1}}}) {
    rpc::Message wrong = forward(torch::ones({2, 3}));
    wrong.head["inputs"][0]["shape"] = shape;
    wrong.head["inputs"][0]["strides"] = strides;
    expect_error(ErrorKind::InvalidArgument, HasSubstr("a tensor of shape"),
                 [&] { call(0, "forward", wrong); });
  }
}

TEST_F(ModuleServiceOf, is_done_when_all_have_left_after_the_end) {
  attach_all({0, 1});
  call(0, "end");
  std::thread waiting([&] { service_.await_end(std::chrono::hours(1), Log(LogLevel::Off)); });
  for (const uint64_t id : {0, 1}) service_.gone(caller(id));
  waiting.join();
}

TEST_F(ModuleServiceOf, names_who_has_left_without_a_word) {
  constexpr std::chrono::milliseconds kShort{1};
  expect_error(ErrorKind::Timeout, HasSubstr("a client of the modules of"),
               [&] { service_.await_end(kShort, Log(LogLevel::Off)); });
  attach_all({3});
  service_.gone(caller(3));
  expect_error(ErrorKind::PeerLost, HasSubstr("worker/3 (host here, pid 103) has left without end()"),
               [&] { service_.await_end(kShort, Log(LogLevel::Off)); });
}

TEST(Pack, keeps_shape_type_and_order_in_memory) {
  const torch::Tensor image = torch::randn({2, 3, 4, 5}).contiguous(torch::MemoryFormat::ChannelsLast);
  const Tensors sent = {image,
                        image.narrow(3, 1, 2),
                        torch::randn({3, 2}).t(),
                        torch::ones({2, 1}).expand({2, 3}),
                        torch::tensor(3.5, torch::kFloat64),
                        torch::zeros({0, 3}),
                        torch::tensor({true, false}),
                        {},
                        torch::ones({2}, torch::kBFloat16)};
  rpc::Message message;
  message.head["all"] = pack(sent, message.pieces);
  Reader reader(message);
  const Tensors received = unpack(message.head.at("all"), reader);
  reader.end();
  ASSERT_EQ(received.size(), sent.size());
  for (size_t i = 0; i < sent.size(); ++i) {
    ASSERT_EQ(received[i].defined(), sent[i].defined());
    if (!sent[i].defined()) continue;
    EXPECT_EQ(received[i].scalar_type(), sent[i].scalar_type());
    EXPECT_TRUE(torch::equal(received[i], sent[i])) << i;
    if (sent[i].is_non_overlapping_and_dense()) {
      EXPECT_EQ(received[i].strides(), sent[i].strides()) << i;
    }
    EXPECT_NE(received[i].data_ptr(), sent[i].numel() > 0 ? sent[i].data_ptr() : this);
  }
  const torch::Tensor sparse = torch::ones({2, 2}).to_sparse();
  expect_error(ErrorKind::InvalidArgument, HasSubstr("sparse"), [&] { pack({sparse}, message.pieces); });
}

}  // namespace
}  // namespace tutti::ps

// Tests synchronous steps over a network whose gradients are larger than the server's memory for requests.
#include <array>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tutti/base/test_errors.h"
#include "tutti/ps/service.h"
#include "tutti/ps/test_push.h"
#include "tutti/rpc/channel.h"
#include "tutti/rpc/handshake.h"
#include "tutti/rpc/host.h"
#include "tutti/rpc/test_service.h"
#include "tutti/rpc/wire.h"

namespace tutti::ps {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Bytes = std::vector<std::vector<std::byte>>;

constexpr size_t kSegments = 24;
constexpr int64_t kElements = static_cast<int64_t>(kSegments * Segment::kMost / sizeof(float)) - 100;
// Enough for what four workers may be ahead, but not for the gradients of two.
constexpr size_t kMemory = 40 * Segment::kMost;

rpc::Clock::time_point eventually() { return rpc::Clock::now() + kEventually; }

class LargePush : public ::testing::Test {
 protected:
  rpc::Message call(int worker, const char* method, const rpc::Message& request) {
    auto& channel = channels_[static_cast<size_t>(worker)];
    if (!channel) channel = std::make_unique<rpc::Channel>(address_, options_of(worker));
    return channel->call(method, request, {.timeout = kEventually});
  }
  static rpc::ChannelOptions options_of(int worker) {
    return {.hello = {{"task", "worker/" + std::to_string(worker)}, {"host", "here"}, {"pid", 100 + worker}}};
  }
  std::future<Bytes> push(int worker, const rpc::Message& message) {
    return std::async(std::launch::async,
                      [this, worker, message] { return bytes_in(call(worker, "push", message)); });
  }
  void start(const Contributions& contributions, int workers) {
    call(0, "begin", contributions.begin());
    for (int rank = 0; rank < workers; ++rank) call(rank, "join", join(rank));
  }
  // Returns what the workers get if the messages need no network.
  static Bytes expected(const Contributions& contributions, int workers) {
    Service service{Log(LogLevel::Off)};
    service.serve(caller(0), "begin", contributions.begin());
    std::vector<std::future<Bytes>> answers;
    for (int rank = 0; rank < workers; ++rank) {
      const auto id = static_cast<uint64_t>(rank);
      service.serve(caller(id), "join", join(rank));
      answers.push_back(std::async(std::launch::async, [&, id, rank] {
        return bytes_in(service.serve(caller(id), "push", contributions.push(rank)));
      }));
    }
    for (size_t i = 1; i < answers.size(); ++i) answers[i].wait();
    return answers[0].get();
  }

  Service service_{Log(LogLevel::Off), {.shared = std::make_shared<SharedByGroups>(kMemory)}};
  const rpc::Host host_{{.memory = kMemory}, service_};
  const std::string address_ = "127.0.0.1:" + std::to_string(host_.port());
  std::array<std::unique_ptr<rpc::Channel>, 8> channels_;
};

// A worker that has joined and can send any part of a request.
class PartialWorker {
 public:
  PartialWorker(const std::string& address, int rank) : stream_(rpc::candidate_of(address)), wire_(*stream_) {
    rpc::greet_host(wire_, "", {{"task", "another"}, {"host", "here"}, {"pid", 200 + rank}}, nullptr,
                    {.deadline = eventually()});
    send("join", join(rank), 0);
    wire_.receive({}, {}, {.deadline = eventually()}, {.deadline = eventually()});
    wire_.finish();
  }
  // Sends the request with these first pieces, and of the next one a half.
  void send(const char* method, const rpc::Message& request, size_t pieces) {
    rpc::Frame frame;
    frame.method = method;
    frame.head = rpc::encode_json(request.head);
    std::vector<rpc::ConstBytes> following;
    for (size_t i = 0; i < request.pieces.size(); ++i) {
      const auto bytes = request.pieces[i].bytes;
      frame.pieces.push_back({bytes.size()});
      if (i < pieces) following.push_back(bytes);
      if (i == pieces) following.push_back(bytes.first(bytes.size() / 2));
    }
    wire_.send(frame, following, {.deadline = eventually()});
  }

 private:
  std::unique_ptr<rpc::Stream> stream_;
  rpc::Wire wire_;
};

TEST_F(LargePush, of_four_workers_has_the_bits_of_small_messages) {
  const Contributions contributions(4, 6, kElements);
  start(contributions, 4);
  std::vector<std::future<Bytes>> answers;
  for (int rank = 3; rank >= 0; --rank) answers.push_back(push(rank, contributions.push(rank)));
  const Bytes wanted = expected(contributions, 4);
  for (auto& answer : answers) EXPECT_EQ(answer.get(), wanted);
}

TEST_F(LargePush, goes_on_with_a_worker_that_replaces_a_lost_one) {
  const Contributions contributions(3, 3, kElements);
  const Bytes wanted = expected(contributions, 3);
  for (const size_t pieces : {size_t{0}, size_t{1}, size_t{3}, kSegments / 2, kSegments + 1}) {
    call(0, "begin", contributions.begin());
    for (const int rank : {0, 1}) call(rank, "join", join(rank));
    auto lost = std::make_unique<PartialWorker>(address_, 2);
    std::vector<std::future<Bytes>> answers;
    for (const int rank : {0, 1}) answers.push_back(push(rank, contributions.push(rank)));
    lost->send("push", contributions.push(2), pieces);
    lost.reset();
    call(2, "join", join(2));
    answers.push_back(push(2, contributions.push(2)));
    for (auto& answer : answers) EXPECT_EQ(answer.get(), wanted);
    channels_[2].reset();
  }
}

TEST_F(LargePush, names_the_worker_that_stopped_in_the_middle_and_not_the_one_that_waits_for_it) {
  const Contributions contributions(2, 2, kElements);
  start(contributions, 1);
  PartialWorker stopped(address_, 1);
  stopped.send("push", contributions.push(1), 5);
  rpc::Message message = contributions.push(0);
  message.head["patience"] = 500;
  expect_error(ErrorKind::Timeout,
               AllOf(HasSubstr("no gradients for step 0 from another"), Not(HasSubstr("worker/"))),
               [&] { call(0, "push", message); });
  EXPECT_TRUE(channels_[0]->is_connected());
}

TEST_F(LargePush, of_inconsistent_workers_is_refused_and_may_be_repeated) {
  const Contributions contributions(2, 2, kElements);
  start(contributions, 2);
  const auto other = [&] {
    rpc::Message message = contributions.push(1);
    const torch::Tensor control_word = Reader(message).take_tensor(
        static_cast<int64_t>(message.pieces[0].bytes.size() / sizeof(double)), torch::kDouble);
    const torch::Tensor changed = control_word.clone();
    changed.masked_fill_(changed == 1.0, 0.75);  // the learning rate among others
    message.pieces[0] = piece_of(changed);
    return message;
  };
  auto first = std::async(std::launch::async, [&] {
    expect_error(ErrorKind::InvalidArgument, HasSubstr("different learning rates"),
                 [&] { call(0, "push", contributions.push(0)); });
  });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("different learning rates"),
               [&] { call(1, "push", other()); });
  first.get();
  auto again = push(0, contributions.push(0));
  const Bytes answer = push(1, contributions.push(1)).get();
  EXPECT_EQ(again.get(), answer);
}

// The gradients of the rows of one worker fit into the memory, but not those of two.
TEST_F(LargePush, of_more_rows_than_fit_is_refused_at_once_and_may_be_repeated) {
  const Contributions contributions(2, 2, kElements);
  start(contributions, 2);
  const auto with_rows = [&](int rank, size_t megabytes) {
    rpc::Message message = contributions.push(rank);
    const torch::Tensor heads = torch::zeros({1}, torch::kLong);
    const torch::Tensor numbers = torch::zeros({static_cast<int64_t>(megabytes) << 18});
    message.head["rows"] = {{"heads", heads.numel()}, {"numbers", {numbers.numel()}}};
    append(message, {heads, numbers});
    return message;
  };
  const auto expect_refusal = [&](int rank) {
    expect_error(ErrorKind::Overloaded, HasSubstr("not enough memory for the gradients of embedding rows"),
                 [&] { call(rank, "push", with_rows(rank, 24)); });
  };
  auto other = std::async(std::launch::async, [&] { expect_refusal(0); });
  expect_refusal(1);
  other.get();
  // The connection of a worker that had still much to send was closed.
  for (const int rank : {0, 1}) call(rank, "join", join(rank));
  auto again = push(0, with_rows(0, 4));
  const Bytes answer = push(1, with_rows(1, 4)).get();
  EXPECT_EQ(again.get(), answer);
}

TEST_F(LargePush, of_a_wrong_form_is_refused_and_hurts_nobody) {
  const Contributions contributions(2, 2, kElements);
  start(contributions, 2);
  const rpc::Message good = contributions.push(1);
  for (const size_t piece : {size_t{0}, size_t{1}, kSegments, good.pieces.size() - 1}) {
    rpc::Message shorter = good;
    shorter.pieces[piece].bytes = shorter.pieces[piece].bytes.subspan(8);
    rpc::Message fewer = good;
    fewer.pieces.resize(piece);
    for (const rpc::Message& bad : {shorter, fewer})
      expect_error(ErrorKind::InvalidArgument, HasSubstr("the message"), [&] {
        auto other = push(0, contributions.push(0));
        std::exception_ptr error;
        try {
          call(1, "push", bad);
        } catch (const Error&) {
          error = std::current_exception();
        }
        EXPECT_NO_THROW(call(1, "push", good));
        EXPECT_NO_THROW(other.get());
        call(0, "begin", contributions.begin());
        for (int rank = 0; rank < 2; ++rank) call(rank, "join", join(rank));
        if (error) std::rethrow_exception(error);
      });
  }
}

}  // namespace
}  // namespace tutti::ps

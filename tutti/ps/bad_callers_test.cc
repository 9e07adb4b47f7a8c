// Hostile input to a server over the network: garbage, other protocols, truncated calls, malformed frames and
// messages, and callers that never read. The server answers with an error or closes the connection, does not
// grow, and serves the next caller.
#include <fstream>
#include <future>
#include <poll.h>
#include <random>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include "tutti/base/error.h"
#include "tutti/ps/service.h"
#include "tutti/ps/test_messages.h"
#include "tutti/rpc/channel.h"
#include "tutti/rpc/frame.h"
#include "tutti/rpc/host.h"
#include "tutti/rpc/test_raw_socket.h"
#include "tutti/rpc/test_service.h"
#include "tutti/rpc/wire.h"

namespace tutti::ps {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMiB = size_t{1} << 20;
constexpr uint32_t kSeed = 20240607;

size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  size_t all = 0;
  size_t resident = 0;
  statm >> all >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// Relays the bytes between a caller and a host, and records those of the caller.
class Recorder {
 public:
  explicit Recorder(int host) : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener_.get(), generic, size), 0);
    EXPECT_EQ(listen(listener_.get(), 1), 0);
    EXPECT_EQ(getsockname(listener_.get(), generic, &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, host] { pass_on(host); });
  }
  ~Recorder() {
    if (thread_.joinable()) thread_.join();
  }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  int port() const { return port_; }
  // Waits until the caller has closed the connection.
  std::string recorded() {
    thread_.join();
    return recorded_;
  }

 private:
  void pass_on(int host) {
    const rpc::RawSocket caller(FileDescriptor(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
    const rpc::RawSocket to_host(host);
    while (true) {
      std::array<pollfd, 2> events = {{{caller.descriptor(), POLLIN, 0}, {to_host.descriptor(), POLLIN, 0}}};
      poll(events.data(), events.size(), static_cast<int>(milliseconds(kEventually).count()));
      if (events[0].revents != 0) {
        const std::string bytes = caller.hear();
        if (bytes.empty()) return;
        recorded_ += bytes;
        to_host.say(bytes);
      } else {
        const std::string bytes = to_host.hear();
        if (bytes.empty()) return;
        caller.say(bytes);
      }
    }
  }

  const FileDescriptor listener_;
  int port_ = 0;
  std::string recorded_;
  std::thread thread_;
};

class BadCallers : public ::testing::Test {
 protected:
  // Checks that a good caller is still served, and that memory has not grown.
  ~BadCallers() override {
    rpc::Channel channel(address_);
    EXPECT_NO_THROW({
      channel.call("begin", begin("ps-async", 1));
      channel.call("join", join(0));
      EXPECT_TRUE(torch::equal(values_in(channel.call("push", push(0.25))), torch::full({kSize}, 0.75)));
    });
    EXPECT_LT(resident_bytes(), resident_before_ + 256 * kMiB);
  }

  // Valid messages, each with its method.
  static std::vector<std::pair<std::string, rpc::Message>> good_messages() {
    Json with_step = with_short_patience();
    with_step["step"] = 0;
    Json scale = with_step;
    scale["factor"] = 0.5;
    Json progress = with_short_patience();
    progress["progress"] = {{"fit", 0}};
    Json fits = with_short_patience();
    fits["fits"] = 0;
    Json snapshot = with_step;
    snapshot["pushes"] = {{0, 0}};
    Json write = with_step;
    write.update({{"mark", "/tmp/shared-by-nobody"}, {"name", "part"}, {"tensors", Json::array()}});
    Json key = with_short_patience();
    key["key"] = "k";
    rpc::Message sync = push_of_step(0, 0.5);
    sync.head.update({{"patience", 1}, {"expected", 1}, {"scaled", false}, {"rate", 0.5}});
    rpc::Message async = push(0.25);
    async.head.update({{"patience", 1}, {"examples", 3}, {"end", 1000}, {"rate", 0.5}});
    return {{"state", {}},
            {"begin", begin("ps-sync", 1)},
            {"begin", begin("ps-async", 1, 0)},
            {"join", join(0)},
            {"pull", {with_short_patience(), {}}},
            {"pull", {with_step, {}}},
            {"push", sync},
            {"push", async},
            {"scale", {scale, {}}},
            {"enter", {with_step, {}}},
            {"go_on", {with_short_patience(), {}}},
            {"hold", {with_short_patience(), {}}},
            {"release", {with_short_patience(), {}}},
            {"snapshot", {snapshot, {}}},
            {"shares", {write, {}}},
            {"write", {write, {}}},
            {"note", {{{"key", "k"}, {"value", {1, 2}}}, {}}},
            {"read", {key, {}}},
            {"progress", {progress, {}}},
            {"finish", {fits, {}}},
            {"await_finish", {fits, {}}},
            {"leave", {}},
            {"end", {}},
            {"dance", {}}};
  }
  // The outline of a buffer.
  static Json outline(int64_t elements, int64_t stride) {
    return Json::array({{{"name", ""}, {"type", "float32"}, {"shape", {elements}}, {"strides", {stride}}}});
  }
  static Json with_short_patience() { return {{"run", "r"}, {"patience", 1}}; }

  // Calls a method of a run that has begun. Accepts an answer, or an error that states a reason.
  void say(rpc::Channel& channel, const std::string& method, const rpc::Message& message) {
    try {
      channel.call(method, message, {.timeout = kEventually});
    } catch (const Error& error) {
      EXPECT_NE(error.kind(), ErrorKind::Bug) << method << " " << message.head << ": " << error.what();
      EXPECT_EQ(std::string(error.what()).find("no answer to"), std::string::npos)
          << method << " " << message.head << ": " << error.what();
    }
    ++cases_;
  }
  void begin_anew(rpc::Channel& channel, const char* strategy) {
    channel.call("begin", begin(strategy, 1));
    channel.call("join", join(0));
  }
  std::unique_ptr<rpc::Stream> acquaintance() const { return rpc::acquaintance_of(address_); }

  std::mt19937 random_{kSeed};  // NOLINT(bugprone-random-generator-seed): reproducible
  int cases_ = 0;
  Service service_{Log(LogLevel::Off)};
  const rpc::Host host_{{.memory = 64 * kMiB}, service_};
  const std::string address_ = "127.0.0.1:" + std::to_string(host_.port());
  const size_t resident_before_ = resident_bytes();
};

// Omits every field of every head in turn, and replaces it by every kind of invalid value.
TEST_F(BadCallers, with_heads_that_make_no_sense) {
  const std::vector<Json> nonsense = {nullptr,
                                      true,
                                      -1,
                                      0,
                                      1.5,
                                      int64_t{1} << 40,
                                      int64_t{1} << 60,
                                      std::numeric_limits<int64_t>::max(),
                                      std::numeric_limits<int64_t>::min(),
                                      std::numeric_limits<uint64_t>::max(),
                                      1e300,
                                      "",
                                      "text",
                                      std::string(100000, 'x'),
                                      Json::array(),
                                      Json::array({1, nullptr}),
                                      Json::array({Json::array({Json::object()})}),
                                      Json::object(),
                                      Json({{"size", int64_t{1} << 60}, {"type", "float32"}}),
                                      Json::array({{{"size", int64_t{1} << 60}, {"type", "float32"}}}),
                                      Json::array({{{"size", -5}, {"type", "nothing"}}}),
                                      outline(int64_t{1} << 60, 1),
                                      outline(int64_t{1} << 40, 1),
                                      outline(-5, 1),
                                      outline(5, 7),
                                      Json::array({{{"name", "x"}, {"type", nullptr}}})};
  rpc::Channel channel(address_);
  for (const char* strategy : {"ps-async", "ps-sync"}) {
    for (const auto& [method, good] : good_messages()) {
      begin_anew(channel, strategy);
      std::vector<std::string> names = {"one too many"};
      for (const auto& [name, value] : good.head.items()) names.push_back(name);
      for (const std::string& name : names) {
        for (const Json& other : nonsense) {
          rpc::Message wrong = good;
          wrong.head[name] = other;
          say(channel, method, wrong);
        }
        rpc::Message without = good;
        without.head.erase(name);
        say(channel, method, without);
      }
      for (const Json& other : nonsense) say(channel, method, {other, good.pieces});
    }
  }
  EXPECT_GT(cases_, 2000);
}

TEST_F(BadCallers, with_pieces_that_are_not_those) {
  rpc::Channel channel(address_);
  const torch::Tensor large = torch::zeros({1 << 20});
  for (const char* strategy : {"ps-async", "ps-sync"}) {
    for (const auto& [method, good] : good_messages()) {
      begin_anew(channel, strategy);
      for (const std::vector<torch::Tensor>& pieces : {std::vector<torch::Tensor>{},
                                                       {torch::empty({0})},
                                                       {torch::ones({kSize + 1})},
                                                       {large},
                                                       {torch::ones({kSize}), torch::ones({kSize})},
                                                       {torch::ones({1}, torch::kUInt8)}}) {
        say(channel, method, {good.head, pieces_of(pieces)});
        rpc::Message more = good;
        for (const rpc::Piece& piece : pieces_of(pieces)) more.pieces.push_back(piece);
        say(channel, method, more);
      }
    }
  }
}

// Overwrites some bytes of valid frames: numbers of pieces, sizes, offsets and lengths.
TEST_F(BadCallers, with_frames_that_lie) {
  std::vector<std::string> frames;
  for (const auto& [method, message] : good_messages()) {
    rpc::Frame frame;
    frame.method = method;
    frame.head = rpc::encode_json(message.head);
    std::string following;
    for (const rpc::Piece& piece : message.pieces) {
      frame.pieces.push_back({piece.bytes.size()});
      following.append(reinterpret_cast<const char*>(piece.bytes.data()), piece.bytes.size());
    }
    frames.push_back(rpc::encode(frame) + following);
    for (const uint64_t size : {uint64_t{1} << 60, ~uint64_t{0} - 1, uint64_t{65 * kMiB}}) {
      frame.pieces.assign(1, {size});
      frames.push_back(rpc::encode(frame) + following);
    }
  }
  auto stream = acquaintance();
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = frames[random_() % frames.size()];
    for (auto changes = random_() % 4; changes > 0; --changes)
      bytes[random_() % bytes.size()] = static_cast<char>(random_());
    if (random_() % 4 == 0) bytes.resize(random_() % bytes.size() + 1);
    try {
      rpc::say(*stream, bytes);
      const rpc::TimeLimits soon{.deadline = rpc::Clock::now() + milliseconds(5)};
      rpc::Wire(*stream).receive({}, {}, soon, soon);
    } catch (const Error& error) {
      EXPECT_NE(error.kind(), ErrorKind::Bug) << error.what();
      stream = acquaintance();
    }
  }
}

// Takes the bytes of a valid connection from the first on, and truncates, changes or mixes them.
TEST_F(BadCallers, with_connections_that_were_changed) {
  std::string good;
  {
    Recorder recorder(host_.port());
    {
      rpc::Channel channel("127.0.0.1:" + std::to_string(recorder.port()));
      begin_anew(channel, "ps-async");
      for (int i = 0; i < 3; ++i) channel.call("push", push(0));
    }
    good = recorder.recorded();
  }
  ASSERT_GT(good.size(), 500U);
  for (int i = 0; i < 1500; ++i) {
    std::string bytes = good;
    for (auto changes = random_() % 4; changes > 0; --changes)
      bytes[random_() % bytes.size()] = static_cast<char>(random_());
    if (random_() % 2 == 0) bytes.resize(random_() % bytes.size());
    if (random_() % 8 == 0) bytes += bytes.substr(random_() % (bytes.size() + 1));
    const rpc::RawSocket caller(host_.port());
    caller.say(bytes);
    if (random_() % 4 == 0) {
      caller.fall_silent();
      caller.await_end();
    }
  }
}

TEST_F(BadCallers, of_another_kind) {
  for (int i = 0; i < 500; ++i) {
    std::string words(random_() % 2000 + 1, '\0');
    for (char& byte : words) byte = static_cast<char>(random_());
    if (i % 5 == 0) words = "GET /" + std::to_string(i) + " HTTP/1.1\r\nHost: localhost\r\n\r\n";
    if (i % 5 == 1) words = "POST / HTTP/1.1\r\nContent-Length: 1000000000000\r\n\r\n" + words;
    if (i % 5 == 2) words = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + words;
    const rpc::RawSocket caller(host_.port());
    caller.say(words);
    caller.fall_silent();
    caller.await_end();
  }
}

// Callers that send many requests and never read the answers: they are disconnected, and nobody has to wait.
TEST_F(BadCallers, that_do_not_listen) {
  constexpr int64_t kElements = 2 << 20;
  const torch::Tensor values = torch::ones({kElements});
  rpc::Message large = begin("ps-async", 4);
  large.head["block_ranges"] = to_json(std::vector<BlockRange>{{0, 0, kElements, torch::kFloat32}});
  large.pieces = pieces_of({values});
  rpc::Channel channel(address_);
  channel.call("begin", large);
  std::vector<std::unique_ptr<rpc::Stream>> deaf;
  for (int rank = 0; rank < 3; ++rank) {
    deaf.push_back(acquaintance());
    const auto ask = [&](const char* method, const Json& head) {
      rpc::Frame frame;
      frame.method = method;
      frame.head = rpc::encode_json(head);
      rpc::say(*deaf.back(), rpc::encode(frame));
    };
    try {
      ask("join", join(rank).head);
      for (int i = 0; i < 200; ++i) ask("pull", with_short_patience());
    } catch (const rpc::StreamEnd& end) {
      EXPECT_EQ(end.kind(), ErrorKind::PeerLost);
    }
  }
  channel.call("join", join(3));
  for (int i = 0; i < 20; ++i) EXPECT_NO_THROW(channel.call("pull", {with_short_patience(), {}}));
}

}  // namespace
}  // namespace tutti::ps

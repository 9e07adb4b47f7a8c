#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/transport/transport.h"

namespace tutti::comm::testing {

constexpr std::chrono::milliseconds kLong{60000};

inline Operation operation(const char* name, std::chrono::milliseconds timeout = kLong, int64_t step = -1) {
  Options options;
  options.step = step;
  return operation_of(name, options, timeout);
}

// Returns the message that rank `from` sends to rank `to`.
inline std::vector<std::byte> message(int from, int to, size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>(i * 7 + static_cast<size_t>(31 * from + 5 * to));
  return bytes;
}

// Every rank sends every rank a message of these sizes and checks the messages that it receives.
inline void exchange_and_look(Transport& transport, const std::function<size_t(int from, int to)>& size,
                              const Operation& operation) {
  std::vector<std::vector<std::byte>> out;
  std::vector<std::vector<std::byte>> in;
  const int me = transport.rank();
  for (int r = 0; r < transport.world(); ++r) {
    out.push_back(message(me, r, size(me, r)));
    in.emplace_back(size(r, me));
  }
  const std::vector<ConstBytes> sends(out.begin(), out.end());
  const std::vector<Bytes> recvs(in.begin(), in.end());
  transport.exchange(sends, recvs, operation);
  for (int r = 0; r < transport.world(); ++r) {
    if (r == me) continue;
    EXPECT_EQ(in[static_cast<size_t>(r)], message(r, me, size(r, me))) << r << " to " << me;
  }
}

inline void meet(Transport& transport, const Operation& operation) {
  exchange_and_look(
      transport, [](int, int) { return size_t{1}; }, operation);
}

// Exchanges equal, uneven, odd, empty and one-sided messages.
inline void exchange_messages_of_any_size(Transport& transport) {
  const Operation now = operation("exchange");
  exchange_and_look(
      transport, [](int, int) { return size_t{4096}; }, now);
  exchange_and_look(
      transport, [](int from, int to) { return static_cast<size_t>(3 * from + to); }, now);
  exchange_and_look(
      transport, [](int, int) { return size_t{0}; }, now);
  exchange_and_look(
      transport, [](int from, int) { return from == 0 ? size_t{77} : 0; }, now);
  exchange_and_look(
      transport, [](int, int to) { return to == 0 ? size_t{3000001} : 0; }, now);
}

// Sends messages around a ring, with one thread per direction, while a third thread calls exchange().
inline void send_and_recv_beside_exchanges(Transport& transport) {
  const int rank = transport.rank();
  const int world = transport.world();
  if (world == 1) return;
  const int next = (rank + 1) % world;
  const int before = (rank + world - 1) % world;
  const auto size = [](int i) { return static_cast<size_t>(i % 5 * 50000); };
  std::thread sender([&] {
    for (int i = 0; i < 20; ++i) transport.send(message(i, rank, size(i)), next, operation("send"));
  });
  std::thread receiver([&] {
    for (int i = 0; i < 20; ++i) {
      std::vector<std::byte> bytes(size(i));
      transport.recv(bytes, before, operation("recv"));
      EXPECT_EQ(bytes, message(i, before, size(i)));
    }
  });
  for (int i = 0; i < 20; ++i) meet(transport, operation("exchange"));
  sender.join();
  receiver.join();
}

}  // namespace tutti::comm::testing

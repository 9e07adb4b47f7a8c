#include "tests/simulation/board.h"

#include <utility>

namespace tutti::simulation {

Time SimulatedBoard::delay() {
  Random& random = process_.world().random();
  if (delays_.slow_chance > 0 && random.chance(delays_.slow_chance)) return random.draw(0, delays_.slowest);
  return random.draw(20, delays_.most);
}

// The request is carried out at the board, whatever has become of the process meanwhile.
void SimulatedBoard::call(std::function<void()> request) {
  World& world = process_.world();
  const int64_t wait = process_.begin_wait();
  const Time there = delay();
  const Time back = delay();
  const bool is_lost_with_process = world.random().chance(0.5);
  world.after(there, [this, &world, wait, back, is_lost_with_process, request = std::move(request)] {
    if (!process_.lives() && is_lost_with_process) return;
    request();
    world.after(back, [this, wait] { process_.wake(wait); });
  });
  process_.wait();
}

void SimulatedBoard::set(const std::string& key, const std::string& value) {
  call([board = board_, key, value] { board->set(key, value); });
}

std::string SimulatedBoard::get(const std::string& key, std::chrono::milliseconds timeout) {
  const Time deadline = process_.world().now() + timeout.count() * kMillisecond;
  for (;;) {
    if (auto value = peek(key)) return *std::move(value);
    if (process_.world().now() >= deadline) return board_->get(key, std::chrono::milliseconds(0));  // throws
    process_.sleep(10 * kMillisecond);
  }
}

std::optional<std::string> SimulatedBoard::peek(const std::string& key) {
  const auto found = std::make_shared<std::optional<std::string>>();
  call([board = board_, key, found] { *found = board->peek(key); });
  return *found;
}

std::string SimulatedBoard::set_once(const std::string& key, const std::string& value) {
  const auto result = std::make_shared<std::string>();
  call([board = board_, key, value, result] { *result = board->set_once(key, value); });
  return *result;
}

}  // namespace tutti::simulation

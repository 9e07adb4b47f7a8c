#include "tests/simulation/world.h"

#include <cstdio>

namespace tutti::simulation {

// splitmix64, by Vigna.
uint64_t Random::next() {
  state_ += 0x9e3779b97f4a7c15U;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

int64_t Random::draw(int64_t least, int64_t most) {
  return least + static_cast<int64_t>(next() % static_cast<uint64_t>(most - least + 1));
}

uint64_t mix(uint64_t a, uint64_t b) { return Random(Random(a).next() ^ (b + 0x632be59bd9b4e019U)).next(); }

void World::at(Time time, std::function<void()> event) {
  events_.push({std::max(time, now_), added_++, std::move(event)});
}

bool World::next() {
  if (events_.empty()) return false;
  // The queue only gives out constants, to protect its order, which does not depend on the function.
  Event event = std::move(const_cast<Event&>(events_.top()));
  events_.pop();
  now_ = event.time;
  ++count_;
  hash_ = mix(hash_, static_cast<uint64_t>(now_), event.number);
  event.happens();
  return true;
}

void World::add_line(const std::string& line) {
  for (const char c : line) hash_ = (hash_ ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  if (prints_) std::printf("%10.3f ms  %s\n", static_cast<double>(now_) / kMillisecond, line.c_str());
}

}  // namespace tutti::simulation

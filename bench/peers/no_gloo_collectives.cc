#include "bench/peers/collectives.h"

namespace bench {

std::optional<AllReduce> gloo_all_reduce(int, int, const std::string&, const std::string&) {
  return std::nullopt;
}

}  // namespace bench

// Layouts of up to eight ranks on several hosts.
#include <string>

#include <gtest/gtest.h>

#include "tutti/comm/hierarchy/test_layouts.h"
#include "tutti/comm/test_conformance.h"
#include "tutti/comm/test_ranks.h"

namespace tutti::comm::hierarchy_slow_test {
namespace {

class Layouts : public ::testing::TestWithParam<const char*> {};
// Layouts with one rank per host, or whose hosts have mixed ranks, use only the network.
std::string name_of(const ::testing::TestParamInfo<const char*>& info) { return info.param; }
INSTANTIATE_TEST_SUITE_P(OnHosts, Layouts,
                         ::testing::Values("ab", "aab", "abb", "abc", "aba", "aabbc", "aaabbb"), name_of);
INSTANTIATE_TEST_SUITE_P(Soak, Layouts,
                         ::testing::Values("aaab", "abab", "abbcc", "aabbcc", "aaabbbb", "aaabbbcc",
                                           "abbbbbbb", "aaaabbbb", "aabbccdd", "abcde", "abcdefgh"),
                         name_of);

TEST_P(Layouts, make_a_communicator) { testing::check_communicator_on(GetParam()); }
TEST_P(Layouts, do_not_change_the_bits_of_sums) { testing::check_sums_on(GetParam()); }
TEST_P(Layouts, move_more_than_is_in_flight_at_a_time) { testing::check_long_movements_on(GetParam()); }
TEST_P(Layouts, can_be_split) { testing::check_parts_of(GetParam()); }

TEST(Hosts, reduce_64_megabytes) {
  testing::with_ranks("ab", 2, check_large);
  testing::with_ranks("aabb", 4, check_large);
}

}  // namespace
}  // namespace tutti::comm::hierarchy_slow_test

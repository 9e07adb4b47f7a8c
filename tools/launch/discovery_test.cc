#include "tools/launch/discovery.h"

#include <thread>

#include <gmock/gmock.h>

#include "tutti/base/test_folder.h"

namespace tutti::discovery_test {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Hosts = std::vector<HostSlots>;

std::vector<size_t> come_to(const HostPlaces::Changes& changes) {
  std::vector<size_t> places;
  for (const HostPlaces::Arrival& arrival : changes.come) places.push_back(arrival.place);
  return places;
}

TEST(HostPlaces, are_of_the_first_hosts_and_of_others_as_large) {
  EXPECT_EQ(HostPlaces({{"a", 2}, {"b", 3}}, 12).all(),
            (Hosts{{"a", 2}, {"b", 3}, {"", 3}, {"", 3}, {"", 1}}));
  EXPECT_EQ(HostPlaces({{"a", 2}, {"b", 3}, {"c", 1}}, 4).all(), (Hosts{{"a", 2}, {"b", 2}}));
}

TEST(HostPlaces, change_hands) {
  HostPlaces places({{"a", 2}, {"b", 2}}, 6);
  EXPECT_THAT(come_to(places.update({{"b", 2}, {"a", 2}})), IsEmpty());
  const auto arrived = places.update({{"a", 2}, {"b", 2}, {"c", 1}, {"d", 2}});
  EXPECT_THAT(arrived.leave, IsEmpty());
  ASSERT_THAT(come_to(arrived), ElementsAre(2)) << "there is no place for d";
  EXPECT_EQ(arrived.come[0].host, (HostSlots{"c", 1}));
  const auto other = places.update({{"b", 2}, {"c", 1}, {"d", 4}});
  EXPECT_THAT(other.leave, ElementsAre(0));
  ASSERT_THAT(come_to(other), ElementsAre(0));
  EXPECT_EQ(other.come[0].host, (HostSlots{"d", 2})) << "no more than the place has";
}

TEST(HostPlaces, are_kept_for_hosts_that_come_back) {
  HostPlaces places({{"a", 1}, {"b", 1}}, 3);
  EXPECT_THAT(places.update({{"a", 1}}).leave, ElementsAre(1));
  EXPECT_THAT(come_to(places.update({{"a", 1}, {"c", 1}})), ElementsAre(2)) << "where nobody was";
  EXPECT_THAT(come_to(places.update({{"a", 1}, {"b", 1}, {"c", 1}})), ElementsAre(1));
}

TEST(HostPlaces, are_kept_by_hosts_that_may_not_leave) {
  HostPlaces places({{"a", 1}, {"b", 1}}, 3);
  std::vector<size_t> asked;
  bool may_leave = false;
  const auto update = [&](const Hosts& hosts) {
    return places.update(hosts, [&](const std::vector<size_t>& unlisted) {
      asked = unlisted;
      return may_leave;
    });
  };
  const auto kept = update({{"c", 1}, {"d", 1}});
  EXPECT_THAT(asked, ElementsAre(0, 1, 2));
  EXPECT_THAT(kept.leave, IsEmpty());
  EXPECT_THAT(kept.stay, ElementsAre(0, 1));
  EXPECT_THAT(come_to(kept), ElementsAre(2));
  EXPECT_THAT(kept.left_out, ElementsAre("d"));
  const auto again = update({{"a", 1}, {"c", 1}, {"d", 1}});
  EXPECT_THAT(asked, ElementsAre(1));
  EXPECT_THAT(again.stay, IsEmpty()) << "that b stays is told once";
  EXPECT_THAT(again.left_out, IsEmpty());
  may_leave = true;
  const auto left = update({{"c", 1}, {"d", 1}});
  EXPECT_THAT(left.leave, ElementsAre(0, 1));
  EXPECT_THAT(come_to(left), ElementsAre(0)) << "for d";
}

class DiscoveryOf : public testing::Test {
 protected:
  // Looks until there is an answer, or until something was said.
  std::optional<Hosts> ask(Discovery& discovery) {
    said_.clear();
    for (;;) {
      auto hosts = discovery.look([this](const std::string& text) { said_ = text; });
      if (hosts || !said_.empty()) return hosts;
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
  std::string said_;
};

TEST_F(DiscoveryOf, hosts_reads_what_a_command_prints) {
  Discovery discovery("echo a:2; echo; echo ' b'", milliseconds(1));
  EXPECT_EQ(ask(discovery), (Hosts{{"a", 2}, {"b", 1}}));
  EXPECT_EQ(ask(discovery), (Hosts{{"a", 2}, {"b", 1}}));
}

TEST_F(DiscoveryOf, hosts_says_once_that_a_command_fails) {
  const TestFolder folder;
  const std::string works = folder / "works";
  Discovery discovery("[ -e " + works + " ] && echo a || { echo no cloud >&2; exit 3; }", milliseconds(1));
  EXPECT_EQ(ask(discovery), std::nullopt);
  EXPECT_THAT(said_, HasSubstr("changes nothing: its exit code is 3 (no cloud)"));
  folder.write("works", "");
  EXPECT_EQ(ask(discovery), (Hosts{{"a", 1}})) << said_;
}

TEST_F(DiscoveryOf, hosts_refuses_what_names_no_hosts) {
  for (const char* command : {"true", "echo 'a b:x'", "echo a; echo a", "kill $$",
                              "echo a; echo Unable to reach it", "echo a,b", "echo a:0", "echo -- -a"}) {
    Discovery discovery(command, milliseconds(1));
    EXPECT_EQ(ask(discovery), std::nullopt) << command;
  }
}

TEST_F(DiscoveryOf, hosts_quotes_a_line_that_is_no_host) {
  Discovery discovery("echo a:2; echo ' Unable to reach the API server '", milliseconds(1));
  EXPECT_EQ(ask(discovery), std::nullopt);
  EXPECT_THAT(said_,
              HasSubstr("changes nothing: 'Unable to reach the API server' is not HOST or HOST:SLOTS"));
}

TEST_F(DiscoveryOf, hosts_gives_up_a_command_that_hangs) {
  Discovery discovery("sleep 1000", milliseconds(1), milliseconds(50));
  EXPECT_EQ(ask(discovery), std::nullopt);
  EXPECT_THAT(said_, HasSubstr("takes longer than"));
}

}  // namespace
}  // namespace tutti::discovery_test

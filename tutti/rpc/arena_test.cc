#include "tutti/rpc/arena.h"

#include <algorithm>
#include <fstream>
#include <sys/resource.h>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/file.h"
#include "tutti/base/test_errors.h"
#include "tutti/base/text.h"

namespace tutti::rpc::arena_test {
namespace {

using testing::HasSubstr;

TEST(Arena, gives_zeros_from_a_page_on) {
  Arena arena;
  const auto one = arena.allocate(100000);
  const auto other = arena.allocate(1);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(one.data()) % kArenaPage, 0U);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(other.data()) % kArenaPage, 0U);
  EXPECT_GE(other.data(), one.data() + one.size());
  EXPECT_TRUE(std::all_of(one.begin(), one.end(), [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_EQ(arena.allocate(0).size(), 0U);
}

TEST(Arena, knows_what_is_in_it) {
  Arena arena;
  const auto bytes = arena.allocate(100);
  EXPECT_TRUE(arena.contains(bytes));
  EXPECT_TRUE(arena.contains(bytes.subspan(99)));
  EXPECT_EQ(arena.offset_of(bytes.subspan(7)), arena.offset_of(bytes) + 7);
  const std::byte outside{};
  EXPECT_FALSE(arena.contains({&outside, 1}));
  EXPECT_FALSE(arena.contains({bytes.data(), ~size_t{0}}));
  EXPECT_FALSE(arena.contains({bytes.data() - kArenaPage, 1})) << "the head is not for sending";
}

TEST(Arena, that_is_full_says_so) {
  Arena arena(10 * kArenaPage);
  arena.allocate(9 * kArenaPage);
  expect_error(ErrorKind::Overloaded, HasSubstr("do not fit"), [&] { arena.allocate(kArenaPage + 1); });
  EXPECT_EQ(arena.allocate(kArenaPage).size(), kArenaPage);
}

// Clusters may set such a limit with `ulimit -v`.
TEST(Arena, takes_what_address_space_there_is) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer has taken the address space";
#endif
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  int64_t pages = 0;
  ASSERT_TRUE(std::ifstream("/proc/self/statm") >> pages);
  rlimit little = before;
  little.rlim_cur = static_cast<rlim_t>(pages) * static_cast<rlim_t>(getpagesize()) + (rlim_t{8} << 30);
  ASSERT_EQ(setrlimit(RLIMIT_AS, &little), 0);
  {
    Arena arena;
    EXPECT_EQ(arena.allocate(1 << 20).size(), size_t{1} << 20);
  }
  EXPECT_EQ(setrlimit(RLIMIT_AS, &before), 0);
}

TEST(Arena, is_seen_through_its_name) {
  Arena arena;
  const auto bytes = arena.allocate(100);
  const auto mapping = Mapping::attach(arena.name());
  ASSERT_NE(mapping, nullptr);
  mapping->at(arena.offset_of(bytes), 100)[3] = std::byte{5};
  EXPECT_EQ(bytes[3], std::byte{5});
}

TEST(Arena, a_mapping_outlives_it) {
  std::shared_ptr<const Mapping> mapping;
  size_t offset = 0;
  {
    Arena arena;
    offset = arena.offset_of(arena.allocate(100));
    mapping = Mapping::attach(arena.name());
  }
  EXPECT_EQ(mapping->at(offset, 100)[0], std::byte{0});
}

TEST(Arena, only_what_is_allocated_can_be_named) {
  Arena arena;
  const size_t offset = arena.offset_of(arena.allocate(2 * kArenaPage));
  const auto mapping = Mapping::attach(arena.name());
  EXPECT_EQ(mapping->at(offset + kArenaPage, kArenaPage).size(), kArenaPage);
  EXPECT_EQ(mapping->at(offset + 2 * kArenaPage, 0).size(), 0U);
  for (const auto& [from, size] :
       std::vector<std::pair<uint64_t, uint64_t>>{{offset + kArenaPage, kArenaPage + 1},
                                                  {0, 1},
                                                  {kArenaPage - 1, 1},
                                                  {offset, ~uint64_t{0}},
                                                  {~uint64_t{0}, 1},
                                                  {~uint64_t{0}, ~uint64_t{0}},
                                                  {uint64_t{1} << 40, 1}}) {
    expect_error(ErrorKind::DataLoss, HasSubstr("not in the arena"),
                 [&, from = from, size = size] { mapping->at(from, size); });
  }
}

TEST(Arena, another_file_is_none) {
  Arena arena;
  const auto parts = split(arena.name(), '/');
  const FileDescriptor other("/dev/null", O_RDWR);
  for (const std::string& name :
       {std::string(), std::string("x"), parts[0] + "/" + parts[1], fmt::format("{}/{}/", parts[0], parts[1]),
        fmt::format("{}/{}/{}", parts[0], parts[1], std::string(kNonceSize, '0')),
        fmt::format("{}/{}/{}", parts[0], other.get(), parts[2]), fmt::format("-1/0/{}", parts[2]),
        fmt::format("999999999/0/{}", parts[2]), fmt::format("{}/../{}", parts[0], parts[2])}) {
    EXPECT_EQ(Mapping::attach(name), nullptr) << name;
  }
}

}  // namespace
}  // namespace tutti::rpc::arena_test

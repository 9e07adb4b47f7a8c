#include "tutti/base/memory.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <gmock/gmock.h>

#include "tutti/base/file.h"
#include "tutti/base/test_errors.h"

namespace tutti::memory_test {
namespace {

using ::testing::HasSubstr;

uint64_t allocated(const FileDescriptor& memory) {
  struct stat status {};
  EXPECT_EQ(fstat(memory.get(), &status), 0);
  return static_cast<uint64_t>(status.st_blocks) * 512;
}

TEST(MachineMemory, is_that_of_this_machine_or_less) {
  const MachineMemory memory = machine_memory();
  EXPECT_GT(memory.available, 0U);
  EXPECT_LE(memory.available, memory.total);
  EXPECT_LE(memory.total,
            static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGE_SIZE)));
}

TEST(AllocatePages, allocates_a_range) {
  const FileDescriptor memory(memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(memory.get(), off_t{256} << 20), 0);
  allocate_pages(memory.get(), 4096, uint64_t{70} << 20);
  EXPECT_EQ(allocated(memory), uint64_t{70} << 20);
  allocate_pages(memory.get(), 0, 0);
  EXPECT_EQ(allocated(memory), uint64_t{70} << 20);
}

// The kernel would end other processes to get so much.
TEST(AllocatePages, refuses_more_than_the_machine_has_and_keeps_none_of_it) {
  const FileDescriptor memory(memfd_create("test", MFD_CLOEXEC));
  const uint64_t size = machine_memory().total;
  ASSERT_EQ(ftruncate(memory.get(), static_cast<off_t>(size)), 0);
  expect_error(ErrorKind::Overloaded, HasSubstr("no shared memory for"),
               [&] { allocate_pages(memory.get(), 0, size); });
  EXPECT_EQ(allocated(memory), 0U);
}

}  // namespace
}  // namespace tutti::memory_test

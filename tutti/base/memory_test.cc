#include "tutti/base/memory.h"

#include <cerrno>
#include <new>
#include <stdexcept>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
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

TEST(RanOut, is_memory_threads_descriptors_and_disks) {
  EXPECT_TRUE(ran_out(std::bad_alloc()));
  for (const int code : {EAGAIN, ENOMEM, EMFILE, ENFILE, ENOSPC, EFBIG})
    EXPECT_TRUE(ran_out(std::system_error(code, std::generic_category()))) << code;
  EXPECT_TRUE(ran_out(std::runtime_error(
      "[enforce fail at alloc_cpu.cpp:66] . DefaultCPUAllocator: can't allocate memory: you tried to "
      "allocate 4000000000000 bytes. Error code 12 (Cannot allocate memory)")));
}

TEST(RanOut, is_nothing_else) {
  EXPECT_TRUE(ran_out(std::runtime_error("could not create a primitive")));
  EXPECT_FALSE(ran_out(std::runtime_error("could not create a primitive descriptor for a convolution")));
  EXPECT_FALSE(ran_out(std::runtime_error("mat1 and mat2 shapes cannot be multiplied")));
  EXPECT_FALSE(ran_out(std::system_error(EINVAL, std::generic_category())));
  EXPECT_FALSE(ran_out(std::logic_error("an accident")));
}

}  // namespace
}  // namespace tutti::memory_test

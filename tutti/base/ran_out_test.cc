#include <cerrno>
#include <new>
#include <stdexcept>
#include <system_error>

#include <gtest/gtest.h>

#include "tutti/base/memory.h"

namespace tutti::ran_out_test {
namespace {

TEST(RanOut, is_memory_threads_descriptors_and_disks) {
  EXPECT_TRUE(ran_out(std::bad_alloc()));
  for (const int code : {EAGAIN, ENOMEM, EMFILE, ENFILE, ENOSPC, EFBIG})
    EXPECT_TRUE(ran_out(std::system_error(code, std::generic_category()))) << code;
  EXPECT_TRUE(ran_out(std::runtime_error(
      "[enforce fail at alloc_cpu.cpp:66] . DefaultCPUAllocator: can't allocate memory: you tried to "
      "allocate 4000000000000 bytes. Error code 12 (Cannot allocate memory)")));
}

TEST(RanOut, is_nothing_else) {
  EXPECT_FALSE(ran_out(std::runtime_error("mat1 and mat2 shapes cannot be multiplied")));
  EXPECT_FALSE(ran_out(std::system_error(EINVAL, std::generic_category())));
  EXPECT_FALSE(ran_out(std::logic_error("an accident")));
}

}  // namespace
}  // namespace tutti::ran_out_test

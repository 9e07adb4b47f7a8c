#include "tutti/base/file.h"

#include <array>
#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "tutti/base/hashes.h"
#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"

namespace tutti::file_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

TEST(File, reads_back_what_was_written) {
  const TestFolder folder;
  const std::string path = folder / "file";
  FileWriter writer(path);
  writer.write("one, ");
  writer.write("");
  writer.write(std::string_view("two\0", 4));
  writer.finish();
  EXPECT_EQ(read_file(path), std::string("one, two\0", 9));
  EXPECT_EQ(writer.bytes(), 9U);
  EXPECT_EQ(writer.checksum(), crc32c(as_bytes(read_file(path))));
}

TEST(File, is_overloaded_where_the_disk_is_full) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "this system has no /dev/full";
  FileWriter writer("/dev/full");
  expect_error(ErrorKind::Overloaded, HasSubstr("writing /dev/full at byte 0: No space left on device"),
               [&] { writer.write("text"); });
}

TEST(File, is_overloaded_where_a_file_may_not_grow) {
  const TestFolder folder;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit narrow{.rlim_cur = 1000, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &narrow), 0);
  FileWriter writer(folder / "file");
  expect_error(ErrorKind::Overloaded, HasSubstr("file at byte 1000"),
               [&] { writer.write(std::string(2000, 'x')); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
}

TEST(File, names_the_path_that_cannot_be_used) {
  const TestFolder folder;
  replace_file(folder / "file", "text");
  const std::string below = folder / "file/below";
  expect_error(ErrorKind::InvalidArgument, HasSubstr(below), [&] { FileWriter writer(below); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr(below), [&] { replace_file(below, "text"); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr(below), [&] { make_directories(below); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("file"), [&] { make_directories(folder / "file"); });
  for (const auto& write :
       {+[](const std::string& path) { FileWriter writer(path); },
        +[](const std::string& path) { replace_file(path, "text"); }, require_replaceable}) {
    expect_error(ErrorKind::InvalidArgument,
                 AllOf(HasSubstr(below + ":"), HasSubstr("a part of this path is a file")),
                 [&] { write(below); });
    expect_error(ErrorKind::InvalidArgument,
                 AllOf(HasSubstr("/no/such/folder/file:"), HasSubstr("make it, or choose another place")),
                 [&] { write("/no/such/folder/file"); });
  }
  expect_error(ErrorKind::InvalidArgument, HasSubstr("missing"), [&] { read_file(folder / "missing"); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr(folder.path()), [&] { read_file(folder.path()); });
}

TEST(File, does_not_wait_for_a_pipe_in_the_place_of_a_file) {
  const TestFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("not a regular file"),
               [&] { read_file(folder / "pipe"); });
}

TEST(File, says_where_a_file_ends_too_early) {
  const TestFolder folder;
  replace_file(folder / "file", "12345");
  const FileReader reader(folder / "file");
  std::vector<std::byte> bytes(4);
  expect_error(ErrorKind::DataLoss, HasSubstr("ends at byte 5, 1 bytes too early"),
               [&] { reader.read_at(2, bytes); });
}

TEST(ReadSystemFile, reads_what_has_no_size) {
  EXPECT_THAT(read_system_file("/proc/self/cmdline"), HasSubstr("plain_tests"));
}

// This happens if a process ends between open(2) and read(2): the buffer of a stream would throw.
TEST(ReadSystemFile, is_empty_where_reading_fails) {
  EXPECT_EQ(read_system_file("/proc/self/mem"), "");
  EXPECT_EQ(read_system_file("/proc/self"), "");
  EXPECT_EQ(read_system_file("/proc/0/stat"), "");
}

TEST(ReplaceFile, leaves_nothing_beside_the_file) {
  const TestFolder folder;
  replace_file(folder / "file", "old");
  replace_file(folder / "file", "new");
  EXPECT_EQ(read_file(folder / "file"), "new");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1);
}

TEST(ReplaceFile, keeps_the_old_file_where_the_new_one_cannot_be_written) {
  const TestFolder folder;
  fs::create_directory(folder / "file");
  EXPECT_THROW(replace_file(folder / "file", "text"), Error);
  EXPECT_TRUE(fs::is_directory(folder / "file"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1);
}

// Running --report /dev/null as root must not replace the device by a file.
TEST(ReplaceFile, writes_into_what_is_no_regular_file) {
  replace_file("/dev/null", "text");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST(ReplaceFile, refuses_a_named_pipe_and_a_directory_beforehand) {
  const TestFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const auto& body :
       {require_replaceable, +[](const std::string& path) { replace_file(path, "text"); }}) {
    expect_error(ErrorKind::InvalidArgument, HasSubstr("pipe is a named pipe"),
                 [&] { body(folder / "pipe"); });
    expect_error(ErrorKind::InvalidArgument, HasSubstr("is a directory"), [&] { body(folder.path()); });
    expect_error(ErrorKind::InvalidArgument, HasSubstr("no/such/file"),
                 [&] { body(folder / "no/such/file"); });
  }
  require_replaceable("/dev/null");
  require_replaceable(folder / "file");
  EXPECT_FALSE(fs::exists(folder / "file"));
  replace_file(folder / "file", "old");
  require_replaceable(folder / "file");
  EXPECT_EQ(read_file(folder / "file"), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 2);
}

// This happens with --report /dev/stdout | jq: the pipe has no name.
TEST(ReplaceFile, writes_into_a_pipe_that_is_open_already) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const FileDescriptor read_end(ends[0]);
  const FileDescriptor write_end(ends[1]);
  const std::string path = fmt::format("/proc/self/fd/{}", write_end.get());
  require_replaceable(path);
  replace_file(path, "text");
  std::array<char, 4> text{};
  ASSERT_EQ(::read(read_end.get(), text.data(), text.size()), 4);
  EXPECT_EQ(std::string(text.data(), text.size()), "text");
}

TEST(ReplaceFile, follows_a_link_to_the_file) {
  const TestFolder folder;
  replace_file(folder / "file", "old");
  fs::create_symlink("file", folder / "link");
  replace_file(folder / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(read_file(folder / "file"), "new");
}

TEST(ReplaceFile, refuses_a_link_to_itself_beforehand) {
  const TestFolder folder;
  const std::string path = folder / "loop";
  fs::create_symlink("loop", path);
  for (const auto& use : {+[](const std::string& p) { require_replaceable(p); },
                          +[](const std::string& p) { replace_file(p, "text"); }})
    expect_error(ErrorKind::InvalidArgument, HasSubstr("following the link " + path), [&] { use(path); });
}

TEST(FileDescriptor, moves_and_closes_once) {
  const TestFolder folder;
  FileDescriptor a(folder / "file", O_WRONLY | O_CREAT);
  const int number = a.get();
  FileDescriptor b(std::move(a));
  EXPECT_EQ(b.get(), number);
  b.close("file");
  EXPECT_EQ(::fcntl(number, F_GETFD), -1);
}

}  // namespace
}  // namespace tutti::file_test

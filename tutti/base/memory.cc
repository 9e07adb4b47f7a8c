#include "tutti/base/memory.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <malloc.h>
#include <new>
#include <string>
#include <string_view>
#include <system_error>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/text.h"

namespace tutti {
namespace {

constexpr uint64_t kStep = uint64_t{64} << 20;
// Memory that is left to the rest of the system.
constexpr uint64_t kMargin = uint64_t{128} << 20;

// Returns the number after this word, such as "MemTotal:" or "active_file"; 0 if the text does not have it.
uint64_t number_after(const std::string& text, const std::string& word) {
  const size_t at = ("\n" + text).find("\n" + word + " ");
  return at == std::string::npos ? 0 : std::strtoull(text.c_str() + at + word.size(), nullptr, 10);
}

uint64_t number_in(const std::string& path) {
  return std::strtoull(read_system_file(path).c_str(), nullptr, 10);
}

// Allocates one step. Returns the error, or 0.
int allocate_step(int descriptor, uint64_t begin, uint64_t size) {
  while (fallocate(descriptor, 0, static_cast<off_t>(begin), static_cast<off_t>(size)) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

// LibTorch has no exception type for this: its allocators throw an exception with one of these texts.
constexpr std::array<std::string_view, 4> kTexts = {"can't allocate memory", "Cannot allocate memory",
                                                    "not enough memory", "out of memory"};
// oneDNN says no more than this if there is no memory for the machine code of an operation. An operation that
// it does not have is another text ("... a primitive descriptor ...").
constexpr std::array<std::string_view, 2> kTextsOfOneDnn = {"could not create a primitive",
                                                            "could not execute a primitive"};

}  // namespace

MachineMemory machine_memory() {
  const std::string meminfo = read_system_file("/proc/meminfo");
  MachineMemory memory{number_after(meminfo, "MemAvailable:") * 1024,
                       number_after(meminfo, "MemTotal:") * 1024};
  const std::string group = "/sys/fs/cgroup/";
  const uint64_t limit = number_in(group + "memory.max");  // 0: there is none ("max")
  if (limit == 0 || limit >= memory.total) return memory;
  // The kernel drops cached files before it ends a process.
  const std::string uses = read_system_file(group + "memory.stat");
  const uint64_t cached = number_after(uses, "active_file") + number_after(uses, "inactive_file");
  const uint64_t used = number_in(group + "memory.current");
  memory.total = limit;
  memory.available = std::min(memory.available, limit - std::min(limit, used - std::min(used, cached)));
  return memory;
}

// Looks at each step anew, since several processes may allocate at the same time.
void allocate_pages(int descriptor, uint64_t begin, uint64_t size) {
  for (uint64_t done = 0; done < size; done += kStep) {
    const uint64_t step = std::min(kStep, size - done);
    const MachineMemory memory = size < kStep ? MachineMemory() : machine_memory();
    const bool fits = memory.total == 0 || memory.available >= size - done + kMargin;
    const int error = fits ? allocate_step(descriptor, begin + done, step) : ENOMEM;
    if (error == 0) continue;
    fallocate(descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
              static_cast<off_t>(done));
    if (fits)
      fail(ErrorKind::Overloaded, "no shared memory for {}: {}", human_bytes(size), errno_text(error));
    fail(ErrorKind::Overloaded, "no shared memory for {}: this machine, or its control group, has {} left",
         human_bytes(size), human_bytes(memory.available + done));
  }
}

void tune_heap() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
  mallopt(M_TOP_PAD, 64 << 20);
  mallopt(M_MXFAST, 0);
#endif
}

bool ran_out(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  if (const auto* system = dynamic_cast<const std::system_error*>(&error)) {
    for (const std::errc code : {std::errc::resource_unavailable_try_again, std::errc::not_enough_memory,
                                 std::errc::too_many_files_open, std::errc::too_many_files_open_in_system,
                                 std::errc::no_space_on_device, std::errc::file_too_large}) {
      if (system->code() == code) return true;
    }
  }
  const std::string_view text = error.what();
  if (std::find(kTextsOfOneDnn.begin(), kTextsOfOneDnn.end(), text) != kTextsOfOneDnn.end()) return true;
  return std::any_of(kTexts.begin(), kTexts.end(),
                     [&](std::string_view part) { return text.find(part) != std::string_view::npos; });
}

}  // namespace tutti

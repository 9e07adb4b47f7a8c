#include "tutti/base/ran_out.h"

#include <algorithm>
#include <array>
#include <new>
#include <string_view>
#include <system_error>

namespace tutti {
namespace {

// LibTorch has no exception type for this: its allocators throw an exception with one of these texts.
constexpr std::array<std::string_view, 4> kTexts = {"can't allocate memory", "Cannot allocate memory",
                                                    "not enough memory", "out of memory"};

}  // namespace

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
  return std::any_of(kTexts.begin(), kTexts.end(),
                     [&](std::string_view part) { return text.find(part) != std::string_view::npos; });
}

}  // namespace tutti

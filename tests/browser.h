// A real browser, for the tests of pages.
#pragma once

#include <filesystem>
#include <string>

#include "tests/tool.h"
#include "tutti/base/test_folder.h"

namespace tutti::testing {

// Chromium, whose processes have this variable, and which keeps all of its files in the folder.
class Browser {
 public:
  Browser() {
    for (const char* path : {"/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"}) {
      if (program_.empty() && std::filesystem::exists(path)) program_ = path;
    }
  }
  // It may have been installed where it cannot start, as in some containers.
  std::string why_not() const {
    if (program_.empty()) return "no Chromium (apt install chromium)";
    folder_.write("empty.html", "<title>started</title>");
    const ProgramResult result = look_at(folder_ / "empty.html");
    const bool starts =
        result.exit_code == 0 && result.out.find("<title>started</title>") != std::string::npos;
    return starts ? "" : program_ + " does not start here";
  }

  // Returns the page as it is after its scripts have run.
  ProgramResult look_at(const std::string& path) const { return look_at_url("file://" + path); }
  ProgramResult look_at_url(const std::string& url, const Words& flags = {}) const {
    const Words command = {program_,
                           "--headless",
                           "--no-sandbox",
                           "--disable-gpu",
                           "--disable-dev-shm-usage",
                           "--disable-breakpad",
                           "--no-first-run",
                           "--user-data-dir=" + (folder_ / "profile"),
                           "--dump-dom"};
    return run_program(command + flags + Words{url},
                       {mark(), "TMPDIR=" + folder_.path(), "XDG_CONFIG_HOME=" + folder_.path(),
                        "XDG_CACHE_HOME=" + folder_.path()},
                       Crashes::AskedFor);
  }
  // Returns true as soon as none of its processes runs.
  bool is_gone() const {
    return eventually([&] { return processes_with(mark()).empty(); });
  }

 private:
  std::string mark() const { return "HOME=" + folder_.path(); }

  TestFolder folder_;
  std::string program_;
};

}  // namespace tutti::testing

#include "tutti/base/start_thread.h"

#include <latch>
#include <vector>

namespace tutti {

void require_threads(int count, std::string_view what) {
  std::latch over(1);
  std::vector<std::thread> threads;
  const auto end = [&] {
    over.count_down();
    for (std::thread& thread : threads) thread.join();
  };
  try {
    for (int i = 0; i < count; ++i) threads.push_back(start_thread(what, [&over] { over.wait(); }));
  } catch (const Error&) {
    end();
    throw;
  }
  end();
}

}  // namespace tutti

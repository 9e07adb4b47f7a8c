#include "tutti/base/heap.h"

#include <malloc.h>

namespace tutti {

void tune_heap() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
  mallopt(M_TOP_PAD, 64 << 20);
  mallopt(M_MXFAST, 0);
#endif
}

}  // namespace tutti

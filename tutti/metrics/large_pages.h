#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>
#include <sys/mman.h>
#include <utility>

namespace tutti::metrics {

// An allocator that asks the kernel for large pages for all that is as large as some of them. Sorting goes to
// many places of its memory at once, more than the processor can translate addresses of small pages for.
template <class T>
struct LargePages {
  using value_type = T;

  LargePages() = default;
  template <class Other>
  explicit LargePages(const LargePages<Other>&) {}

  T* allocate(size_t count) {
    const size_t bytes = count * sizeof(T);
    if (bytes < kFewest * kPage) return static_cast<T*>(::operator new(bytes));
    const size_t whole = (bytes + kPage - 1) / kPage * kPage;
    void* const memory = std::aligned_alloc(kPage, whole);
    if (memory == nullptr) throw std::bad_alloc();
    // Without large pages it is only slower.
    static_cast<void>(::madvise(memory, whole, MADV_HUGEPAGE));
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t count) {
    if (count * sizeof(T) < kFewest * kPage)
      ::operator delete(memory);
    else
      std::free(memory);
  }
  // Elements without a value are left as they are, and not set to 0.
  template <class Element>
  void construct(Element* at) {
    ::new (static_cast<void*>(at)) Element;
  }
  template <class Element, class... Values>
  void construct(Element* at, Values&&... values) {
    ::new (static_cast<void*>(at)) Element(std::forward<Values>(values)...);
  }
  bool operator==(const LargePages&) const { return true; }

 private:
  static constexpr size_t kPage = size_t{1} << 21;
  static constexpr size_t kFewest = 2;
};

}  // namespace tutti::metrics

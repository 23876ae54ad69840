// Memory that begins a cache line.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace warpwatch {

template <class T>
struct LineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};

  LineAllocator() = default;
  template <class Other>
  LineAllocator(const LineAllocator<Other>&) {}
  T* allocate(std::size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), kLine)); }
  void deallocate(T* from, std::size_t) { ::operator delete(from, kLine); }
  bool operator==(const LineAllocator&) const = default;
};

// For what a thread keeps: where a std::vector begins within a line is chance, and loops over it take a tenth longer in some processes.
// What each call takes anew comes faster from malloc.
template <class T>
using LineVector = std::vector<T, LineAllocator<T>>;

}  // namespace warpwatch

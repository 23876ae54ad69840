// Vectors of a CPU that lie anywhere, and memory in which none lies in two cache lines.
#pragma once

#include <cstddef>
#include <cstring>
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

// Begins a cache line, for memory that a thread keeps. Else where it begins is chance, and loops over it take a tenth longer in some
// processes. What each call takes anew comes faster from malloc.
template <class T>
using LineVector = std::vector<T, LineAllocator<T>>;

// Copied, since a vector type that is a template's argument forgets that it may lie anywhere.

template <class Lane, class T>
Lane load(const T* from) {
  Lane value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class Lane, class T>
void store(T* to, Lane value) {
  std::memcpy(to, &value, sizeof value);
}

}  // namespace warpwatch

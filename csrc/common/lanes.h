// Vectors that lie anywhere. Copied, since a vector type that is a template's argument forgets that it may.
#pragma once

#include <cstring>

namespace warpwatch {

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

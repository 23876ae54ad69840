// A library that torch has loaded already: no header of it is needed, and nothing is linked against it.
#pragma once

#include <dlfcn.h>

#include <initializer_list>

#include "common/tensor.h"

namespace warpwatch {

class Loaded {
 public:
  // The first of the files that is loaded, or the process itself. `title` is the name in messages.
  Loaded(const char* title, std::initializer_list<const char*> files) : title_(title) {
    for (const char* file : files)
      if (void* found = dlopen(file, RTLD_NOLOAD | RTLD_LAZY)) {
        handle_ = found;
        break;
      }
  }

  template <class Function>
  void find(const char* name, Function& function) const {
    function = reinterpret_cast<Function>(dlsym(handle_, name));
    STD_TORCH_CHECK(function != nullptr, title_, " has no ", name, ": is it loaded?");
  }

 private:
  const char* title_;
  void* handle_ = RTLD_DEFAULT;
};

}  // namespace warpwatch

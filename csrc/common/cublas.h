// cuBLAS as torch has loaded it already: no header of it is needed, and none of its libraries is linked.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "common/loaded.h"
#include "common/tensor.h"

namespace warpwatch::cublas {

using Handle = void*;

// Numbers of cublasOperation_t, cudaDataType and cublasComputeType_t.
enum Operation : int { kNone = 0, kTransposed = 1 };
enum Type : int { kFloat = 0, kDouble = 1, kHalf = 2, kBFloat16 = 14 };
enum Compute : int { kIn32 = 68, kIn64 = 70, kInTf32 = 77 };
constexpr int kDefaultAlgorithm = -1;

// What NVIDIA recommends for Hopper; older cards need less.
constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

struct Api {
  int (*create)(Handle*) = nullptr;
  int (*destroy)(Handle) = nullptr;
  int (*set_stream)(Handle, void*) = nullptr;
  int (*set_workspace)(Handle, void*, size_t) = nullptr;
  int (*gemm)(Handle, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int, const void*, void*,
              int, int, int, int) = nullptr;
  int (*gemm_batched)(Handle, int, int, int, int, int, const void*, const void*, int, int, long long, const void*, int, int,
                      long long, const void*, void*, int, int, long long, int, int, int) = nullptr;
};

inline const Api& api() {
  static const Api functions = [] {
    Api a;
    const Loaded library("cuBLAS", {"libcublas.so.13", "libcublas.so.12"});
    library.find("cublasCreate_v2", a.create);
    library.find("cublasDestroy_v2", a.destroy);
    library.find("cublasSetStream_v2", a.set_stream);
    library.find("cublasSetWorkspace_v2", a.set_workspace);
    library.find("cublasGemmEx", a.gemm);
    library.find("cublasGemmStridedBatchedEx", a.gemm_batched);
    return a;
  }();
  return functions;
}

inline void check(int status, const char* what) { STD_TORCH_CHECK(status == 0, what, " failed with cuBLAS status ", status); }

// Handles are created once per thread and device, since creating one allocates memory and waits for the GPU. A thread that ends
// leaves its handles to the next one. Destroying them is left to close(), which must run before the CUDA runtime shuts down:
// destructors of static objects may come after it.
class Pool {
 public:
  Handle take(int device) {
    Mine& mine = of_this_thread();
    if (mine.generation != generation_) mine = Mine{this, generation_, {}};
    Handle& handle = mine.handles[device];
    if (handle == nullptr) handle = idle_or_new(device);
    return handle;
  }

  // Handles that exist now.
  int64_t size() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return static_cast<int64_t>(all_.size());
  }

  void close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Handle handle : all_) api().destroy(handle);
    all_.clear();
    idle_.clear();
    ++generation_;
  }

 private:
  struct Mine {
    Pool* pool = nullptr;
    uint64_t generation = 0;
    std::map<int, Handle> handles;
    ~Mine() {
      if (pool != nullptr) pool->give_back(*this);
    }
  };

  static Mine& of_this_thread() {
    static thread_local Mine mine;
    return mine;
  }

  Handle idle_or_new(int device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<Handle>& idle = idle_[device];
    if (!idle.empty()) {
      Handle handle = idle.back();
      idle.pop_back();
      return handle;
    }
    Handle handle = nullptr;
    check(api().create(&handle), "cublasCreate");
    all_.push_back(handle);
    return handle;
  }

  void give_back(const Mine& mine) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (mine.generation != generation_) return;
    for (const auto& [device, handle] : mine.handles)
      if (handle != nullptr) idle_[device].push_back(handle);
  }

  std::mutex mutex_;
  std::atomic<uint64_t> generation_{1};
  std::vector<Handle> all_;
  std::map<int, std::vector<Handle>> idle_;
};

// Never destroyed: threads that end after main() give their handles back to it.
inline Pool& pool() {
  static Pool* const the_pool = new Pool;
  return *the_pool;
}

// This thread's handle, on the stream that torch launches on now, with `workspace` as its only scratch memory. That comes from
// torch for each call anew: a captured graph then owns what it replays with, and two streams never share it.
inline Handle handle_for(const Tensor& tensor, Tensor& workspace, void* stream) {
  Handle handle = pool().take(tensor.get_device_index());
  // Setting the stream takes the workspace back, so it comes first.
  check(api().set_stream(handle, stream), "cublasSetStream");
  check(api().set_workspace(handle, workspace.mutable_data_ptr(), kWorkspaceBytes), "cublasSetWorkspace");
  return handle;
}

inline Tensor new_workspace(const Tensor& like) {
  const std::vector<int64_t> size{kWorkspaceBytes};
  return torch::stable::new_empty(like, size, ScalarType::Byte);
}

// One operand of op(A) op(B) for row-major matrices: rows lie `stride` apart, matrices of the batch `batch` elements.
struct Operand {
  const void* data;
  bool transposed;
  int64_t stride, batch;
};

// C, contiguous and row-major, of (batch, m, n).
struct Product {
  int64_t batch, m, n, k;
  Operand a, b;
  void* c;
  Type type;
  Compute compute;
};

// cuBLAS counts columns first and so sees every row-major matrix transposed: it is asked for C' = op(B)' op(A)'.
inline void multiply(Handle handle, const Product& p) {
  for (int64_t extent : {p.batch, p.m, p.n, p.k, p.a.stride, p.b.stride})
    STD_TORCH_CHECK(extent <= INT32_MAX, "cuBLAS takes extents below 2^31, not ", extent);
  const float one = 1, zero = 0;
  const double one64 = 1, zero64 = 0;
  const void* alpha = p.type == kDouble ? static_cast<const void*>(&one64) : &one;
  const void* beta = p.type == kDouble ? static_cast<const void*>(&zero64) : &zero;
  const int m = static_cast<int>(p.m), n = static_cast<int>(p.n), k = static_cast<int>(p.k), batch = static_cast<int>(p.batch);
  const int lda = static_cast<int>(p.a.stride), ldb = static_cast<int>(p.b.stride);
  const int op_a = p.a.transposed ? kTransposed : kNone, op_b = p.b.transposed ? kTransposed : kNone;
  if (batch == 1) {
    check(api().gemm(handle, op_b, op_a, n, m, k, alpha, p.b.data, p.type, ldb, p.a.data, p.type, lda, beta, p.c, p.type, n,
                     p.compute, kDefaultAlgorithm),
          "cublasGemmEx");
  } else {
    check(api().gemm_batched(handle, op_b, op_a, n, m, k, alpha, p.b.data, p.type, ldb, p.b.batch, p.a.data, p.type, lda,
                             p.a.batch, beta, p.c, p.type, n, p.m * p.n, batch, p.compute, kDefaultAlgorithm),
          "cublasGemmStridedBatchedEx");
  }
}

}  // namespace warpwatch::cublas

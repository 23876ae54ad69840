// cuSPARSE, from the library that torch has already loaded: inspected once per plan, executed many times. No header of it is
// included, and no library linked.
//
// A plan owns only descriptors, a few hundred bytes of host memory. The caller passes the work buffers as tensors, so no call
// allocates memory that it would have to free.
#if !defined(WARPWATCH_NO_CUDA)

#include <map>
#include <mutex>
#include <tuple>

#include "common/loaded.h"
#include "common/tensor.h"

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

using Handle = void*;
using Descriptor = void*;

// Numbers of cusparse.h and library_types.h.
enum Operation : int { kNone = 0, kTransposed = 1 };
constexpr int kIndex32 = 2, kBaseZero = 0, kRowMajor = 2, kFloat = 0, kDouble = 1, kDefault = 0;

struct Api {
  int (*create)(Handle*);
  int (*set_stream)(Handle, void*);
  int (*create_csr)(Descriptor*, int64_t, int64_t, int64_t, void*, void*, void*, int, int, int, int);
  int (*set_csr)(Descriptor, void*, void*, void*);
  int (*destroy_csr)(Descriptor);
  int (*create_dense)(Descriptor*, int64_t, int64_t, int64_t, void*, int, int);
  int (*set_dense)(Descriptor, void*);
  int (*destroy_dense)(Descriptor);
  int (*product_size)(Handle, int, int, const void*, Descriptor, Descriptor, const void*, Descriptor, int, int, size_t*);
  int (*product_preprocess)(Handle, int, int, const void*, Descriptor, Descriptor, const void*, Descriptor, int, int, void*);
  int (*product)(Handle, int, int, const void*, Descriptor, Descriptor, const void*, Descriptor, int, int, void*);
  int (*sampled_size)(Handle, int, int, const void*, Descriptor, Descriptor, const void*, Descriptor, int, int, size_t*);
  int (*sampled_preprocess)(Handle, int, int, const void*, Descriptor, Descriptor, const void*, Descriptor, int, int, void*);
  int (*sampled)(Handle, int, int, const void*, Descriptor, Descriptor, const void*, Descriptor, int, int, void*);
};

const Api& api() {
  static const Api functions = [] {
    Api a{};
    const warpwatch::Loaded library("cuSPARSE", {"libcusparse.so.12"});
    library.find("cusparseCreate", a.create);
    library.find("cusparseSetStream", a.set_stream);
    library.find("cusparseCreateCsr", a.create_csr);
    library.find("cusparseCsrSetPointers", a.set_csr);
    library.find("cusparseDestroySpMat", a.destroy_csr);
    library.find("cusparseCreateDnMat", a.create_dense);
    library.find("cusparseDnMatSetValues", a.set_dense);
    library.find("cusparseDestroyDnMat", a.destroy_dense);
    library.find("cusparseSpMM_bufferSize", a.product_size);
    library.find("cusparseSpMM_preprocess", a.product_preprocess);
    library.find("cusparseSpMM", a.product);
    library.find("cusparseSDDMM_bufferSize", a.sampled_size);
    library.find("cusparseSDDMM_preprocess", a.sampled_preprocess);
    library.find("cusparseSDDMM", a.sampled);
    return a;
  }();
  return functions;
}

void check(int status, const char* what) { STD_TORCH_CHECK(status == 0, what, " failed with cuSPARSE status ", status); }

// Where alpha and beta lie on the host, in the type of the values.
struct Scalars {
  float one = 1, zero = 0;
  double one64 = 1, zero64 = 0;
  bool wide;
  const void* alpha() const { return wide ? static_cast<const void*>(&one64) : &one; }
  const void* beta() const { return wide ? static_cast<const void*>(&zero64) : &zero; }
};

struct Pointers {
  const void *crow, *col, *values;
  bool operator==(const Pointers&) const = default;
};

struct Plan {
  Descriptor a = nullptr, gradient = nullptr, tall = nullptr, wide = nullptr;  // tall: m x n, like y. wide: k x n, like b.
  Pointers of_a;
  int64_t m, k, nnz, n;
  int type, algorithm;
};

// One handle per device, made when it is first needed and kept: the driver takes it back when the process ends.
// A thread may come back while it holds the lock: an allocation can run Python, whose garbage collector forgets plans.
std::recursive_mutex lock;
std::map<int, Handle> handles;
std::map<int64_t, Plan> plans;
int64_t last_plan = 0;

// The caller holds the lock while it uses the handle, since a handle has one stream at a time.
Handle handle_for(const Tensor& tensor) {
  Handle& handle = handles[tensor.get_device_index()];
  if (handle == nullptr) check(api().create(&handle), "cusparseCreate");
  check(api().set_stream(handle, warpwatch::current_stream(tensor)), "cusparseSetStream");
  return handle;
}

Plan& plan_of(int64_t number) {
  const auto found = plans.find(number);
  STD_TORCH_CHECK(found != plans.end(), "there is no cuSPARSE plan ", number);
  return found->second;
}

void* pointer(const Tensor& tensor) { return const_cast<void*>(tensor.const_data_ptr()); }

Tensor bytes_like(const Tensor& like, size_t count) {
  // cuSPARSE requires an address even where it needs no memory.
  const int64_t size[] = {static_cast<int64_t>(count) + 1};
  return torch::stable::new_empty(like, {size, 1}, ScalarType::Byte);
}

// The addresses of A's arrays. Setting the same ones again might discard the result of preprocessing.
void point_at(Plan& plan, const Tensor& crow, const Tensor& col, const Tensor& values) {
  const Pointers now{pointer(crow), pointer(col), pointer(values)};
  if (now == plan.of_a) return;
  check(api().set_csr(plan.a, pointer(crow), pointer(col), pointer(values)), "cusparseCsrSetPointers");
  plan.of_a = now;
}

void require_packed(std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* tensor : tensors) STD_TORCH_CHECK(tensor->is_contiguous(), "cuSPARSE's operands must be contiguous");
}

void destroy(const Plan& plan) {
  for (Descriptor sparse : {plan.a, plan.gradient})
    if (sparse != nullptr) api().destroy_csr(sparse);
  for (Descriptor dense : {plan.tall, plan.wide})
    if (dense != nullptr) api().destroy_dense(dense);
}

void describe(Plan& plan, const Tensor& crow, const Tensor& col, const Tensor& values, const Tensor& b, const Tensor& y) {
  for (Descriptor* sparse : {&plan.a, &plan.gradient})
    check(api().create_csr(sparse, plan.m, plan.k, plan.nnz, pointer(crow), pointer(col), pointer(values), kIndex32, kIndex32,
                           kBaseZero, plan.type),
          "cusparseCreateCsr");
  check(api().create_dense(&plan.wide, plan.k, plan.n, plan.n, pointer(b), plan.type, kRowMajor), "cusparseCreateDnMat");
  check(api().create_dense(&plan.tall, plan.m, plan.n, plan.n, pointer(y), plan.type, kRowMajor), "cusparseCreateDnMat");
}

// The buffers of y = A b, of A' g and of the sampled product; the last two are empty unless gradients are wanted.
std::tuple<Tensor, Tensor, Tensor> preprocess(const Plan& plan, Handle handle, const Tensor& like, bool gradients) {
  const Scalars s{.wide = plan.type == kDouble};
  size_t forward = 0, back = 0, sampled = 0;
  check(api().product_size(handle, kNone, kNone, s.alpha(), plan.a, plan.wide, s.beta(), plan.tall, plan.type, plan.algorithm,
                           &forward),
        "cusparseSpMM_bufferSize");
  Tensor for_product = bytes_like(like, forward);
  check(api().product_preprocess(handle, kNone, kNone, s.alpha(), plan.a, plan.wide, s.beta(), plan.tall, plan.type, plan.algorithm,
                                 pointer(for_product)),
        "cusparseSpMM_preprocess");
  if (gradients) {
    check(api().product_size(handle, kTransposed, kNone, s.alpha(), plan.a, plan.tall, s.beta(), plan.wide, plan.type, kDefault,
                             &back),
          "cusparseSpMM_bufferSize");
    check(api().sampled_size(handle, kNone, kTransposed, s.alpha(), plan.tall, plan.wide, s.beta(), plan.gradient, plan.type,
                             kDefault, &sampled),
          "cusparseSDDMM_bufferSize");
  }
  Tensor for_transposed = bytes_like(like, back), for_sampled = bytes_like(like, sampled);
  if (gradients)
    check(api().sampled_preprocess(handle, kNone, kTransposed, s.alpha(), plan.tall, plan.wide, s.beta(), plan.gradient, plan.type,
                                   kDefault, pointer(for_sampled)),
          "cusparseSDDMM_preprocess");
  return {for_product, for_transposed, for_sampled};
}

std::tuple<int64_t, Tensor, Tensor, Tensor> cusparse_plan(const Tensor& crow, const Tensor& col, const Tensor& values,
                                                          const Tensor& b, int64_t algorithm, bool gradients) {
  require_packed({&crow, &col, &values, &b});
  const warpwatch::DeviceGuard guard(b.get_device_index());
  const std::lock_guard<std::recursive_mutex> guarded(lock);
  Plan plan{.of_a = {pointer(crow), pointer(col), pointer(values)},
            .m = crow.numel() - 1,
            .k = b.size(0),
            .nnz = col.numel(),
            .n = b.size(1),
            .type = b.scalar_type() == ScalarType::Double ? kDouble : kFloat,
            .algorithm = static_cast<int>(algorithm)};
  const int64_t size[] = {plan.m, plan.n};
  const Tensor y = torch::stable::new_empty(b, {size, 2});
  try {
    describe(plan, crow, col, values, b, y);
    const auto [forward, back, sampled] = preprocess(plan, handle_for(b), b, gradients);
    plans[++last_plan] = plan;
    return {last_plan, forward, back, sampled};
  } catch (...) {
    destroy(plan);
    throw;
  }
}

Tensor cusparse(const Tensor& crow, const Tensor& col, const Tensor& values, const Tensor& b, const Tensor& buffer,
                int64_t number) {
  require_packed({&crow, &col, &values, &b});
  const warpwatch::DeviceGuard guard(b.get_device_index());
  const std::lock_guard<std::recursive_mutex> guarded(lock);
  Plan& plan = plan_of(number);
  point_at(plan, crow, col, values);
  const int64_t size[] = {plan.m, plan.n};
  Tensor y = torch::stable::new_empty(b, {size, 2});
  check(api().set_dense(plan.wide, pointer(b)), "cusparseDnMatSetValues");
  check(api().set_dense(plan.tall, pointer(y)), "cusparseDnMatSetValues");
  const Scalars s{.wide = plan.type == kDouble};
  check(api().product(handle_for(b), kNone, kNone, s.alpha(), plan.a, plan.wide, s.beta(), plan.tall, plan.type, plan.algorithm,
                      pointer(buffer)),
        "cusparseSpMM");
  return y;
}

Tensor cusparse_transposed(const Tensor& crow, const Tensor& col, const Tensor& values, const Tensor& g_given, const Tensor& buffer,
                           int64_t number, int64_t k) {
  require_packed({&crow, &col, &values});
  const warpwatch::DeviceGuard guard(g_given.get_device_index());
  const Tensor g = warpwatch::contiguous(g_given);
  const std::lock_guard<std::recursive_mutex> guarded(lock);
  Plan& plan = plan_of(number);
  STD_TORCH_CHECK(k == plan.k, "the plan is for another shape");
  point_at(plan, crow, col, values);
  const int64_t size[] = {plan.k, plan.n};
  Tensor d = torch::stable::new_empty(g, {size, 2});
  check(api().set_dense(plan.tall, pointer(g)), "cusparseDnMatSetValues");
  check(api().set_dense(plan.wide, pointer(d)), "cusparseDnMatSetValues");
  const Scalars s{.wide = plan.type == kDouble};
  check(api().product(handle_for(g), kTransposed, kNone, s.alpha(), plan.a, plan.tall, s.beta(), plan.wide, plan.type, kDefault,
                      pointer(buffer)),
        "cusparseSpMM");
  return d;
}

Tensor cusparse_sampled(const Tensor& crow, const Tensor& col, const Tensor& g_given, const Tensor& b, const Tensor& buffer,
                        int64_t number) {
  require_packed({&crow, &col, &b});
  const warpwatch::DeviceGuard guard(b.get_device_index());
  const Tensor g = warpwatch::contiguous(g_given);
  const std::lock_guard<std::recursive_mutex> guarded(lock);
  Plan& plan = plan_of(number);
  const int64_t size[] = {plan.nnz};
  // It adds to beta times the old contents, and zero times NaN is NaN.
  Tensor d = torch::stable::new_zeros(b, {size, 1});
  check(api().set_csr(plan.gradient, pointer(crow), pointer(col), pointer(d)), "cusparseCsrSetPointers");
  check(api().set_dense(plan.tall, pointer(g)), "cusparseDnMatSetValues");
  check(api().set_dense(plan.wide, pointer(b)), "cusparseDnMatSetValues");
  const Scalars s{.wide = plan.type == kDouble};
  check(api().sampled(handle_for(b), kNone, kTransposed, s.alpha(), plan.tall, plan.wide, s.beta(), plan.gradient, plan.type,
                      kDefault, pointer(buffer)),
        "cusparseSDDMM");
  return d;
}

void cusparse_forget(int64_t number) {
  const std::lock_guard<std::recursive_mutex> guarded(lock);
  const auto found = plans.find(number);
  if (found == plans.end()) return;
  destroy(found->second);
  plans.erase(found);
}

int64_t cusparse_plans() {
  const std::lock_guard<std::recursive_mutex> guarded(lock);
  return static_cast<int64_t>(plans.size());
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(warpwatch, m) {
  m.def(
      "spmm_cusparse_plan(Tensor crow, Tensor col, Tensor values, Tensor b, int algorithm, bool gradients)"
      " -> (int, Tensor, Tensor, Tensor)");
  m.def("spmm_cusparse(Tensor crow, Tensor col, Tensor values, Tensor b, Tensor(a!) buffer, int plan) -> Tensor");
  m.def("spmm_cusparse_transposed(Tensor crow, Tensor col, Tensor values, Tensor g, Tensor(a!) buffer, int plan, int k) -> Tensor");
  m.def("spmm_cusparse_sampled(Tensor crow, Tensor col, Tensor g, Tensor b, Tensor(a!) buffer, int plan) -> Tensor");
  m.def("spmm_cusparse_forget(int plan) -> ()");
  m.def("spmm_cusparse_plans() -> int");
}

STABLE_TORCH_LIBRARY_IMPL(warpwatch, CompositeExplicitAutograd, m) {
  m.impl("spmm_cusparse_forget", TORCH_BOX(&cusparse_forget));
  m.impl("spmm_cusparse_plans", TORCH_BOX(&cusparse_plans));
}

STABLE_TORCH_LIBRARY_IMPL(warpwatch, CUDA, m) {
  m.impl("spmm_cusparse_plan", TORCH_BOX(&cusparse_plan));
  m.impl("spmm_cusparse", TORCH_BOX(&cusparse));
  m.impl("spmm_cusparse_transposed", TORCH_BOX(&cusparse_transposed));
  m.impl("spmm_cusparse_sampled", TORCH_BOX(&cusparse_sampled));
}

#endif

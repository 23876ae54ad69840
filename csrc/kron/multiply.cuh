// D[q, p] += sum over k of Q[k, q] * P[p, k] for operands in shared memory: the product that every stage is made of, forward and
// backward and for weights. P is contiguous along k, Q along q, and D is handed out in packs along p.
//
// Elements lie in 16-byte units whose order is permuted by an exclusive-or with a key, so that the lanes of a warp, which read
// the same unit of different rows, find them in different banks. A product defines the key for a row of P and of Q.
#pragma once

#include "kron/device.cuh"

namespace kron {

// Place of unit `unit` of row `row`, when a row has 1 << Log units.
template <int Log>
__device__ constexpr int place(int row, int unit, int key) {
  if constexpr (Log >= 3) return (row << Log) + (unit ^ key);
  return ((row << Log) + unit) ^ key;
}

__host__ __device__ constexpr int log2_of(int value) { return value <= 1 ? 0 : 1 + log2_of(value / 2); }
__host__ __device__ constexpr int smaller(int a, int b) { return a < b ? a : b; }

// On CUDA cores. Each thread computes TQ x TP elements of D, in which every operand it loads is used TQ or TP times. When D is too
// small for all threads, they form teams that each add up every Teams-th vector of k; `each_settled` adds the teams' sums.
template <class Element, int QN, int PN, int Threads, int TQ, int TP>
struct CudaCores {
  using T = Element;
  static constexpr int V = kVector<T>;
  static constexpr int kWidth = V;  // Elements of a pack.
  static constexpr int kSize = QN * PN, kRow = PN;
  static constexpr int kPs = PN / TP, kQs = QN / TQ;  // Threads of a team along p and q.
  static constexpr int kTeam = kPs * kQs, kTeams = Threads / kTeam;
  // A warp is at most 8 x 4 threads, the shape with the fewest different rows.
  static constexpr int kWarpP = smaller(kPs, 32 / smaller(kQs, 4)), kWarpQ = smaller(kQs, 32 / kWarpP);
  static constexpr int kLanes = kWarpP * kWarpQ;
  static_assert(kTeam * kTeams == Threads && kTeam % kLanes == 0 && TQ % V == 0 && TP % V == 0);

  T sum[TQ][TP] = {};
  int q0, p0, team;

  static __device__ int p_key(int row) { return (row / V) & 7; }
  static __device__ int q_key(int k) { return (k / V) & 7; }

  __device__ explicit CudaCores(int thread) {
    team = kTeams == 1 ? 0 : thread / kTeam;
    const int lane = thread % kLanes, warp = thread % kTeam / kLanes;
    int p = lane % kWarpP, q = lane / kWarpP;
    if constexpr (kWarpP > 1 && kWarpQ > 1) {
      // Interleaved, so that neighbouring lanes share addresses and the memory serves them together.
      p = (lane & 1) | (lane / 4 % (kWarpP / 2)) << 1;
      q = (lane / 2 & 1) | (lane / 4 / (kWarpP / 2)) << 1;
    }
    p0 = warp % (kPs / kWarpP) * (kWarpP * TP) + p * V;
    q0 = warp / (kPs / kWarpP) * (kWarpQ * TQ) + q * V;
  }

  __device__ int p_of(int i) const { return p0 + i / V * (kWarpP * V) + i % V; }
  __device__ int q_of(int i) const { return q0 + i / V * (kWarpQ * V) + i % V; }

  // p.unit(row, j, u) is the vector of P's row `row` + j at k = u * V; q.unit(u, j, column) that of Q's row k = u * V + j. Rows and
  // columns are multiples of V and j is less: told apart, the key of neighbouring rows is computed once and j costs nothing.
  template <int Depth, class P, class Q>
  __device__ void add(const P& p, const Q& q) {
    static_assert(Depth % (V * kTeams) == 0);
#pragma unroll(Depth / (V * kTeams) <= 4 ? Depth / (V * kTeams) : 2)
    for (int step = 0; step < Depth / (V * kTeams); ++step) {
      const int u = step * kTeams + team;
      Pack<T, V> row[TP];
#pragma unroll
      for (int i = 0; i < TP; ++i) row[i] = p.unit(p_of(i - i % V), i % V, u);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        Pack<T, V> column[TQ / V];
#pragma unroll
        for (int i = 0; i < TQ / V; ++i) column[i] = q.unit(u, j, q_of(i * V));
#pragma unroll
        for (int i = 0; i < TP; ++i)
#pragma unroll
          for (int k = 0; k < TQ; ++k) {
            // To and fro: an instruction that shares an operand with the one before reads two registers instead of three, and two that
            // lie in one bank cost a cycle. In this order the compiler finds the fewest such pairs.
            const int b = j % 2 ? TP - 1 - i : i, a = (i + j) % 2 ? TQ - 1 - k : k;
            sum[a][b] += column[a / V].at[a % V] * row[b].at[j];
          }
      }
    }
  }

  // take(q, p, pack) for all of this thread's elements.
  template <class Take>
  __device__ void each(const Take& take) const {
#pragma unroll
    for (int a = 0; a < TQ; ++a)
#pragma unroll
      for (int b = 0; b < TP; b += V) {
        Pack<T, V> pack;
#pragma unroll
        for (int j = 0; j < V; ++j) pack.at[j] = sum[a][b + j];
        take(q_of(a), p_of(b), pack);
      }
  }
};

// On tensor cores, tf32 for float and full precision for double. Each warp computes WQ x WP elements of D; teams as above, of warps.
template <class Element, int QN, int PN, int Threads, int WQ, int WP>
struct TensorCores {
  using T = Element;
  static constexpr int V = kVector<T>;
  static constexpr int kWidth = 2;
  static constexpr int kSize = QN * PN, kRow = PN;
  static constexpr int kPs = PN / WP, kQs = QN / WQ;
  static constexpr int kTeam = kPs * kQs * 32, kTeams = Threads / kTeam;
  static_assert(kTeam * kTeams == Threads && WQ % 16 == 0 && WP % 8 == 0);

  T sum[WQ / 16][WP / 8][4] = {};
  int q0, p0, team, g, t;

  // A warp reads 8 rows x 1 unit of P in float; 4 rows x 2 units at a time in double, and of Q in both.
  static __device__ int p_key(int row) { return sizeof(T) == 4 ? row & 7 : (row & 3) << 1; }
  static __device__ int q_key(int k) { return (k & 3) << 1; }

  __device__ explicit TensorCores(int thread) {
    team = kTeams == 1 ? 0 : thread / kTeam;
    const int warp = thread % kTeam / 32;
    g = thread % 32 / 4;
    t = thread % 4;
    p0 = warp % kPs * WP;
    q0 = warp / kPs * WQ;
  }

  // p.element(row, g, k, t) is P at (row + g, k + t), q.element(k, t, column, g) is Q at (k + t, column + g); rows and columns are
  // multiples of 8 and k of 4, so that the keys depend on the lane alone.
  template <int Depth, class P, class Q>
  __device__ void add(const P& p, const Q& q) {
    static_assert(Depth % (8 * kTeams) == 0);
#pragma unroll(Depth / (8 * kTeams) <= 4 ? Depth / (8 * kTeams) : 1)
    for (int step = 0; step < Depth / (8 * kTeams); ++step) {
      const int k = (step * kTeams + team) * 8;
      T a[WQ / 16][4], b[WP / 8][2];
#pragma unroll
      for (int i = 0; i < WQ / 16; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) a[i][e] = q.element(k + e / 2 * 4, t, q0 + i * 16 + e % 2 * 8, g);
#pragma unroll
      for (int i = 0; i < WP / 8; ++i)
#pragma unroll
        for (int e = 0; e < 2; ++e) b[i][e] = p.element(p0 + i * 8, g, k + e * 4, t);
#pragma unroll
      for (int i = 0; i < WQ / 16; ++i)
#pragma unroll
        for (int j = 0; j < WP / 8; ++j) tensor_product(sum[i][j], a[i], b[j]);
    }
  }

  template <class Take>
  __device__ void each(const Take& take) const {
#pragma unroll
    for (int i = 0; i < WQ / 16; ++i)
#pragma unroll
      for (int j = 0; j < WP / 8; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          take(q0 + i * 16 + g + half * 8, p0 + j * 8 + 2 * t, Pack<T, 2>{sum[i][j][2 * half], sum[i][j][2 * half + 1]});
  }
};

// Elements of shared memory that each_settled needs.
template <class Product>
constexpr int kSettling = Product::kTeams == 1 ? 0 : Product::kTeams * Product::kSize;

// take(q, p, pack) for all elements of D, the teams' sums added up through `memory`, which no thread may still be using.
template <class Product, class Take>
__device__ void each_settled(const Product& product, typename Product::T* memory, const Take& take) {
  using T = typename Product::T;
  if constexpr (Product::kTeams == 1) {
    product.each(take);
  } else {
    constexpr int W = Product::kWidth;
    product.each([&](int q, int p, auto pack) {
      *reinterpret_cast<Pack<T, W>*>(memory + product.team * Product::kSize + q * Product::kRow + p) = pack;
    });
    __syncthreads();
    for (int e = threadIdx.x * W; e < Product::kSize; e += Product::kTeam * Product::kTeams * W) {
      Pack<T, W> sum{};
#pragma unroll 4
      for (int team = 0; team < Product::kTeams; ++team) {
        const auto pack = *reinterpret_cast<const Pack<T, W>*>(memory + team * Product::kSize + e);
#pragma unroll
        for (int j = 0; j < W; ++j) sum.at[j] += pack.at[j];
      }
      take(e / Product::kRow, e % Product::kRow, sum);
    }
  }
}

// Place of an element whose column is a multiple of four plus t.
template <class T, int Log>
__device__ T element_at(const T* base, int row, int column, int t, int key) {
  constexpr int V = kVector<T>;
  return base[place<Log>(row, column / V + t / V, key) * V + t % V];
}

// Tiles in shared memory with 1 << Log units per row, read as P or as Q of product C, from column `first` on.
template <class C, int Log>
struct TileP {
  using T = typename C::T;
  const T* base;
  int first = 0;

  __device__ Pack<T, kVector<T>> unit(int row, int j, int u) const {
    const auto* units = reinterpret_cast<const Pack<T, kVector<T>>*>(base);
    const int at = u + first / kVector<T>, key = C::p_key(row);
    if constexpr (Log >= 3) return units[place<Log>(row, at, key) + (j << Log)];
    return units[place<Log>(row + j, at, key)];
  }
  __device__ T element(int row, int g, int k, int t) const {
    return element_at<T, Log>(base, row + g, k + first, t, C::p_key(g));
  }
};

template <class C, int Log>
struct TileQ {
  using T = typename C::T;
  const T* base;
  int first = 0;

  __device__ Pack<T, kVector<T>> unit(int u, int j, int column) const {
    const auto* units = reinterpret_cast<const Pack<T, kVector<T>>*>(base);
    const int row = u * kVector<T>, at = (column + first) / kVector<T>, key = C::q_key(row);
    if constexpr (Log >= 3) return units[place<Log>(row, at, key) + (j << Log)];
    return units[place<Log>(row + j, at, key)];
  }
  __device__ T element(int k, int t, int column, int g) const {
    constexpr int V = kVector<T>;
    return base[place<Log>(k + t, (column + first) / V + g / V, C::q_key(t)) * V + g % V];
  }
};

}  // namespace kron

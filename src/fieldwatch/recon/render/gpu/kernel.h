/* GPU kernels from one source: NVRTC compiles it for a GPU, a C++ compiler turns it into loops on a CPU.
 *
 * A kernel is written in this subset of CUDA C++:
 *
 *     #define SCALE_THREADS 128
 *     KERNEL(scale, SCALE_THREADS, int count, float factor, const float *in, float *out) {
 *         PHASE {
 *             const int64_t i = (int64_t)BLOCK * SCALE_THREADS + THREAD;
 *             if (i >= count) continue;
 *             out[i] = factor * in[i];
 *         }
 *     }
 *
 *  - A kernel is a sequence of phases. Every thread of a block runs a phase, then all wait for each other. `continue`
 *    ends a thread's part of a phase; `break` and `return` out of a phase are wrong, and the emulation stops at them.
 *  - Outside phases, code is the same for all threads of a block: loops around phases, pointers, constants of the block.
 *    It may not use THREAD. It reads shared memory by UNIFORM(expression), which waits for all threads after the read.
 *  - SHARED(type, name[size]) is memory of the block. It holds nothing at first. 48 KB is the limit.
 *  - PER_THREAD(type, name) is a variable that lives from phase to phase, and `name[SELF]` is its value in this thread;
 *    PER_THREAD(float, sums, [4]) is an array, and `sums[SELF][2]` is an element.
 *  - DEVICE is a function for kernels. Templates are allowed. A DEVICE function may contain phases.
 *  - Blocks and threads have one dimension: BLOCK, BLOCKS, THREAD. Indices into tensors are 64 bits wide.
 *  - Parameters are numbers (int, int64_t, float, double) and pointers to them or to uint8_t. `const` pointers are read.
 *    A missing tensor is a null pointer. LISTED List<const float *> name, or LISTED List<double> name, is a parameter of up
 *    to MOST_LISTED tensors or numbers, and `name.at[2]` is one of them; those that are not given are null or 0. Without
 *    LISTED, every thread would copy a list whose place is not known to the compiler.
 *  - Atomics exist for integers only: atomicAdd, atomicMax, atomicMin, atomicOr. Sums of floats have a fixed order, so
 *    that results repeat to the bit: they do not depend on the order in which blocks and threads run.
 *  - No warp shuffles, no dynamic shared memory, no library headers. Functions: sqrtf, expf, exp2f, logf, log2f, fabsf,
 *    fminf, fmaxf, floorf, ceilf, rsqrtf, sinf, cosf, tanhf, log1pf, expm1f and their double forms.
 *
 * On a CPU, the blocks and the threads of each phase run forwards (order 0), backwards (1), or in a random order that
 * differs from phase to phase (the seed, 2 or greater). Equal results in several orders mean that no thread reads what
 * another one writes in the same phase. */
#ifndef FIELDWATCH_KERNEL_H
#define FIELDWATCH_KERNEL_H

#define MOST_LISTED 16

template <class T> struct List {
    T at[MOST_LISTED];
};

#ifdef __CUDACC__

typedef unsigned char uint8_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;

#define DEVICE __device__ __forceinline__
#define LISTED const __grid_constant__
#define SHARED(type, ...) __shared__ type __VA_ARGS__
#define PER_THREAD(type, name, ...) type name[1] __VA_ARGS__
#define SELF 0
#define THREAD ((int)threadIdx.x)
#define BLOCK ((int)blockIdx.x)
#define BLOCKS ((int)gridDim.x)
#define UNROLL _Pragma("unroll")
#define KERNEL(name, threads, ...) extern "C" __global__ void __launch_bounds__(threads) name(__VA_ARGS__)
#define PHASE for (bool turn_ = true; turn_; turn_ = false, __syncthreads())
#define UNIFORM(expression) uniform_(expression)

template <class T> DEVICE T uniform_(T value) {
    __syncthreads();
    return value;
}

#else

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

namespace emulation {

constexpr int MOST_THREADS = 1024;

struct Machine {
    int block = 0, blocks = 0, thread = -1, threads = 0;
    uint64_t order = 0, chance = 0;
};

static thread_local Machine machine;

/* splitmix64 (Steele 2014). */
static inline uint64_t draw() {
    uint64_t z = machine.chance += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline void arrange(int *places, int count) {
    for (int i = 0; i < count; i++) places[i] = machine.order == 1 ? count - 1 - i : i;
    if (machine.order < 2) return;
    for (int i = count - 1; i > 0; i--) std::swap(places[i], places[draw() % (uint64_t)(i + 1)]);
}

/* The threads of one phase, one after the other. */
class Phase {
  public:
    Phase() { arrange(places, machine.threads); }
    ~Phase() {
        if (next <= machine.threads) std::fputs("a phase was left by break or return\n", stderr), std::abort();
        machine.thread = -1; /* outside phases there is no thread: an index by it would be negative */
    }
    bool turn() {
        if (next == machine.threads) return next++, false;
        machine.thread = places[next++];
        return true;
    }

  private:
    int places[MOST_THREADS], next = 0;
};

template <class... Types, size_t... Places>
void run(void (*kernel)(Types...), int threads, int blocks, uint64_t order, void **arguments,
         std::index_sequence<Places...>) {
    machine = Machine{0, blocks, -1, threads, order, order};
    std::vector<int> places((size_t)blocks);
    arrange(places.data(), blocks);
    for (int block : places) {
        machine.block = block;
        kernel(*static_cast<std::remove_reference_t<Types> *>(arguments[Places])...);
    }
}

template <class... Types>
void run(void (*kernel)(Types...), int threads, int blocks, uint64_t order, void **arguments) {
    run(kernel, threads, blocks, order, arguments, std::index_sequence_for<Types...>());
}

template <class T> T updated(T *at, T value) {
    T before = *at;
    *at = value;
    return before;
}

} // namespace emulation

#define DEVICE static inline
#define LISTED const
#define SHARED(type, ...) type __VA_ARGS__
#define PER_THREAD(type, name, ...) type name[emulation::MOST_THREADS] __VA_ARGS__
#define SELF (emulation::machine.thread)
#define THREAD (emulation::machine.thread)
#define BLOCK (emulation::machine.block)
#define BLOCKS (emulation::machine.blocks)
#define UNROLL
#define PHASE for (emulation::Phase phase_; phase_.turn();)
#define UNIFORM(expression) (expression)
#define KERNEL(name, threads, ...)                                                                     \
    static void name(__VA_ARGS__);                                                                     \
    extern "C" void run_##name(int blocks, uint64_t order, void **arguments) {                         \
        static_assert((threads) <= emulation::MOST_THREADS, "a block has at most 1024 threads");       \
        emulation::run(name, threads, blocks, order, arguments);                                       \
    }                                                                                                  \
    static void name(__VA_ARGS__)

#define atomicAdd(at, value) emulation::add(at, value)
#define atomicMax(at, value) emulation::largest(at, value)
#define atomicMin(at, value) emulation::smallest(at, value)
#define atomicOr(at, value) emulation::either(at, value)

namespace emulation {

template <class T> using Integer = std::enable_if_t<std::is_integral_v<T>, T>;

template <class T> Integer<T> add(T *at, std::common_type_t<T> value) { return updated<T>(at, *at + value); }
template <class T> Integer<T> largest(T *at, std::common_type_t<T> value) {
    return updated<T>(at, *at < value ? value : *at);
}
template <class T> Integer<T> smallest(T *at, std::common_type_t<T> value) {
    return updated<T>(at, value < *at ? value : *at);
}
template <class T> Integer<T> either(T *at, std::common_type_t<T> value) { return updated<T>(at, *at | value); }

} // namespace emulation

static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }

#endif
#endif

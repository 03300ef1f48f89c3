// For the sources that are compiled once for each instruction set: LANES floats to a vector, everything in a namespace of
// its own. Nothing in them may come from a template or an inline function of another header: the linker would keep one
// copy for all, perhaps one that only AVX-512 can run.
#pragma once
#include <cmath>
#include <cstring>

#include "layer.h"
#include "tile.h"

#define JOINED(a, b) a##b
#define NAMESPACE_OF(isa) JOINED(secateur_, isa)

namespace NAMESPACE_OF(ISA) {
namespace {

typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef float Four __attribute__((vector_size(16)));
typedef float Eight __attribute__((vector_size(32)));

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

inline int64_t within(int64_t value, int64_t low, int64_t high) { return value < low ? low : smaller(value, high); }

inline Vector load(const float* from) {
    Vector vector;
    memcpy(&vector, from, sizeof vector);
    return vector;
}

inline Four four(const float* from) {
    Four vector;
    memcpy(&vector, from, sizeof vector);
    return vector;
}

inline void store(float* to, Vector vector) { memcpy(to, &vector, sizeof vector); }

// x · Φ(x), the GELU without shortcuts: relu(x) - z · Φ(-z) with z = |x|. The tail Φ(-z) is computed as a power of two,
// whose exponent a polynomial follows; the result is within 1e-7 of the true one. Beyond WIDEST_TAIL, z · Φ(-z) is less.
template <typename Floats>
inline Floats gelu(Floats x) {
    using Ints = decltype(x < x);
    constexpr float WIDEST_TAIL = 5.6f;
    const Floats zero = {}, size = x < zero ? -x : x, z = size > zero + WIDEST_TAIL ? zero + WIDEST_TAIL : size;
    const Floats exponent =
        -0.99999309f +
        z * (-1.1512017f +
             z * (-0.45877096f + z * (-0.053412125f + z * (0.0080807302f + z * (-0.00076922402f + z * 3.3093325e-5f)))));
    // Its whole part goes into the bits of the exponent, and the rest is within half of 0.
    const Ints whole = __builtin_convertvector(exponent - 0.5f, Ints);
    const Floats rest = exponent - __builtin_convertvector(whole, Floats);
    const Floats two_to_rest =
        1.00000007f +
        rest * (0.69314697f + rest * (0.2402212f + rest * (0.055507136f + rest * (0.0096755357f + rest * 0.0013276329f))));
    Ints bits;
    memcpy(&bits, &two_to_rest, sizeof bits);
    bits += whole << 23;
    Floats tail;
    memcpy(&tail, &bits, sizeof bits);
    return (x < zero ? x * 0.0f : x) - z * tail; // NaN for minus infinity, as in torch
}

inline float gelu(float x) { return gelu(Eight{} + x)[0]; }

// The comparisons are such that NaN stays NaN.
template <typename Number>
inline Number activated(Number value, int64_t activation) {
    if (activation == GELU) return gelu(value);
    const Number zero = {}, six = zero + 6.0f;
    if (activation != NO_ACTIVATION) value = value < zero ? zero : value;
    if (activation == RELU6) value = value > six ? six : value;
    return value;
}

} // namespace
} // namespace secateur_ISA

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
typedef float Eight __attribute__((vector_size(32)));

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

inline int64_t within(int64_t value, int64_t low, int64_t high) { return value < low ? low : smaller(value, high); }

inline Vector load(const float* from) {
    Vector vector;
    memcpy(&vector, from, sizeof vector);
    return vector;
}

inline void store(float* to, Vector vector) { memcpy(to, &vector, sizeof vector); }

// x · Φ(x), the GELU without shortcuts. Of the normal distribution's tail, an approximation of Abramowitz and Stegun
// (7.1.26) is within 1.5e-7.
template <typename Floats>
inline Floats gelu(Floats x) {
    using Ints = decltype(x < x);
    const Floats zero = {};
    const Floats size = x < zero ? -x : x, z = size * 0.70710678f, t = 1.0f / (1.0f + 0.3275911f * z);
    const Floats series =
        t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    // e^(-z²) as a power of two: its whole part goes into the exponent, and the rest is within half of 0.
    Floats power = z * z * -1.44269504f;
    power = power < zero - 126.0f ? zero - 126.0f : power;
    const Ints whole = __builtin_convertvector(power - 0.5f, Ints);
    const Floats rest = power - __builtin_convertvector(whole, Floats);
    const Floats two_to_rest =
        1.0f +
        rest * (0.693147181f +
                rest * (0.240226507f +
                        rest * (0.0555041087f +
                                rest * (0.00961812911f + rest * (0.00133335581f + rest * 0.000154035304f)))));
    Ints bits;
    memcpy(&bits, &two_to_rest, sizeof bits);
    bits += whole << 23;
    Floats exponential;
    memcpy(&exponential, &bits, sizeof bits);
    const Floats tail = size * (0.5f * series * exponential);
    return x < zero ? -tail : x - (size > zero + 20.0f ? zero : tail);
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

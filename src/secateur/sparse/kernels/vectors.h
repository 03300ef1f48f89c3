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

// The comparisons are such that NaN stays NaN.
template <typename Number>
inline Number activated(Number value, int64_t activation) {
    const Number zero = {}, six = zero + 6.0f;
    if (activation) value = value < zero ? zero : value;
    if (activation == 2) value = value > six ? six : value;
    return value;
}

} // namespace
} // namespace secateur_ISA

// What is done plane by plane, compiled once for each instruction set: margins, depthwise convolutions, max pooling.
#include "vectors.h"

namespace NAMESPACE_OF(ISA) {
namespace {

constexpr int WIDEST_OF_TAPS = 4;

// Short lines: a call of memcpy would take longer than the copy.
inline void copy_line(const float* from, float* to, int64_t length) {
    int64_t i = 0;
    for (; i + LANES <= length; i += LANES) store(to + i, load(from + i));
    for (; i < length; i++) to[i] = from[i];
}

inline void zero_line(float* to, int64_t length) {
    for (int64_t i = 0; i < length; i++) to[i] = 0;
}

// Every second number; none past the last of them is read.
inline void copy_alternate(const float* from, float* to, int64_t length) {
    int64_t i = 0;
    for (; i + 8 < length; i += 8) {
        Eight low, high;
        memcpy(&low, from + 2 * i, sizeof low);
        memcpy(&high, from + 2 * i + 8, sizeof high);
        const Eight even = __builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14);
        memcpy(to + i, &even, sizeof even);
    }
    for (; i < length; i++) to[i] = from[2 * i];
}

inline void copy_every(int64_t step, const float* from, float* to, int64_t length) {
    if (step == 1) return copy_line(from, to, length);
    if (step == 2) return copy_alternate(from, to, length);
    for (int64_t i = 0; i < length; i++) to[i] = from[i * step];
}

// Neighbouring pixels of one output row of a depthwise convolution. TAPS is their number, or 0 for any.
template <int VECTORS, int TAPS>
inline void run_of_taps(const Depthwise& d, const float* weights, float bias, const float* inputs, int64_t columns,
                        int64_t at) {
    if constexpr (VECTORS > 1)
        if (columns <= (VECTORS - 1) * LANES)
            return run_of_taps<VECTORS - 1, TAPS>(d, weights, bias, inputs, columns, at);
    Vector sum[VECTORS];
    for (int v = 0; v < VECTORS; v++) sum[v] = Vector{} + bias;
    const int64_t taps = TAPS ? TAPS : d.taps;
#pragma GCC unroll 9
    for (int64_t tap = 0; tap < taps; tap++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) sum[v] += weights[tap] * load(inputs + d.offsets[tap] + v * LANES);
    const int64_t rest = columns - (VECTORS - 1) * LANES; // of the last vector
    float values[LANES] = {};
    if (d.residual) {
        for (int v = 0; v < VECTORS - 1; v++) sum[v] += load(d.residual + at + v * LANES);
        for (int64_t i = 0; i < rest; i++) values[i] = d.residual[at + (VECTORS - 1) * LANES + i];
        sum[VECTORS - 1] += load(values);
    }
    for (int v = 0; v < VECTORS - 1; v++) store(d.output + at + v * LANES, activated(sum[v], d.activation));
    const Vector last = activated(sum[VECTORS - 1], d.activation);
    if (rest == LANES) return store(d.output + at + (VECTORS - 1) * LANES, last);
    store(values, last);
    for (int64_t i = 0; i < rest; i++) d.output[at + (VECTORS - 1) * LANES + i] = values[i];
}

// One plane with its margins, to `to`.
void add_margins_to_plane(const Margins& m, const float* from, float* to) {
    const int64_t row_length = m.phases * m.phase_width;
    for (int64_t phase = 0; phase < m.phases; phase++) {
        const int64_t shift = m.left - phase; // place i holds column i * column_step - shift
        const int64_t before = within((shift + m.column_step - 1) / m.column_step, 0, m.phase_width);
        const int64_t end = (m.width - 1 + shift) / m.column_step + 1;
        const int64_t filled = within(m.width + shift > 0 ? end : 0, before, m.phase_width);
        float* places = to + phase * m.phase_width;
        for (int64_t row = 0, y = -m.top; row < m.out_rows; row++, y += m.row_step, places += row_length) {
            if (y < 0 || y >= m.height) {
                zero_line(places, m.phase_width);
                continue;
            }
            zero_line(places, before);
            const float* line = from + y * m.width + before * m.column_step - shift;
            copy_every(m.column_step, line, places + before, filled - before);
            zero_line(places + filled, m.phase_width - filled);
        }
    }
}

template <int TAPS>
void run_plane(const Depthwise& d, int64_t plane, int64_t input, float* inputs) {
    const int64_t output = plane % d.outputs, first = plane * d.out_height * d.out_width;
    float weights[TAPS ? TAPS : 1];
    for (int64_t tap = 0; tap < TAPS; tap++) weights[tap] = d.weights[output * d.taps + tap];
    const float* used = TAPS ? weights : d.weights + output * d.taps;
    const float bias = d.bias ? d.bias[output] : 0.0f;
    add_margins_to_plane(d.margins, d.margins.input + input * d.margins.height * d.margins.width, inputs);
    for (int64_t row = 0; row < d.out_height; row++)
        for (int64_t x = 0; x < d.out_width; x += WIDEST_OF_TAPS * LANES)
            run_of_taps<WIDEST_OF_TAPS, TAPS>(d, used, bias, inputs + row * d.row_stride + x,
                                              smaller(WIDEST_OF_TAPS * LANES, d.out_width - x),
                                              first + row * d.out_width + x);
}

// NaN is larger than everything, as for torch.
inline float larger(float a, float b) { return b > a || b != b ? b : a; }

} // namespace

void add_margins(const Margins& m, int64_t plane) {
    const int64_t floats = m.out_rows * m.phases * m.phase_width;
    add_margins_to_plane(m, m.input + plane * m.height * m.width, m.output + plane * floats);
}

void run_depthwise(const Depthwise& d, int64_t plane, float* scratch) {
    const int64_t inputs = d.outputs / d.outputs_per_input;
    const int64_t input = plane / d.outputs * inputs + plane % d.outputs / d.outputs_per_input;
    d.taps == 9 ? run_plane<9>(d, plane, input, scratch) : run_plane<0>(d, plane, input, scratch);
}

void take_largest(const Pooling& p, int64_t plane, float* line) {
    const float* from = p.input + plane * p.height * p.width;
    float* to = p.output + plane * p.out_height * p.out_width;
    const int64_t reach = (p.out_width - 1) * p.column_step + p.kernel_width, right = p.left + p.width;
    for (int64_t row = 0; row < p.out_height; row++, to += p.out_width) {
        // First down the columns, where neighbours lie side by side, then along the line.
        for (int64_t x = 0; x < (reach > right ? reach : right); x++) line[x] = -INFINITY;
        const int64_t top = row * p.row_step - p.top;
        for (int64_t y = top < 0 ? 0 : top; y < top + p.kernel_height && y < p.height; y++) {
            const float* input = from + y * p.width;
            for (int64_t x = 0; x < p.width; x++) line[p.left + x] = larger(line[p.left + x], input[x]);
        }
        for (int64_t x = 0; x < p.out_width; x++) to[x] = line[x * p.column_step];
        for (int64_t k = 1; k < p.kernel_width; k++)
            for (int64_t x = 0; x < p.out_width; x++) to[x] = larger(to[x], line[x * p.column_step + k]);
    }
}

} // namespace secateur_ISA

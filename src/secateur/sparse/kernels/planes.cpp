// What is done plane by plane, compiled once for each instruction set: margins, depthwise convolutions, max pooling.
#include "vectors.h"

namespace NAMESPACE_OF(ISA) {
namespace {

constexpr int WIDEST_STRIP = 4; // vectors: their sums and nine weights fit 16 registers

// What is copied at once, here and below.
constexpr int64_t REACH = LANES < 8 ? 8 : LANES;

inline void zero_line(float* to, int64_t length) {
    for (int64_t i = 0; i < length; i++) {
        to[i] = 0;
        asm volatile("" ::: "memory"); // lines are short: calling memset would take longer
    }
}

// Every `step`th number. With `whole`, vectors are read and written past the end.
inline void copy_line(const float* from, float* to, int64_t length, int64_t step, bool whole) {
    int64_t i = 0;
    if (step == 1) {
        for (; whole ? i < length : i + LANES <= length; i += LANES) store(to + i, load(from + i));
    } else if (step == 2) {
        for (; whole ? i < length : i + 8 < length; i += 8) {
            Eight low, high;
            memcpy(&low, from + 2 * i, sizeof low);
            memcpy(&high, from + 2 * i + 8, sizeof high);
            const Eight even = __builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14);
            memcpy(to + i, &even, sizeof even);
        }
    }
    for (; i < length; i++) to[i] = from[i * step];
}

// Neighbouring columns of a depthwise convolution's output, row by row. TAPS is their number, or 0 for any; `at` and `end`
// are places in the output, of the first column and behind the plane.
template <int VECTORS, int TAPS>
void run_strip(const Depthwise& d, const float* weights, float bias, const float* inputs, int64_t columns, int64_t at,
               int64_t end) {
    if constexpr (VECTORS > 1)
        if (columns <= (VECTORS - 1) * LANES)
            return run_strip<VECTORS - 1, TAPS>(d, weights, bias, inputs, columns, at, end);
    // The last vector overlaps the one before it, so that it ends with the strip.
    const int64_t last = columns < LANES ? 0 : columns - LANES;
    const auto place = [last](int v) { return v < VECTORS - 1 ? v * LANES : last; };
    const int64_t taps = TAPS ? TAPS : d.taps;
    for (int64_t row = 0; row < d.out_height; row++, inputs += d.row_stride, at += d.out_width) {
        Vector sum[VECTORS];
        for (int v = 0; v < VECTORS; v++) sum[v] = Vector{} + bias;
#pragma GCC unroll 9
        for (int64_t tap = 0; tap < taps; tap++)
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) sum[v] += weights[tap] * load(inputs + d.offsets[tap] + place(v));
        if (at + LANES <= end || columns >= LANES) {
            // Where a row is shorter than a vector, the next row overwrites what is written past it.
            for (int v = 0; v < VECTORS; v++) {
                if (d.residual) sum[v] += load(d.residual + at + place(v));
                store(d.output + at + place(v), activated(sum[v], d.activation));
            }
        } else {
            for (int64_t i = 0; d.residual && i < columns; i++) sum[0][i] += d.residual[at + i];
            const Vector values = activated(sum[0], d.activation);
            for (int64_t i = 0; i < columns; i++) d.output[at + i] = values[i];
        }
    }
}

// One plane with its margins, to `to`.
void add_margins_to_plane(const Margins& m, const float* from, float* to) {
    const float *from_end = from + m.height * m.width, *to_end = to + m.out_rows * m.phases * m.phase_width;
    const int64_t width = m.phase_width, step = m.column_step;
    for (int64_t row = 0, y = -m.top; row < m.out_rows; row++, y += m.row_step) {
        if (y < 0 || y >= m.height) {
            zero_line(to, m.phases * width);
            to += m.phases * width;
            continue;
        }
        for (const Span* span = m.spans; span < m.spans + m.phases; span++, to += width) {
            const float* line = from + y * m.width + span->start;
            const int64_t before = span->before, filled = span->filled, length = filled - before;
            if (before <= LANES && width - filled <= LANES && line + step * (length + REACH) <= from_end &&
                to + width + REACH <= to_end) {
                // Whatever is written past the end of a part is overwritten by the next.
                store(to, Vector{});
                copy_line(line, to + before, length, step, true);
                store(to + filled, Vector{});
            } else {
                zero_line(to, before);
                copy_line(line, to + before, length, step, false);
                zero_line(to + filled, width - filled);
            }
        }
    }
}

template <int TAPS>
void run_plane(const Depthwise& d, int64_t plane, const float* inputs) {
    const int64_t output = plane % d.outputs, first = plane * d.out_height * d.out_width;
    float weights[TAPS ? TAPS : 1];
    for (int64_t tap = 0; tap < TAPS; tap++) weights[tap] = d.weights[output * d.taps + tap];
    const float* used = TAPS ? weights : d.weights + output * d.taps;
    const float bias = d.bias ? d.bias[output] : 0.0f;
    constexpr int64_t WIDEST = WIDEST_STRIP * LANES;
    for (int64_t next = 0; next < d.out_width; next += WIDEST) {
        // A strip has a whole vector at least, if the row has one.
        const int64_t x = smaller(next, d.out_width < LANES ? 0 : d.out_width - LANES);
        run_strip<WIDEST_STRIP, TAPS>(d, used, bias, inputs + x, smaller(WIDEST, d.out_width - x), first + x,
                                      first + d.out_height * d.out_width);
    }
}

// NaN is larger than everything, as for torch.
inline float larger(float a, float b) { return b > a || b != b ? b : a; }

void take_largest_of_plane(const Pooling& p, int64_t plane, float* line) {
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

} // namespace

void add_margins(const Margins& m, int64_t plane) {
    const int64_t floats = m.out_rows * m.phases * m.phase_width;
    add_margins_to_plane(m, m.input + plane * m.height * m.width, m.output + plane * floats);
}

void run_depthwise(const Depthwise& d, int64_t first, int64_t last, float* scratch) {
    const Margins& m = d.margins;
    const auto add = [&](int64_t plane) {
        const int64_t inputs = d.outputs / d.outputs_per_input;
        const int64_t input = plane / d.outputs * inputs + plane % d.outputs / d.outputs_per_input;
        float* own = scratch + plane % 2 * (m.out_rows * m.phases * m.phase_width + ROOM_BEHIND);
        add_margins_to_plane(m, m.input + input * m.height * m.width, own);
        return own;
    };
    // One plane ahead: what has just been written in small parts cannot be read at once as a whole.
    const float* ready = add(first);
    for (int64_t plane = first; plane < last; plane++) {
        const float* next = plane + 1 < last ? add(plane + 1) : nullptr;
        d.taps == 9 ? run_plane<9>(d, plane, ready) : run_plane<0>(d, plane, ready);
        ready = next;
    }
}

void take_largest(const Pooling& p, int64_t first, int64_t last, float* line) {
    for (int64_t plane = first; plane < last; plane++) take_largest_of_plane(p, plane, line);
}

} // namespace secateur_ISA

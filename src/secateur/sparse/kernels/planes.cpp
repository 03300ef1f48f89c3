// What is done plane by plane, compiled once for each instruction set: margins, depthwise convolutions, max pooling.
#include <utility>

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
    // Copies: what is written might otherwise overwrite them, for all that the compiler knows.
    Vector own[TAPS ? TAPS : 1];
    const float* from[TAPS ? TAPS : 1];
#pragma GCC unroll 9
    for (int tap = 0; tap < TAPS; tap++) own[tap] = Vector{} + weights[tap], from[tap] = inputs + d.offsets[tap];
    const float* residual = d.residual;
    float* output = d.output;
    const int64_t height = d.out_height, width = d.out_width, stride = d.row_stride, activation = d.activation;
    for (int64_t row = 0, moved = 0; row < height; row++, moved += stride, at += width) {
        Vector sum[VECTORS];
        for (int v = 0; v < VECTORS; v++) sum[v] = Vector{} + bias;
#pragma GCC unroll 9
        for (int tap = 0; tap < TAPS; tap++)
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) sum[v] += own[tap] * load(from[tap] + moved + place(v));
        for (int64_t tap = 0; !TAPS && tap < d.taps; tap++)
            for (int v = 0; v < VECTORS; v++)
                sum[v] += weights[tap] * load(inputs + d.offsets[tap] + moved + place(v));
        if (at + LANES <= end || columns >= LANES) {
            // Where a row is shorter than a vector, the next row overwrites what is written past it.
            for (int v = 0; v < VECTORS; v++) {
                if (residual) sum[v] += load(residual + at + place(v));
                store(output + at + place(v), activated(sum[v], activation));
            }
        } else {
            for (int64_t i = 0; residual && i < columns; i++) sum[0][i] += residual[at + i];
            const Vector values = activated(sum[0], activation);
            for (int64_t i = 0; i < columns; i++) output[at + i] = values[i];
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

template <int... I>
inline Vector moved_right(Vector v, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(Vector{}, v, (I ? LANES + I - 1 : 0)...);
}

template <int... I>
inline Vector moved_left(Vector v, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(Vector{}, v, (I < LANES - 1 ? LANES + I + 1 : 0)...);
}

// Every other of a pair of vectors.
template <int ODD, int... I>
inline Vector every_other(Vector low, Vector high, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(low, high, (2 * I + ODD)...);
}

// Three neighbours in a row, for outputs that are STEP inputs apart. Beside the image, where `first` or `last` of a row's
// vectors would reach, there are zeros.
template <int STEP>
inline Vector add_row(Vector sum, const float* inputs, const Vector* weights, bool first, bool last) {
    constexpr std::make_integer_sequence<int, LANES> all;
    Vector left, here = load(inputs), right;
    if constexpr (STEP == 1) {
        left = first ? moved_right(here, all) : load(inputs - 1);
        right = last ? moved_left(here, all) : load(inputs + 1);
    } else {
        const Vector next = load(inputs + LANES);
        right = every_other<1>(here, next, all);
        here = every_other<0>(here, next, all);
        left = moved_right(right, all);
        if (!first) left[0] = inputs[-1];
    }
    sum += weights[0] * left;
    sum += weights[1] * here;
    return sum + weights[2] * right;
}

struct Line {
    const float* inputs; // of the middle row
    int64_t row;         // from one row of inputs to the next
    const float* residual;
    float* output;
    int64_t width; // of the output; at least LANES
};

template <int STEP, bool ABOVE, bool BELOW>
inline void run_line(const Line& line, const Vector* given, Vector bias, int64_t activation) {
    Vector weights[9]; // copies, as above
#pragma GCC unroll 9
    for (int tap = 0; tap < 9; tap++) weights[tap] = given[tap];
    const int64_t width = line.width;
    const float *from = line.inputs, *above = from - line.row, *below = from + line.row, *residual = line.residual;
    float* to = line.output;
    const auto run = [&](int64_t x, bool first, bool last) {
        Vector sum = bias;
        if (ABOVE) sum = add_row<STEP>(sum, above + STEP * x, weights, first, last);
        sum = add_row<STEP>(sum, from + STEP * x, weights + 3, first, last);
        if (BELOW) sum = add_row<STEP>(sum, below + STEP * x, weights + 6, first, last);
        if (residual) sum += load(residual + x);
        store(to + x, activated(sum, activation));
    };
    if (width == LANES) return run(0, true, true);
    run(0, true, false);
    for (int64_t x = LANES; x < width - LANES; x += LANES) run(x, false, false);
    run(width - LANES, false, true); // may overlap the one before
}

// A plain 3×3 convolution, without a copy of the image that has margins.
template <int STEP>
void run_plain_plane(const Depthwise& d, int64_t plane) {
    const Margins& m = d.margins;
    const int64_t output = plane % d.outputs, first = plane * d.out_height * d.out_width;
    const int64_t inputs = d.outputs / d.outputs_per_input;
    const float* from = m.input + (plane / d.outputs * inputs + output / d.outputs_per_input) * m.plane;
    Vector weights[9];
    for (int tap = 0; tap < 9; tap++) weights[tap] = Vector{} + d.weights[output * 9 + tap];
    const Vector bias = Vector{} + (d.bias ? d.bias[output] : 0.0f);
    for (int64_t row = 0; row < d.out_height; row++) {
        const int64_t y = row * STEP + 1 - m.top, at = first + row * d.out_width;
        const Line line{from + y * m.width, m.width, d.residual ? d.residual + at : nullptr, d.output + at, d.out_width};
        const auto run = y > 0 ? y < m.height - 1 ? run_line<STEP, true, true> : run_line<STEP, true, false>
                               : y < m.height - 1 ? run_line<STEP, false, true> : run_line<STEP, false, false>;
        run(line, weights, bias, d.activation);
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
    add_margins_to_plane(m, m.input + plane * m.plane, m.output + plane * floats);
}

void run_depthwise(const Depthwise& d, int64_t first, int64_t last, float* scratch) {
    const Margins& m = d.margins;
    if (d.plain_step && d.out_width >= LANES) {
        const auto run = d.plain_step == 1 ? run_plain_plane<1> : run_plain_plane<2>;
        for (int64_t plane = first; plane < last; plane++) run(d, plane);
        return;
    }
    const auto add = [&](int64_t plane) {
        const int64_t inputs = d.outputs / d.outputs_per_input;
        const int64_t input = plane / d.outputs * inputs + plane % d.outputs / d.outputs_per_input;
        float* own = scratch + plane % 2 * (m.out_rows * m.phases * m.phase_width + ROOM_BEHIND);
        add_margins_to_plane(m, m.input + input * m.plane, own);
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

// One tile of columns times the packed matrix, compiled once for each instruction set: TILE columns at a time.
#include "vectors.h"

namespace NAMESPACE_OF(ISA) {
namespace {

constexpr int WIDEST = TILE / LANES;       // vectors of a tile, with rows one by one
constexpr int WIDEST_OF_FOUR = 3;          // with rows in fours: 12 sums, 3 inputs and a weight fill 16 registers
constexpr int64_t ROWS_AHEAD = 12;         // of an image's channels, which lie far apart

// Asks for memory that the processor cannot foresee.
inline void fetch(const float* from, int64_t floats) {
    for (int64_t i = 0; i < floats; i += 16) __builtin_prefetch(from + i);
}

// Where the sums of neighbouring pixels of one image go as soon as they are complete.
struct Pixels {
    float* output; // of the first row
    const float* bias;
    const float* residual;
    int64_t stride; // from row to row
    int64_t rest;   // pixels of the last vector
    Vector low, high;
};

// The comparisons are such that NaN stays NaN.
inline Vector clamped(Vector value, Vector low, Vector high) {
    value = value < low ? low : value;
    return value > high ? high : value;
}

template <int VECTORS>
inline void put(const Pixels& pixels, int64_t row, const Vector (&sums)[VECTORS]) {
    float* to = pixels.output + row * pixels.stride;
    const float* residual = pixels.residual ? pixels.residual + row * pixels.stride : nullptr;
    const Vector bias = Vector{} + (pixels.bias ? pixels.bias[row] : 0.0f), low = pixels.low, high = pixels.high;
#pragma GCC unroll 16
    for (int v = 0; v < VECTORS; v++, to += LANES) {
        Vector value = sums[v] + bias;
        if (v < VECTORS - 1 || pixels.rest == LANES) {
            if (residual) value += load(residual + v * LANES);
            store(to, clamped(value, low, high));
        } else {
            for (int64_t i = 0; residual && i < pixels.rest; i++) value[i] += residual[v * LANES + i];
            value = clamped(value, low, high);
            for (int64_t i = 0; i < pixels.rest; i++) to[i] = value[i];
        }
    }
}

// One panel of the matrix, for one group of its rows. The sums stay in registers for a whole block, and then go to
// `pixels`, if there are any, and to `sums` otherwise.
template <int VECTORS, int BLOCK, typename Index>
void multiply(const PackedMatrix& matrix, int64_t panel, int64_t first, int64_t last, const float* inputs, float* sums,
              const Pixels* pixels) {
    constexpr int64_t STRIDE = VECTORS * LANES;
    const int64_t blocks = matrix.rows / BLOCK;
    const int32_t* starts = matrix.starts + panel * (blocks + 1);
    const uint8_t* order = matrix.order + panel * blocks;
    const Index* indices = static_cast<const Index*>(matrix.indices);
    const Index* index = indices + starts[first];
    const float* weight = matrix.values + int64_t(starts[first]) * BLOCK;
    for (int64_t block = first; block < last; block++) {
        float* own = sums + order[block] * BLOCK * STRIDE;
        if (panel && block + 2 < last) fetch(sums + order[block + 2] * BLOCK * STRIDE, BLOCK * STRIDE);
        if (pixels && block + ROWS_AHEAD / BLOCK < last)
            for (int r = 0; r < BLOCK; r++)
                fetch(pixels->output + (order[block + ROWS_AHEAD / BLOCK] * BLOCK + r) * pixels->stride, STRIDE);
        Vector sum[BLOCK][VECTORS];
        for (int r = 0; r < BLOCK; r++)
            for (int v = 0; v < VECTORS; v++)
                sum[r][v] = panel ? load(own + r * STRIDE + v * LANES) : Vector{};
        const Index* end = indices + starts[block + 1];
        for (; index < end; index++, weight += BLOCK) {
            const float* input = inputs + int64_t(*index) * STRIDE;
            if constexpr (BLOCK == 1) {
                // Loading within the product lets the compiler take the input from memory in the same instruction.
#pragma GCC unroll 16
                for (int v = 0; v < VECTORS; v++) sum[0][v] += *weight * load(input + v * LANES);
            } else {
                Vector loaded[VECTORS];
#pragma GCC unroll 16
                for (int v = 0; v < VECTORS; v++) loaded[v] = load(input + v * LANES);
#pragma GCC unroll 4
                for (int r = 0; r < BLOCK; r++)
#pragma GCC unroll 16
                    for (int v = 0; v < VECTORS; v++) sum[r][v] += weight[r] * loaded[v];
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < BLOCK; r++) {
            if (pixels) {
                put(*pixels, order[block] * BLOCK + r, sum[r]);
                continue;
            }
#pragma GCC unroll 16
            for (int v = 0; v < VECTORS; v++) store(own + r * STRIDE + v * LANES, sum[r][v]);
        }
    }
}

using Multiply = decltype(&multiply<1, 1, uint8_t>);

template <int BLOCK, int VECTORS>
Multiply multiply_of(int vectors, int64_t index_bytes) {
    if constexpr (VECTORS > 1)
        if (vectors < VECTORS) return multiply_of<BLOCK, VECTORS - 1>(vectors, index_bytes);
    return index_bytes == 1 ? multiply<VECTORS, BLOCK, uint8_t> : multiply<VECTORS, BLOCK, uint16_t>;
}

// Eight rows of eight become eight columns of eight. The loops are unrolled so that the rows stay in registers.
inline void transpose(Eight rows[8]) {
    Eight pairs[8], fours[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = __builtin_shufflevector(rows[i], rows[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
        pairs[i + 1] = __builtin_shufflevector(rows[i], rows[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            fours[i + j] = __builtin_shufflevector(pairs[i + j], pairs[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            fours[i + j + 2] = __builtin_shufflevector(pairs[i + j], pairs[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        rows[i] = __builtin_shufflevector(fours[i], fours[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        rows[i + 4] = __builtin_shufflevector(fours[i], fours[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

// Examples lie one after another, and a tile has them side by side.
void pack_examples(const Source& source, int64_t column, int64_t columns, int64_t k0, int64_t rows, int64_t stride,
                   float* packed) {
    if (columns < stride) memset(packed, 0, sizeof(float) * rows * stride);
    const float* from = source.data + column * source.row_stride + k0;
    int64_t n = 0;
    for (; n + 8 <= columns; n += 8, from += 8 * source.row_stride) {
        int64_t k = 0;
        for (; k + 8 <= rows; k += 8) {
            Eight square[8];
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) memcpy(&square[i], from + i * source.row_stride + k, sizeof(Eight));
            transpose(square);
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) memcpy(packed + (k + i) * stride + n, &square[i], sizeof(Eight));
        }
        for (; k < rows; k++)
            for (int i = 0; i < 8; i++) packed[k * stride + n + i] = from[i * source.row_stride + k];
    }
    for (; n < columns; n++, from += source.row_stride)
        for (int64_t k = 0; k < rows; k++) packed[k * stride + n] = from[k];
}

struct Run {
    int64_t begin; // in the image's data
    int64_t place; // in the tile
    int64_t length;
};

// A tile's output pixels, as runs within one output row each.
int runs_of(const Source& source, int64_t column, int64_t columns, Run* runs) {
    const int64_t pixels = source.out_height * source.out_width;
    int count = 0;
    for (int64_t place = 0; place < columns;) {
        const int64_t image = (column + place) / pixels, pixel = (column + place) % pixels;
        const int64_t y = pixel / source.out_width, x = pixel % source.out_width;
        const int64_t length = smaller(columns - place, source.out_width - x);
        const int64_t begin = image * source.image_stride + y * source.row_stride + x;
        if (count && runs[count - 1].begin + runs[count - 1].length == begin)
            runs[count - 1].length += length;
        else
            runs[count++] = {begin, place, length};
        place += length;
    }
    return count;
}

void pack_pixels(const Source& source, int64_t column, int64_t columns, int64_t k0, int64_t rows, int64_t stride,
                 float* packed) {
    Run runs[TILE];
    const int count = runs_of(source, column, columns, runs);
    if (count == 1 && columns == stride) {
        for (int64_t k = 0; k < rows; k++, packed += stride) {
            const float* from = source.data + source.offsets[k0 + k] + runs[0].begin;
            for (int64_t i = 0; i < stride; i += LANES) store(packed + i, load(from + i));
        }
        return;
    }
    for (int64_t k = 0; k < rows; k++, packed += stride) {
        const float* from = source.data + source.offsets[k0 + k];
        for (int r = 0; r < count; r++) {
            const float* run = from + runs[r].begin;
            float* to = packed + runs[r].place;
            int64_t i = 0;
            for (; i + LANES <= runs[r].length; i += LANES) store(to + i, load(run + i));
            // What is written past the run is overwritten by the next one; after the last there is room for it.
            if (i < runs[r].length && source.may_overread)
                store(to + i, load(run + i));
            else
                for (; i < runs[r].length; i++) to[i] = run[i];
        }
        for (int64_t i = columns; i < stride; i++) packed[i] = 0;
    }
}

// Eight outputs of one example, once their sums lie side by side.
inline Eight finished(const Finish& finish, Eight sums, int64_t row, int64_t at) {
    Eight values;
    if (finish.bias) {
        memcpy(&values, finish.bias + row, sizeof values);
        sums += values;
    }
    if (finish.residual) {
        memcpy(&values, finish.residual + at, sizeof values);
        sums += values;
    }
    return activated(sums, finish.activation);
}

void finish_examples(const Finish& finish, int64_t column, int64_t columns, int64_t row, int64_t rows, int64_t stride,
                     const float* sums) {
    const int64_t squares_wide = columns / 8 * 8, squares_high = rows / 8 * 8;
    const auto finish_one = [&](int64_t n, int64_t m) {
        const int64_t at = (column + n) * finish.stride + row + m;
        float value = sums[m * stride + n];
        if (finish.bias) value += finish.bias[row + m];
        if (finish.residual) value += finish.residual[at];
        finish.output[at] = activated(value, finish.activation);
    };
    for (int64_t n = 0; n < squares_wide; n += 8) {
        for (int64_t m = 0; m < squares_high; m += 8) {
            Eight square[8];
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) memcpy(&square[i], sums + (m + i) * stride + n, sizeof(Eight));
            transpose(square);
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                const int64_t at = (column + n + i) * finish.stride + row + m;
                const Eight values = finished(finish, square[i], row + m, at);
                memcpy(finish.output + at, &values, sizeof(Eight));
            }
        }
        for (int64_t i = n; i < n + 8; i++)
            for (int64_t m = squares_high; m < rows; m++) finish_one(i, m);
    }
    for (int64_t n = squares_wide; n < columns; n++)
        for (int64_t m = 0; m < rows; m++) finish_one(n, m);
}

void finish_pixels(const Source& source, const Finish& finish, int64_t column, int64_t columns, int64_t row,
                   int64_t rows, int64_t stride, const float* sums) {
    const int64_t pixels = source.out_height * source.out_width;
    for (int64_t place = 0; place < columns;) {
        const int64_t image = (column + place) / pixels, pixel = (column + place) % pixels;
        const int64_t length = smaller(columns - place, pixels - pixel);
        int64_t at = image * finish.stride + row * finish.plane + pixel;
        const float* from = sums + place;
        for (int64_t m = 0; m < rows; m++, at += finish.plane, from += stride) {
            const float bias = finish.bias ? finish.bias[row + m] : 0.0f;
            float* to = finish.output + at;
            if (m + ROWS_AHEAD < rows) fetch(to + ROWS_AHEAD * finish.plane, length);
            const float* residual = finish.residual ? finish.residual + at : nullptr;
            int64_t i = 0;
            for (; i + LANES <= length; i += LANES) {
                Vector value = load(from + i) + bias;
                if (residual) value += load(residual + i);
                store(to + i, activated(value, finish.activation));
            }
            for (; i < length; i++)
                to[i] = activated(from[i] + bias + (residual ? residual[i] : 0.0f), finish.activation);
        }
        place += length;
    }
}

// Whether a tile's sums can go where they belong one row at a time, without the larger code of a GELU.
inline bool in_one_image(const Layer& layer, int64_t column, int64_t columns) {
    const int64_t pixels = layer.source.out_height * layer.source.out_width;
    return pixels && layer.finish.activation != GELU && column % pixels + columns <= pixels;
}

inline Pixels pixels_of(const Layer& layer, int64_t column, int64_t columns, int64_t row) {
    const Finish& finish = layer.finish;
    const int64_t pixels = layer.source.out_height * layer.source.out_width;
    const int64_t at = column / pixels * finish.stride + row * finish.plane + column % pixels;
    return {finish.output + at,
            finish.bias ? finish.bias + row : nullptr,
            finish.residual ? finish.residual + at : nullptr,
            finish.plane,
            (columns - 1) % LANES + 1,
            Vector{} + (finish.activation == NO_ACTIVATION ? -INFINITY : 0.0f),
            Vector{} + (finish.activation == RELU6 ? 6.0f : INFINITY)};
}

// The products of one block of rows with a single example, four columns at a time.
template <int BLOCK, typename Index>
inline void add_products(const Index* index, const Index* end, const float* weight, const float* input, float* sums) {
    if constexpr (BLOCK == 1) {
        // Several sums, so that they need not wait for one another.
        Four sum[2] = {};
        for (; index + 8 <= end; index += 8, weight += 8)
#pragma GCC unroll 2
            for (int c = 0; c < 2; c++) {
                const Index* at = index + 4 * c;
                sum[c] += four(weight + 4 * c) * Four{input[at[0]], input[at[1]], input[at[2]], input[at[3]]};
            }
        float rest = 0;
        for (; index < end; index++, weight++) rest += *weight * input[*index];
        sum[0] += sum[1];
        *sums += sum[0][0] + sum[0][1] + (sum[0][2] + sum[0][3]) + rest;
    } else {
        static_assert(BLOCK == 4);
        Four sum[4] = {};
        for (; index + 4 <= end; index += 4, weight += 16)
#pragma GCC unroll 4
            for (int c = 0; c < 4; c++) sum[c] += four(weight + 4 * c) * input[index[c]];
        for (; index < end; index++, weight += 4) sum[0] += four(weight) * input[*index];
        sum[0] += sum[1] + (sum[2] + sum[3]);
        for (int r = 0; r < 4; r++) sums[r] += sum[0][r];
    }
}

// A single example of a linear layer: no tile.
template <int BLOCK, typename Index>
void multiply_one(const Layer& layer, int64_t first, int64_t last) {
    const PackedMatrix& matrix = layer.matrix;
    const int64_t blocks = matrix.rows / BLOCK;
    const Index* indices = static_cast<const Index*>(matrix.indices);
    float sums[GROUP] = {};
    for (int64_t panel = 0; panel < matrix.panels; panel++) {
        const int32_t* starts = matrix.starts + panel * (blocks + 1);
        const uint8_t* order = matrix.order + panel * blocks;
        const float* input = layer.source.data + panel * matrix.panel_width;
        for (int64_t block = first; block < last; block++)
            add_products<BLOCK>(indices + starts[block], indices + starts[block + 1],
                                matrix.values + int64_t(starts[block]) * BLOCK, input, sums + order[block] * BLOCK);
    }
    finish_examples(layer.finish, 0, 1, first * BLOCK, (last - first) * BLOCK, 1, sums);
}

inline auto multiply_one_of(const PackedMatrix& matrix) {
    if (matrix.index_bytes == 1) return matrix.block == 1 ? multiply_one<1, uint8_t> : multiply_one<4, uint8_t>;
    return matrix.block == 1 ? multiply_one<1, uint16_t> : multiply_one<4, uint16_t>;
}

} // namespace

int64_t widest_tile(int64_t block) { return LANES * (block == 1 ? WIDEST : WIDEST_OF_FOUR); }

int64_t lanes() { return LANES; }

void run_tile(const Layer& layer, int64_t column, int64_t columns, int64_t first, int64_t last, float* scratch) {
    const PackedMatrix& matrix = layer.matrix;
    const bool convolution = layer.source.out_width > 0;
    const int64_t group = GROUP / matrix.block;
    if (!convolution && layer.source.columns == 1) {
        const auto product = multiply_one_of(matrix);
        for (int64_t block = first; block < last; block += group) product(layer, block, smaller(block + group, last));
        return;
    }
    const int vectors = int((columns + LANES - 1) / LANES);
    const int64_t stride = int64_t(vectors) * LANES;
    const auto product = matrix.block == 1 ? multiply_of<1, WIDEST>(vectors, matrix.index_bytes)
                                           : multiply_of<4, WIDEST_OF_FOUR>(vectors, matrix.index_bytes);
    const bool straight = in_one_image(layer, column, columns);
    float* sums = scratch + (matrix.panel_width + 1) * stride;
    for (int64_t panel = 0; panel < matrix.panels; panel++) {
        const int64_t k0 = panel * matrix.panel_width, rows = smaller(matrix.panel_width, matrix.columns - k0);
        (convolution ? pack_pixels : pack_examples)(layer.source, column, columns, k0, rows, stride, scratch);
        for (int64_t block = first; block < last; block += group) {
            const int64_t end = smaller(block + group, last), row = block * matrix.block;
            float* own = sums + (block - first) * matrix.block * stride;
            if (panel == matrix.panels - 1 && straight) {
                const Pixels pixels = pixels_of(layer, column, columns, row);
                product(matrix, panel, block, end, scratch, own, &pixels);
                continue;
            }
            product(matrix, panel, block, end, scratch, own, nullptr);
            if (panel < matrix.panels - 1) continue;
            // While the sums are still in the cache.
            const int64_t rows_done = (end - block) * matrix.block;
            if (convolution)
                finish_pixels(layer.source, layer.finish, column, columns, row, rows_done, stride, own);
            else
                finish_examples(layer.finish, column, columns, row, rows_done, stride, own);
        }
    }
}

} // namespace secateur_ISA

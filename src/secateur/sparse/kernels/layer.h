// What Python hands over: plain pointers and numbers. `native.py` declares the same structures, field by field.
#pragma once
#include <cstdint>

// The rows of a matrix, of which the shorter come first in every panel: loops of the same length follow one another, and
// the processor knows where each will end.
constexpr int64_t GROUP = 128;

constexpr int64_t NO_ACTIVATION = 0, RELU = 1, RELU6 = 2, GELU = 3; // as in native.py

extern "C" {

// A matrix without its zeros. Its columns are cut into panels, and the rows into blocks of one or four. For every panel
// and block of rows, `starts` tells where the columns begin that are not zero there: `indices` are their places within
// the panel, and `values` the block's weights at each of them. `order` tells which block of its group each of them is.
struct PackedMatrix {
    int64_t rows;
    int64_t columns;
    int64_t panel_width;
    int64_t panels;
    int64_t block;
    int64_t index_bytes;   // 1 or 2
    const int32_t* starts; // [panels][rows / block + 1]
    const uint8_t* order;  // [panels][rows / block]
    const void* indices;   // [stored blocks]
    const float* values;   // [stored blocks][block]
};

// Where the columns of the other factor come from. They are examples of a linear layer (`out_width` is 0), or output
// pixels of a convolution, whose input lies ready with its margins, so that the input of every pixel of an output row is
// a run of neighbours for every place of the kernel.
struct Source {
    const float* data;
    int64_t columns;      // examples, or images × output pixels
    int64_t row_stride;   // from one example to the next, or from one output row of an image to the next
    int64_t image_stride; // from one image to the next
    int64_t out_height;
    int64_t out_width;
    const int64_t* offsets; // of a convolution: where the run of each row of the factor begins, from the image's start
    int64_t may_overread;   // whether a vector may be read across the end of a run
};

struct Finish {
    float* output;
    const float* bias;     // may be null
    const float* residual; // laid out like the output; may be null
    int64_t stride;        // from one example or image of the output to the next
    int64_t plane;         // from one channel of an image to the next
    int64_t activation;
};

struct Layer {
    PackedMatrix matrix;
    Source source;
    Finish finish;
};

// Of one phase of a row: from `before` to before `filled` lies the image, from its column `start` on; the rest is zero.
struct Span {
    int64_t before, filled, start;
};

// A convolution's input with margins of zeros, its columns sorted by their remainder after division by the stride.
struct Margins {
    const float* input;
    float* output;
    const Span* spans; // [phases]
    int64_t planes, height, width;
    int64_t plane; // from one plane of the input to the next
    int64_t top;
    int64_t out_rows, row_step; // output rows, and how many input rows lie between them
    int64_t phases, phase_width, column_step;
};

// A convolution of every channel by itself: dense, but in the same layout as its sparse neighbours.
struct Depthwise {
    Margins margins; // of one plane at a time
    const float* weights;   // [outputs][taps]
    const float* bias;      // may be null
    const float* residual;  // laid out like the output; may be null
    float* output;
    const int64_t* offsets; // where the run of each tap begins, from the plane's start
    int64_t taps, images, outputs, outputs_per_input;
    int64_t out_height, out_width, row_stride, activation;
    int64_t plain_step; // 1, or 2 for an even width, of a 3×3 kernel with one pixel of margin on each side; else 0
};

// A depthwise convolution between two sparse ones of 1×1, of which the first may be missing. It runs in strips of output
// rows, so that what lies between the layers stays in a cache.
struct Block {
    Layer first;
    Depthwise middle;
    Layer last;
    int64_t has_first;
    int64_t image_stride;        // from one image of the input to the next
    int64_t kernel_rows;         // from the first input row that an output row of the middle layer reads to the last
    int64_t rows_between;        // from the first input row of an output row to that of the next
    int64_t strip;               // output rows; the last strip may have fewer
    const int64_t* rest_offsets; // of the last layer's source in such a strip
};

// The largest of every window.
struct Pooling {
    const float* input;
    float* output;
    int64_t planes, height, width, out_height, out_width;
    int64_t kernel_height, kernel_width, row_step, column_step, top, left;
};
}

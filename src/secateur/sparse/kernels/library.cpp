// The functions that Python calls. Which instruction set they use is decided once, by what the processor has.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "layer.h"
#include "threads.h"
#include "tile.h"

namespace {

struct InstructionSet {
    const char* name;
    bool (*supported)();
    int64_t (*lanes)();
    int64_t (*widest_tile)(int64_t);
    void (*run_tile)(const Layer&, int64_t, int64_t, int64_t, int64_t, float*);
    void (*add_margins)(const Margins&, int64_t);
    void (*run_depthwise)(const Depthwise&, int64_t, int64_t, float*);
    void (*take_largest)(const Pooling&, int64_t, int64_t, float*);
};

#define INSTRUCTION_SET(isa, supported)                                                                                \
    {                                                                                                                  \
        #isa, [] { return bool(supported); }, secateur_##isa::lanes, secateur_##isa::widest_tile,                      \
            secateur_##isa::run_tile, secateur_##isa::add_margins, secateur_##isa::run_depthwise,                      \
            secateur_##isa::take_largest                                                                               \
    }

// The best first.
const InstructionSet SETS[] = {
#if defined(__x86_64__)
    INSTRUCTION_SET(avx512, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma")),
    INSTRUCTION_SET(avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")),
#endif
    INSTRUCTION_SET(baseline, true),
};

const InstructionSet* best() {
    for (const InstructionSet& set : SETS)
        if (set.supported()) return &set;
    return nullptr;
}

const InstructionSet* chosen = best();

// Memory of a thread for one tile, kept for the next.
struct Scratch {
    float* memory = nullptr;
    int64_t floats = 0;

    float* at_least(int64_t wanted) {
        if (wanted > floats) {
            free(memory);
            const size_t bytes = (size_t(wanted) * sizeof(float) + 63) / 64 * 64;
            memory = static_cast<float*>(aligned_alloc(64, bytes));
            floats = memory ? wanted : 0;
        }
        return memory;
    }

    ~Scratch() { free(memory); }
};

thread_local Scratch scratch;

struct Tiles {
    const Layer* layer;
    int64_t tiles, row_parts;
    std::atomic<bool>* failed;
};

int64_t share(int64_t whole, int64_t parts, int64_t part) { return whole / parts * part + std::min(part, whole % parts); }

int64_t groups_of(const PackedMatrix& matrix) { return (matrix.rows + GROUP - 1) / GROUP; }

int64_t tiles_of(const Layer& layer) {
    const int64_t widest = chosen->widest_tile(layer.matrix.block);
    return (layer.source.columns + widest - 1) / widest;
}

struct Columns {
    int64_t first, count;
};

// Those of one tile: whole vectors, shared out so that no tile is much narrower than the others.
Columns columns_of(const Layer& layer, int64_t tiles, int64_t tile) {
    const int64_t lanes = chosen->lanes(), vectors = (layer.source.columns + lanes - 1) / lanes;
    const int64_t first = lanes * share(vectors, tiles, tile);
    return {first, std::min(lanes * share(vectors, tiles, tile + 1), layer.source.columns) - first};
}

int64_t floats_for_tile(const PackedMatrix& matrix, int64_t rows) {
    return (matrix.panel_width + 1 + rows) * chosen->widest_tile(matrix.block);
}

void run_one(void* context, int64_t task) {
    const Tiles& job = *static_cast<const Tiles*>(context);
    const PackedMatrix& matrix = job.layer->matrix;
    const int64_t tile = task / job.row_parts, part = task % job.row_parts, blocks = matrix.rows / matrix.block;
    const int64_t group = GROUP / matrix.block, groups = groups_of(matrix);
    const int64_t first = group * share(groups, job.row_parts, part);
    const int64_t last = std::min(blocks, group * share(groups, job.row_parts, part + 1));
    const Columns columns = columns_of(*job.layer, job.tiles, tile);
    float* memory = scratch.at_least(floats_for_tile(matrix, (last - first) * matrix.block));
    if (memory)
        chosen->run_tile(*job.layer, columns.first, columns.count, first, last, memory);
    else
        job.failed->store(true);
}

constexpr int64_t PARTS = 4; // for each thread, so that none waits long for the others

// Runs of planes, with scratch memory of the thread that takes them.
template <typename Job>
int64_t run_planes(const Job& job, int64_t planes, int64_t floats, void (*run)(const Job&, int64_t, int64_t, float*),
                   int64_t threads) {
    struct Context {
        const Job& job;
        int64_t planes, parts, floats;
        void (*run)(const Job&, int64_t, int64_t, float*);
        std::atomic<bool> failed{false};
    } context{job, planes, std::min(planes, threads > 1 ? PARTS * threads : 1), floats, run};
    run_tasks(
        context.parts, threads,
        [](void* given, int64_t part) {
            Context& context = *static_cast<Context*>(given);
            const int64_t first = share(context.planes, context.parts, part);
            const int64_t last = share(context.planes, context.parts, part + 1);
            float* memory = scratch.at_least(context.floats);
            if (memory)
                context.run(context.job, first, last, memory);
            else
                context.failed.store(true);
        },
        &context);
    return context.failed.load();
}

// All tiles of a layer, one after another.
void run_tiles(const Layer& layer, float* memory) {
    for (int64_t tile = 0, tiles = tiles_of(layer); tile < tiles; tile++) {
        const Columns columns = columns_of(layer, tiles, tile);
        chosen->run_tile(layer, columns.first, columns.count, 0, layer.matrix.rows / layer.matrix.block, memory);
    }
}

struct Strips {
    const Block* block;
    int64_t in_an_image;
    int64_t before, after; // floats of a strip that lie before and after the depthwise convolution,
    int64_t margins;       // for its margins,
    int64_t tile;          // and for a tile of the other layers
    std::atomic<bool>* failed;
};

void run_rows(void* context, int64_t task) {
    const Strips& job = *static_cast<const Strips*>(context);
    const Block& block = *job.block;
    const int64_t image = task / job.in_an_image, row = task % job.in_an_image * block.strip;
    float* before = scratch.at_least(job.before + job.after + job.margins + job.tile);
    if (!before) return job.failed->store(true);
    float *after = before + job.before, *margins = after + job.after, *tile = margins + job.margins;

    Depthwise middle = block.middle;
    Margins& m = middle.margins;
    const int64_t rows = std::min(block.strip, middle.out_height - row);
    // The input rows that they read: those that do not lie in the margins go from `top` to before `bottom`.
    const int64_t first = row * block.rows_between - m.top;
    const int64_t end = first + (rows - 1) * block.rows_between + block.kernel_rows;
    const int64_t top = std::clamp<int64_t>(first, 0, m.height), bottom = std::clamp<int64_t>(end, top, m.height);
    m.input += image * block.image_stride + top * m.width;
    m.height = bottom - top, m.top = top - first, m.out_rows = end - first;
    if (block.has_first) {
        Layer layer = block.first;
        layer.source.data = m.input, layer.finish.output = before;
        layer.source.out_height = m.height, layer.source.columns = layer.finish.plane = m.height * m.width;
        run_tiles(layer, tile);
        m.input = before, m.plane = m.height * m.width;
    }
    middle.images = 1, middle.out_height = rows, middle.output = after;
    chosen->run_depthwise(middle, 0, middle.outputs, margins);

    Layer layer = block.last;
    const int64_t at = image * layer.finish.stride + row * middle.out_width;
    layer.source.data = after, layer.source.out_height = rows, layer.source.columns = rows * middle.out_width;
    if (rows < block.strip) layer.source.offsets = block.rest_offsets;
    layer.finish.output += at;
    if (layer.finish.residual) layer.finish.residual += at;
    run_tiles(layer, tile);
}

} // namespace

#pragma GCC visibility push(default)
extern "C" {

int64_t secateur_kernels_version() { return 8; }

const char* secateur_instruction_set() { return chosen->name; }

// For tests: an instruction set by its name, if the processor has it. Returns whether it is in use now.
int64_t secateur_use_instruction_set(const char* name) {
    for (const InstructionSet& set : SETS)
        if (!strcmp(set.name, name) && set.supported()) {
            chosen = &set;
            return 1;
        }
    return 0;
}

// The layer stays the same from call to call; what it reads and writes is given with each. Returns 0, or 1 where there is
// not enough memory.
int64_t secateur_run_layer(const Layer* prepared, const float* data, const float* residual, float* output,
                           int64_t threads) {
    Layer filled = *prepared;
    filled.source.data = data, filled.finish.residual = residual, filled.finish.output = output;
    const Layer* layer = &filled;
    const int64_t groups = groups_of(layer->matrix), tiles = tiles_of(*layer);
    if (!groups || !tiles) return 0;
    const int64_t row_parts = tiles >= threads ? 1 : std::min(groups, (threads + tiles - 1) / tiles);
    std::atomic<bool> failed{false};
    Tiles job{layer, tiles, row_parts, &failed};
    run_tasks(tiles * row_parts, threads, run_one, &job);
    return failed.load();
}

void secateur_add_margins(const Margins* prepared, const float* input, float* output, int64_t threads) {
    Margins filled = *prepared;
    filled.input = input, filled.output = output;
    run_tasks(
        filled.planes, threads,
        [](void* context, int64_t plane) { chosen->add_margins(*static_cast<const Margins*>(context), plane); }, &filled);
}

// Returns 0, or 1 where there is not enough memory.
int64_t secateur_run_depthwise(const Depthwise* prepared, const float* input, const float* residual, float* output,
                               int64_t threads) {
    Depthwise filled = *prepared;
    filled.margins.input = input, filled.residual = residual, filled.output = output;
    const Margins& m = filled.margins;
    const int64_t floats = 2 * (m.out_rows * m.phases * m.phase_width + ROOM_BEHIND);
    return run_planes(filled, filled.images * filled.outputs, floats, chosen->run_depthwise, threads);
}

// Returns 0, or 1 where there is not enough memory.
int64_t secateur_run_block(const Block* prepared, const float* input, const float* residual, float* output,
                           int64_t threads) {
    Block block = *prepared;
    Depthwise& middle = block.middle;
    middle.margins.input = input, block.last.finish.residual = residual, block.last.finish.output = output;
    const Margins& m = middle.margins;
    const PackedMatrix &first = block.first.matrix, &last = block.last.matrix;
    const int64_t rows = (block.strip - 1) * block.rows_between + block.kernel_rows;
    const int64_t strips = (middle.out_height + block.strip - 1) / block.strip;
    const int64_t tile_before = block.has_first ? floats_for_tile(first, first.rows) : 0;
    std::atomic<bool> failed{false};
    Strips job{&block,
               strips,
               block.has_first ? first.rows * rows * m.width + ROOM_BEHIND : 0,
               middle.outputs * block.strip * middle.out_width + ROOM_BEHIND,
               2 * (rows * m.phases * m.phase_width + ROOM_BEHIND),
               std::max(tile_before, floats_for_tile(last, last.rows)),
               &failed};
    run_tasks(middle.images * strips, threads, run_rows, &job);
    return failed.load();
}

// Returns 0, or 1 where there is not enough memory.
int64_t secateur_take_largest(const Pooling* prepared, const float* input, float* output, int64_t threads) {
    Pooling filled = *prepared;
    filled.input = input, filled.output = output;
    const int64_t floats = filled.out_width * filled.column_step + filled.kernel_width + filled.left + filled.width;
    return run_planes(filled, filled.planes, floats, chosen->take_largest, threads);
}
}
#pragma GCC visibility pop

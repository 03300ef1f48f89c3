// What every instruction set offers.
#pragma once
#include "layer.h"

constexpr int64_t ROOM_BEHIND = 64; // floats that vectors may read past the end of a plane

#define SECATEUR_INSTRUCTION_SET(isa)                                                                                  \
    namespace secateur_##isa {                                                                                         \
    int64_t lanes();                                                                                                   \
    int64_t widest_tile(int64_t block);                                                                                \
    /* `columns` columns from `column` on, for the blocks of rows from `first`, with which a group begins, */          \
    /* to before `last`. */                                                                                            \
    void run_tile(const Layer&, int64_t column, int64_t columns, int64_t first, int64_t last, float* scratch);         \
    void add_margins(const Margins&, int64_t plane);                                                                   \
    /* Planes from `first` to before `last`. `scratch` has room for two with their margins and ROOM_BEHIND each. */     \
    void run_depthwise(const Depthwise&, int64_t first, int64_t last, float* scratch);                                 \
    /* `line` has room for the width and the margins on both sides. */                                                 \
    void take_largest(const Pooling&, int64_t first, int64_t last, float* line);                                       \
    }

SECATEUR_INSTRUCTION_SET(baseline)
SECATEUR_INSTRUCTION_SET(avx2)
SECATEUR_INSTRUCTION_SET(avx512)

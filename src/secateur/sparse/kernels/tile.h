// What every instruction set offers.
#pragma once
#include "layer.h"

#define SECATEUR_INSTRUCTION_SET(isa)                                                                                  \
    namespace secateur_##isa {                                                                                         \
    int64_t lanes();                                                                                                   \
    int64_t widest_tile(int64_t block);                                                                                \
    /* `columns` columns from `column` on, for the blocks of rows from `first` to before `last`. */                    \
    void run_tile(const Layer&, int64_t column, int64_t columns, int64_t first, int64_t last, float* scratch);         \
    void add_margins(const Margins&, int64_t plane);                                                                   \
    }

SECATEUR_INSTRUCTION_SET(baseline)
SECATEUR_INSTRUCTION_SET(avx2)
SECATEUR_INSTRUCTION_SET(avx512)

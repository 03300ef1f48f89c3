// One pool of threads for all layers.
#pragma once
#include <cstdint>

// Calls `work(context, task)` for every task below `tasks`, in at most `threads` threads, of which the calling one is the
// first. Where the pool is busy with the layer of another thread, the calling thread does it alone.
void run_tasks(int64_t tasks, int64_t threads, void (*work)(void* context, int64_t task), void* context);

#include "threads.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

namespace {

constexpr int SPINS = 4000; // the next layer usually follows at once; waking a sleeping thread takes longer than a layer

inline void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

class Pool {
  public:
    void run(int64_t tasks, int64_t threads, void (*work)(void*, int64_t), void* context) {
        const int64_t helpers = start_workers(threads - 1);
        {
            std::lock_guard<std::mutex> lock(mutex_);
            work_ = work, context_ = context, tasks_ = tasks, helpers_ = helpers;
            next_.store(0);
            generation_.fetch_add(1);
        }
        wake_.notify_all();
        take_tasks();
        {
            // No task is left. Who has not come yet need not be waited for.
            std::lock_guard<std::mutex> lock(mutex_);
            helpers_ = 0;
        }
        while (helping_.load(std::memory_order_acquire)) pause_briefly();
    }

  private:
    // As many as asked for, or as the system gives.
    int64_t start_workers(int64_t wanted) {
        try {
            for (; workers_ < wanted; workers_++)
                std::thread([this, number = workers_ + 1, seen = generation_.load()] { serve(number, seen); }).detach();
        } catch (const std::system_error&) {
        }
        return workers_ < wanted ? workers_ : wanted;
    }

    void take_tasks() {
        for (int64_t task; (task = next_.fetch_add(1)) < tasks_;) work_(context_, task);
    }

    void serve(int64_t number, uint64_t seen) {
        for (;;) {
            for (int spin = 0; spin < SPINS && generation_.load(std::memory_order_acquire) == seen; spin++)
                pause_briefly();
            if (generation_.load(std::memory_order_acquire) == seen) {
                std::unique_lock<std::mutex> lock(mutex_);
                wake_.wait(lock, [&] { return generation_.load() != seen; });
            }
            bool helps;
            {
                // A round and the number of its helpers belong together: a thread that does not take part may be late,
                // and find the next round here.
                std::lock_guard<std::mutex> lock(mutex_);
                seen = generation_.load();
                helps = number <= helpers_;
                if (helps) helping_.fetch_add(1);
            }
            if (!helps) continue;
            take_tasks();
            helping_.fetch_sub(1, std::memory_order_release);
        }
    }

    int64_t workers_ = 0;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::atomic<uint64_t> generation_{0};
    std::atomic<int64_t> next_{0}, helping_{0};
    int64_t tasks_ = 0, helpers_ = 0;
    void (*work_)(void*, int64_t) = nullptr;
    void* context_ = nullptr;
};

// Never destroyed: its threads may still wait when the program ends. A forked process has none of them, and starts with
// a pool and a lock of its own.
std::atomic<Pool*> pool{nullptr};
std::atomic<bool> busy{false};

void forget_pool() {
    pool.store(nullptr);
    busy.store(false);
}

const int registered = pthread_atfork(nullptr, nullptr, forget_pool);

} // namespace

void run_tasks(int64_t tasks, int64_t threads, void (*work)(void*, int64_t), void* context) {
    threads = threads < tasks ? threads : tasks;
    if (threads > 1 && registered == 0 && !busy.exchange(true)) {
        if (!pool.load()) pool.store(new Pool);
        pool.load()->run(tasks, threads, work, context);
        busy.store(false);
        return;
    }
    for (int64_t task = 0; task < tasks; task++) work(context, task);
}

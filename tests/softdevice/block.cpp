// Runs the threads of a block, one after the other, on stacks of their own where they wait for each other.
//
// A fiber takes thread after thread. When a thread waits at a barrier its fiber is put aside and another
// one takes the next thread; so a kernel without barriers runs as a plain loop on a single fiber.

#include "device.h"

#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

namespace sd {

KernelState kernel_state;

namespace {

enum State { WAITING_TO_START, READY, AT_BARRIER, AT_WARP, DONE };

struct Fiber {
    void* stack_pointer;
    char* stack;
};

struct Thread {
    State state;
    Fiber* fiber;
    int line;
    unsigned warp_mask;
    const void* offered;
};

const size_t STACK_BYTES = 256 << 10;
const size_t GUARD_BYTES = 16 << 10;
const size_t MOST_THREADS = 1024;

Thread threads[MOST_THREADS];
unsigned thread_order[MOST_THREADS];
size_t thread_count, started;
size_t current;
std::vector<Fiber*> idle;
std::vector<Fiber*> fibers;
Fiber* running;
void* scheduler_stack;
Thunk kernel;
void** kernel_args;
const char* kernel_name;
std::string problem;
int votes_any, votes_all, votes_count, result_any, result_all, result_count;

sigjmp_buf crash;
volatile sig_atomic_t in_kernel;
char crash_text[160];

// Saves the callee's registers on this stack and continues on the other one.
extern "C" void sd_switch(void** save, void* to);
#if defined(__x86_64__)
asm(R"(
.text
.globl sd_switch
.hidden sd_switch
.type sd_switch, @function
sd_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
const int SAVED_WORDS = 6;
#elif defined(__aarch64__)
asm(R"(
.text
.globl sd_switch
.hidden sd_switch
.type sd_switch, @function
sd_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
)");
#else
#error "the software device knows how to switch stacks on x86-64 and aarch64"
#endif

void select(size_t thread) {
    current = thread;
    unsigned width = kernel_state.block_dim[0], height = kernel_state.block_dim[1];
    kernel_state.thread[0] = thread % width;
    kernel_state.thread[1] = thread / width % height;
    kernel_state.thread[2] = thread / width / height;
    kernel_state.lane = thread % 32;
    size_t warp = thread / 32 * 32;
    kernel_state.lanes = thread_count - warp < 32 ? thread_count - warp : 32;
}

void back_to_scheduler() { sd_switch(&running->stack_pointer, scheduler_stack); }

void fiber_main() {
    for (;;) {
        while (started < thread_count) {
            size_t thread = thread_order[started++];
            threads[thread].state = READY;
            threads[thread].fiber = running;
            select(thread);
            kernel(kernel_args);
            threads[current].state = DONE;
        }
        idle.push_back(running);
        back_to_scheduler();
    }
}

Fiber* idle_fiber() {
    if (!idle.empty()) {
        Fiber* fiber = idle.back();
        idle.pop_back();
        return fiber;
    }
    char* memory = (char*)mmap(nullptr, STACK_BYTES + GUARD_BYTES, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        problem = "no memory for the stack of a thread";
        return nullptr;
    }
    mprotect(memory, GUARD_BYTES, PROT_NONE);
    Fiber* fiber = new Fiber{nullptr, memory};
    fibers.push_back(fiber);
    // Stacks that start at one offset of a page would fight for the same lines of the cache.
    uintptr_t top = (uintptr_t)memory + GUARD_BYTES + STACK_BYTES - fibers.size() % 64 * 128;
    top &= ~(uintptr_t)15;
    void** at = (void**)top;
#if defined(__x86_64__)
    *--at = nullptr;
    *--at = (void*)fiber_main;
    for (int word = 0; word < SAVED_WORDS; word++) *--at = nullptr;
#else
    at -= 20;
    memset(at, 0, 160);
    at[11] = (void*)fiber_main;
#endif
    fiber->stack_pointer = at;
    return fiber;
}

void forget_fibers() {
    for (Fiber* fiber : fibers) {
        munmap(fiber->stack, STACK_BYTES + GUARD_BYTES);
        delete fiber;
    }
    fibers.clear();
    idle.clear();
}

void resume(Fiber* fiber) {
    running = fiber;
    sd_switch(&scheduler_stack, fiber->stack_pointer);
}

void wait_as(State state, int line) {
    size_t me = current;
    threads[me].state = state;
    threads[me].line = line;
    threads[me].fiber = running;
    back_to_scheduler();
    select(me);
}

void barrier(int line) { wait_as(AT_BARRIER, line); }

int vote(int what, int predicate, int line) {
    votes_any |= predicate;
    votes_all &= predicate;
    votes_count += predicate;
    wait_as(AT_BARRIER, line);
    return what == 0 ? result_any : what == 1 ? result_all : result_count;
}

void warp_barrier(unsigned mask, int line) {
    threads[current].warp_mask = mask;
    threads[current].offered = nullptr;
    wait_as(AT_WARP, line);
}

void warp_exchange(unsigned mask, const void* mine, void* all, size_t bytes, int line) {
    size_t me = current, warp = me / 32 * 32;
    threads[me].warp_mask = mask;
    threads[me].offered = mine;
    wait_as(AT_WARP, line);
    // What lanes outside of the mask hold is undefined: poison.
    memset(all, 0xff, 32 * bytes);
    for (size_t lane = 0; lane < 32 && warp + lane < thread_count; lane++)
        if ((mask >> lane & 1) && threads[warp + lane].offered)
            memcpy((char*)all + lane * bytes, threads[warp + lane].offered, bytes);
    // Nobody may leave, and its stack change, before all have read.
    threads[me].warp_mask = mask;
    wait_as(AT_WARP, line);
    threads[me].offered = nullptr;
}

void trap(const char* why) {
    problem = why;
    siglongjmp(crash, 1);
}

void on_signal(int signal, siginfo_t* info, void*) {
    if (in_kernel) {
        in_kernel = 0;
        snprintf(crash_text, sizeof crash_text, "%s %p",
                 signal == SIGFPE ? "division of integers by zero at" : "access to illegal address", info->si_addr);
        siglongjmp(crash, signal == SIGFPE ? 3 : 2);
    }
    // Not ours: as if there were no handler.
    struct sigaction plain = {};
    plain.sa_handler = SIG_DFL;
    sigaction(signal, &plain, nullptr);
}

// Releases the lanes of warps whose partners have all arrived. Says whether any was released.
bool release_warps() {
    bool any = false;
    for (size_t warp = 0; warp < thread_count; warp += 32) {
        size_t end = warp + 32 < thread_count ? warp + 32 : thread_count;
        unsigned waiting = 0, live = 0;
        for (size_t thread = warp; thread < end; thread++) {
            if (threads[thread].state == AT_WARP) waiting |= 1u << (thread - warp);
            if (threads[thread].state != DONE) live |= 1u << (thread - warp);
        }
        for (size_t thread = warp; thread < end; thread++) {
            if (!(waiting >> (thread - warp) & 1)) continue;
            unsigned needed = threads[thread].warp_mask & live;
            if ((needed & waiting) != needed) continue;
            for (size_t other = warp; other < end; other++)
                if (needed >> (other - warp) & 1) threads[other].state = READY;
            waiting &= ~needed;
            any = true;
        }
    }
    return any;
}

// Releases a barrier at which all threads have arrived.
bool release_barrier() {
    size_t waiting = 0, done = 0;
    int line = 0;
    bool different = false;
    for (size_t thread = 0; thread < thread_count; thread++) {
        if (threads[thread].state == DONE) done++;
        if (threads[thread].state != AT_BARRIER) continue;
        if (waiting++ && threads[thread].line != line) different = true;
        line = threads[thread].line;
    }
    if (!waiting || waiting + done < thread_count) return false;
    if (done || different) {
        problem = "barrier that not all threads reach: " + std::to_string(waiting) + " wait at line " +
                  std::to_string(line) + (different ? " and others" : "") + ", " + std::to_string(done) + " have returned";
        return false;
    }
    result_any = votes_any;
    result_all = votes_all;
    result_count = votes_count;
    votes_any = 0;
    votes_all = 1;
    votes_count = 0;
    for (size_t thread = 0; thread < thread_count; thread++) threads[thread].state = READY;
    return true;
}

bool run_block() {
    started = 0;
    votes_any = 0;
    votes_all = 1;
    votes_count = 0;
    for (size_t thread = 0; thread < thread_count; thread++) {
        threads[thread].state = WAITING_TO_START;
        threads[thread].offered = nullptr;
    }
    while (started < thread_count) {
        Fiber* fiber = idle_fiber();
        if (!fiber) return false;
        resume(fiber);
    }
    for (;;) {
        bool progress = false;
        for (size_t k = 0; k < thread_count; k++) {
            Thread& thread = threads[thread_order[k]];
            if (thread.state != READY) continue;
            resume(thread.fiber);
            progress = true;
        }
        progress |= release_warps();
        if (release_barrier()) progress = true;
        if (!problem.empty()) return false;
        if (progress) continue;
        for (size_t thread = 0; thread < thread_count; thread++)
            if (threads[thread].state != DONE) {
                problem = "threads wait for each other at different places";
                return false;
            }
        return true;
    }
}

template <class T> void put_in_order(T* items, size_t n) {
    for (size_t k = 0; k < n; k++) items[k] = settings().order == 1 ? n - 1 - k : k;
    if (settings().order == 2)
        for (size_t k = n; k > 1; k--) std::swap(items[k - 1], items[random() % k]);
}

}  // namespace

Result run_grid(const char* name, Thunk thunk, void** args, const Dims& dims, char* shared, size_t shared_bytes) {
    kernel = thunk;
    kernel_args = args;
    kernel_name = name;
    thread_count = (size_t)dims.block[0] * dims.block[1] * dims.block[2];
    kernel_state = KernelState();
    for (int axis = 0; axis < 3; axis++) {
        kernel_state.block_dim[axis] = dims.block[axis];
        kernel_state.grid_dim[axis] = dims.grid[axis];
    }
    kernel_state.barrier = barrier;
    kernel_state.vote = vote;
    kernel_state.warp_barrier = warp_barrier;
    kernel_state.warp_exchange = warp_exchange;
    kernel_state.trap = trap;
    put_in_order(thread_order, thread_count);

    // The bytes behind dynamic shared memory are checked, like those behind an allocation.
    static std::vector<char> dynamic;
    const size_t margin = 256;
    dynamic.assign((size_t)dims.shared + 2 * margin, (char)0xff);
    uintptr_t start = ((uintptr_t)dynamic.data() + 127) & ~(uintptr_t)127;
    kernel_state.dynamic_shared = (char*)start;

    struct sigaction action = {}, old[3];
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    const int signals[3] = {SIGSEGV, SIGBUS, SIGFPE};
    for (int k = 0; k < 3; k++) sigaction(signals[k], &action, &old[k]);

    problem.clear();
    Result result = SUCCESS;
    if (int crashed = sigsetjmp(crash, 1)) {
        if (crashed != 1) problem = crash_text;
        result = crashed == 2 ? ILLEGAL_ADDRESS : LAUNCH_FAILED;
    } else {
        in_kernel = 1;
        size_t blocks = (size_t)dims.grid[0] * dims.grid[1] * dims.grid[2];
        for (size_t k = 0; k < blocks && result == SUCCESS; k++) {
            size_t block = settings().order == 1 ? blocks - 1 - k : k;
            // An odd factor permutes where the number of blocks is a power of two; elsewhere blocks keep order.
            if (settings().order == 2 && !(blocks & (blocks - 1))) block = (k * 5 + 3) & (blocks - 1);
            kernel_state.block[0] = block % dims.grid[0];
            kernel_state.block[1] = block / dims.grid[0] % dims.grid[1];
            kernel_state.block[2] = block / dims.grid[0] / dims.grid[1];
            if (shared_bytes) memset(shared, 0xff, shared_bytes);
            if (dims.shared) memset(kernel_state.dynamic_shared, 0xff, dims.shared);
            if (!run_block()) result = LAUNCH_FAILED;
        }
        in_kernel = 0;
    }
    for (int k = 0; k < 3; k++) sigaction(signals[k], &old[k], nullptr);
    if (result != SUCCESS) forget_fibers();
    for (size_t at = 0; at < margin / 2 && result == SUCCESS; at++)
        if (kernel_state.dynamic_shared[dims.shared + at] != (char)0xff) {
            problem = "write behind dynamic shared memory";
            result = LAUNCH_FAILED;
        }
    if (result != SUCCESS) {
        char where[200];
        snprintf(where, sizeof where, " (kernel `%s`, block %u %u %u, thread %u %u %u)", name, kernel_state.block[0],
                 kernel_state.block[1], kernel_state.block[2], kernel_state.thread[0], kernel_state.thread[1],
                 kernel_state.thread[2]);
        return fail_for_good(result, problem + where);
    }
    return SUCCESS;
}

}  // namespace sd

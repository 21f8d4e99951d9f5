// The software CUDA device: what its files share.
//
// It stands in for libcuda, libnvrtc, libcublasLt and libnccl where there is no GPU, and is stricter than one:
// - Streams are deferred. Work is queued and runs only when something waits for it, so a program that
//   forgets to wait reads what was there before.
// - Memory is poisoned when it is allocated, and the bytes around each allocation are checked whenever the
//   host waits and when the allocation is freed.
// - An error is sticky, as on a GPU: after it every call fails with it.
// - Faults happen on demand: see `faults.cpp`.
// - NCCL connects ranks of one process, or processes of one host that share `SOFTDEVICE_MEET`: see `meeting.h`.
//
// One lock serialises everything but compilation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#define SD_API extern "C" __attribute__((visibility("default")))

namespace sd {

typedef int Result;
typedef uint64_t Pointer;

// The codes of the driver's `CUresult` that are given here.
enum : Result {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    ECC_UNCORRECTABLE = 214,
    INVALID_PTX = 218,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_OUT_OF_RESOURCES = 701,
    LAUNCH_FAILED = 719,
    // Of work that has to wait for another rank; never given to callers.
    PENDING = 699,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_UNMATCHED = 903,
    CAPTURE_UNJOINED = 904,
    CAPTURE_ISOLATION = 905,
    CAPTURE_IMPLICIT = 906,
};

// ---- settings, read once from the environment -------------------------------------------------------

struct Settings {
    int devices;            // SOFTDEVICE_COUNT, 1
    uint64_t memory;        // SOFTDEVICE_MEMORY, bytes of each device, 2 GiB
    int arch;               // SOFTDEVICE_ARCH, 90
    int order;              // SOFTDEVICE_ORDER: 0 as numbered, 1 backwards, 2 shuffled: threads, blocks, streams
    std::string report;     // SOFTDEVICE_REPORT, a file for counts at the end of the process
    std::string cache;      // SOFTDEVICE_CACHE, a folder for compiled kernels
};
const Settings& settings();

// ---- entry of every call ----------------------------------------------------------------------------

extern std::recursive_mutex lock;
extern Result sticky;
extern std::string last_message;

// Holds the lock during a call, counts it, and says what the call must answer at once: the sticky error
// or a fault that was asked for.
struct Call {
    std::lock_guard<std::recursive_mutex> guard;
    Result error;
    explicit Call(const char* name);
};
// Returns from the calling function if the device has failed.
#define SD_ENTER(name)      \
    sd::Call call_(name);   \
    if (call_.error) return call_.error

// Notes why something failed; printed to standard error, where whoever reads the test's output finds it.
Result fail(Result code, const std::string& why);
Result fail_for_good(Result code, const std::string& why);
uint64_t count(const char* name);
void count_up(const char* name, uint64_t by = 1);
uint64_t random();

// ---- faults -----------------------------------------------------------------------------------------

// Whether the call or launch that is now made is the one that must fail.
Result fault_of_call(const char* name);
bool fault_of_launch();
bool fault_of_allocation();
bool fault_of_collective();

// ---- memory -----------------------------------------------------------------------------------------

Result allocate(Pointer* out, size_t bytes, bool host);
Result release(Pointer at, bool host);
// Whether the bytes lie in one live allocation of the device, or in pinned memory of the host.
bool on_device(Pointer at, size_t bytes);
bool pinned(const void* at);
// Whether a kernel or a copy has written beside an allocation.
Result check_guards();
uint64_t used_bytes();
uint64_t peak_bytes();
int current_device();
bool has_context();

// ---- streams ----------------------------------------------------------------------------------------

struct Stream;
// Work may answer PENDING: then it is tried again, and what waits for it lets go of the lock for a while.
Result enqueue(void* stream, const char* what, std::function<Result()> run);
bool capturing(void* stream);
// Calls that must not happen while the calling thread captures end its capture with an error.
Result refuse_in_capture(const char* name);
Result drain_stream(void* stream);
Result drain_all();
// Called where memory is freed: the driver waits then, but whoever frees should have.
void count_busy_free();

// ---- kernels ----------------------------------------------------------------------------------------

struct Dims {
    unsigned grid[3], block[3], shared;
};
typedef void (*Thunk)(void** args);

// The same structure as in `kernel.h`.
struct KernelState {
    unsigned thread[3], block[3];
    unsigned block_dim[3], grid_dim[3];
    unsigned lane, lanes;
    char* dynamic_shared;
    void (*barrier)(int);
    int (*vote)(int, int, int);
    void (*warp_barrier)(unsigned, int);
    void (*warp_exchange)(unsigned, const void*, void*, size_t, int);
    void (*trap)(const char*);
};
extern KernelState kernel_state;

// Runs all blocks of a launch. `shared` is the static shared memory of the kernel's module.
Result run_grid(const char* name, Thunk thunk, void** args, const Dims& dims, char* shared, size_t shared_bytes);

// An image is a text header, then the bytes of a shared object, or the source for "PTX".
struct Compiled {
    bool ok;
    std::string log, object;
};
Compiled compile(const std::string& source, const std::vector<std::string>& options);

}  // namespace sd

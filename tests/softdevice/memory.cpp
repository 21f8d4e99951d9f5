// Memory of the device and pinned memory of the host.
//
// An allocation ends as near to an inaccessible page as its alignment allows, so most accesses out of
// bounds fault at once. The bytes between it and that page, and those in front of it, hold a pattern that is
// checked whenever the host waits.

#include "device.h"

#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

namespace sd {
namespace {

struct Allocation {
    size_t bytes;
    char* map;
    size_t mapped;
    bool host;
    int device;
};

const char POISON = (char)0xff;
const char GUARD = (char)0xa5;
const size_t ALIGNMENT = 256;

std::map<Pointer, Allocation> allocations;
uint64_t used[16], peak[16];

size_t page_size() { return (size_t)sysconf(_SC_PAGESIZE); }

// The allocation that holds a byte.
const Allocation* find(Pointer at, Pointer* start) {
    auto next = allocations.upper_bound(at);
    if (next == allocations.begin()) return nullptr;
    --next;
    if (at >= next->first + (next->second.bytes ? next->second.bytes : 1)) return nullptr;
    *start = next->first;
    return &next->second;
}

Result check(Pointer at, const Allocation& allocation) {
    char* start = (char*)at;
    char* first = allocation.map + page_size();
    char* last = allocation.map + allocation.mapped - page_size();
    for (char* byte = first; byte < start; byte++)
        if (*byte != GUARD) {
            *byte = GUARD;
            return fail_for_good(ILLEGAL_ADDRESS, "a write " + std::to_string(start - byte) + " bytes before an allocation of " +
                                                      std::to_string(allocation.bytes) + " bytes");
        }
    for (char* byte = start + allocation.bytes; byte < last; byte++)
        if (*byte != GUARD) {
            *byte = GUARD;
            return fail_for_good(ILLEGAL_ADDRESS, "a write " + std::to_string(byte - start - allocation.bytes) +
                                                      " bytes behind an allocation of " + std::to_string(allocation.bytes) +
                                                      " bytes");
        }
    return SUCCESS;
}

}  // namespace

Result allocate(Pointer* out, size_t bytes, bool host) {
    int device = current_device();
    if (!bytes) return INVALID_VALUE;
    if (!host && (fault_of_allocation() || bytes > settings().memory || used[device] + bytes > settings().memory))
        return fail(OUT_OF_MEMORY, "no room for " + std::to_string(bytes) + " bytes: " + std::to_string(used[device]) +
                                       " of " + std::to_string(settings().memory) + " are in use");
    size_t page = page_size();
    size_t inner = (bytes + ALIGNMENT + page - 1) / page * page;
    char* map = (char*)mmap(nullptr, inner + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return OUT_OF_MEMORY;
    mprotect(map + page, inner, PROT_READ | PROT_WRITE);
    char* end = map + page + inner;
    char* start = (char*)((uintptr_t)(end - bytes) / ALIGNMENT * ALIGNMENT);
    memset(map + page, GUARD, start - (map + page));
    memset(start, POISON, bytes);
    memset(start + bytes, GUARD, end - (start + bytes));
    *out = (Pointer)start;
    allocations[*out] = {bytes, map, inner + 2 * page, host, device};
    if (!host) {
        used[device] += bytes;
        if (used[device] > peak[device]) peak[device] = used[device];
    }
    return SUCCESS;
}

Result release(Pointer at, bool host) {
    auto found = allocations.find(at);
    if (found == allocations.end() || found->second.host != host)
        return fail(INVALID_VALUE, "what is freed was not allocated");
    Result guards = check(at, found->second);
    if (!host) used[found->second.device] -= found->second.bytes;
    munmap(found->second.map, found->second.mapped);
    allocations.erase(found);
    return guards;
}

bool on_device(Pointer at, size_t bytes) {
    Pointer start;
    const Allocation* allocation = find(at, &start);
    return allocation && !allocation->host && bytes <= start + allocation->bytes - at;
}

bool pinned(const void* at) {
    Pointer start;
    const Allocation* allocation = find((Pointer)at, &start);
    return allocation && allocation->host;
}

Result check_guards() {
    for (auto& entry : allocations)
        if (Result result = check(entry.first, entry.second)) return result;
    return SUCCESS;
}

uint64_t used_bytes() { return used[current_device()]; }

uint64_t peak_bytes() {
    uint64_t most = 0;
    for (uint64_t bytes : peak) most = bytes > most ? bytes : most;
    return most;
}

}  // namespace sd

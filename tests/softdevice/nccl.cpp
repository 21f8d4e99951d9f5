// The stand-in for NCCL: ranks have a device each, and meet as `meeting.h` says. A collective waits in its stream
// until all ranks have come to it, compares what they say, and adds in rank order.

#include "meeting.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

using namespace sd;

namespace {

enum : int { OK = 0, CUDA_ERROR = 1, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, REMOTE_ERROR = 6, IN_PROGRESS = 7 };
enum Kind { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, REDUCE };

struct Id {
    char bytes[128];
};

struct Rank {
    std::shared_ptr<Group> group;
    int rank, device;
    bool aborted = false;
    // The collective that is next, and whether this rank has brought its part. The group is joined as number 0.
    uint64_t next = 1;
    bool has_given = false;
};

size_t size_of(int type) { return type <= 1 ? 1 : type <= 3 ? 4 : type <= 5 ? 8 : type == 6 ? 2 : type == 7 ? 4 : type == 8 ? 8 : 2; }

float from_half(uint16_t bits) {
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 1023;
    float value;
    if (exponent == 0) {
        value = (float)fraction / 16777216.0f;
        return sign ? -value : value;
    }
    uint32_t wide = sign | (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13;
    memcpy(&value, &wide, 4);
    return value;
}

uint16_t to_half(float value) {
    _Float16 half = (_Float16)value;
    uint16_t bits;
    memcpy(&bits, &half, 2);
    return bits;
}

float from_brain(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

uint16_t to_brain(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (value != value) return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Adds elements up in rank order, halves in f32.
template <typename Stored, typename Sum, typename Read, typename Write>
void add(const Parts& parts, size_t first, size_t count, char* to, Read read, Write write) {
    for (size_t k = 0; k < count; k++) {
        Sum sum{};
        for (auto& entry : parts) {
            Stored stored;
            memcpy(&stored, entry.second.bytes.data() + (first + k) * sizeof(Stored), sizeof(Stored));
            sum = entry.first == 0 ? read(stored) : (Sum)(sum + read(stored));
        }
        Stored stored = write(sum);
        memcpy(to + k * sizeof(Stored), &stored, sizeof(Stored));
    }
}

template <typename T>
void add(const Parts& parts, size_t first, size_t count, char* to) {
    add<T, T>(parts, first, count, to, [](T x) { return x; }, [](T x) { return x; });
}

void sum(const Parts& parts, int type, size_t first, size_t count, char* to) {
    switch (type) {
        case 0: case 1: return add<uint8_t>(parts, first, count, to);
        case 2: case 3: return add<uint32_t>(parts, first, count, to);
        case 4: case 5: return add<uint64_t>(parts, first, count, to);
        case 6: return add<uint16_t, float>(parts, first, count, to, from_half, to_half);
        case 7: return add<float>(parts, first, count, to);
        case 8: return add<double>(parts, first, count, to);
        case 9: return add<uint16_t, float>(parts, first, count, to, from_brain, to_brain);
    }
}

// The number of a collective that never ends.
const uint64_t NEVER = ~0ull;

// One rank's try at a collective.
Result meet(Rank* rank, Kind kind, const char* from, char* to, size_t count, int type, int root) {
    // What was given up ends, and leaves its result as it is.
    if (rank->aborted) return SUCCESS;
    Group& group = *rank->group;
    size_t bytes = count * size_of(type), world = (size_t)group.world;
    if (!rank->has_given && rank->next != NEVER) {
        if (fault_of_collective()) return rank->next = NEVER, PENDING;
        size_t given = kind == REDUCE_SCATTER ? bytes * world : bytes;
        group.give(rank->next, rank->rank, {kind, type, root, count, std::vector<char>(from, from + given)});
        rank->has_given = true;
    }
    const Parts* all = rank->next == NEVER ? nullptr : group.parts(rank->next);
    if (sticky) return sticky;
    if (!all) return PENDING;
    const Part& first = all->begin()->second;
    for (auto& entry : *all) {
        const Part& part = entry.second;
        if (part.kind != first.kind || part.count != first.count || part.type != first.type || part.root != first.root)
            return fail_for_good(LAUNCH_FAILED, "ranks of NCCL that do different things");
    }
    switch (kind) {
        case ALL_REDUCE: sum(*all, type, 0, count, to); break;
        case REDUCE_SCATTER: sum(*all, type, count * (size_t)rank->rank, count, to); break;
        case ALL_GATHER:
            for (auto& entry : *all) memcpy(to + (size_t)entry.first * bytes, entry.second.bytes.data(), bytes);
            break;
        case BROADCAST: memcpy(to, all->at(root).bytes.data(), bytes); break;
        case REDUCE:
            if (rank->rank == root) sum(*all, type, 0, count, to);
            break;
    }
    group.done(rank->next++, rank->rank);
    rank->has_given = false;
    return SUCCESS;
}

int collective(const char* name, Kind kind, const void* from, void* to, size_t count, int type, int root, void* comm, void* stream) {
    Call call(name);
    if (call.error) return CUDA_ERROR;
    Rank* rank = (Rank*)comm;
    if (!rank || rank->aborted || rank->device != current_device()) return fail(INVALID_ARGUMENT, "NCCL on another device");
    size_t bytes = count * size_of(type), world = (size_t)rank->group->world;
    size_t given = kind == REDUCE_SCATTER ? bytes * world : bytes, made = kind == ALL_GATHER ? bytes * world : bytes;
    bool writes = kind != REDUCE || rank->rank == root;
    if (!on_device((Pointer)from, given) || (writes && !on_device((Pointer)to, made)))
        return fail(INVALID_ARGUMENT, std::string(name) + " outside of what was allocated");
    Result result = enqueue(stream, name, [=] { return meet(rank, kind, (const char*)from, (char*)to, count, type, root); });
    return result ? CUDA_ERROR : OK;
}

}  // namespace

SD_API int ncclGetVersion(int* version) {
    *version = 22703;
    return OK;
}

SD_API const char* ncclGetErrorString(int code) {
    switch (code) {
        case OK: return "no error";
        case CUDA_ERROR: return "unhandled cuda error";
        case SYSTEM_ERROR: return "unhandled system error";
        case INVALID_ARGUMENT: return "invalid argument";
        case REMOTE_ERROR: return "remote process exited or there was a network error";
        case IN_PROGRESS: return "NCCL operation in progress";
        default: return "unknown result code";
    }
}

SD_API int ncclGetUniqueId(Id* id) {
    Call call("ncclGetUniqueId");
    if (call.error) return CUDA_ERROR;
    memset(id, 0, sizeof *id);
    snprintf(id->bytes, sizeof id->bytes, "%s", new_group().c_str());
    return OK;
}

SD_API int ncclCommInitRankConfig(void** out, int world, Id id, int rank, void*) {
    Call call("ncclCommInitRankConfig");
    *out = nullptr;
    if (call.error) return CUDA_ERROR;
    auto group = find_group(id.bytes, world);
    if (!group) return SYSTEM_ERROR;
    if (group->world != world || rank < 0 || rank >= world) return INVALID_ARGUMENT;
    group->join(rank);
    *out = new Rank{group, rank, current_device()};
    return IN_PROGRESS;
}

SD_API int ncclCommGetAsyncError(void* comm, int* status) {
    Call call("ncclCommGetAsyncError");
    Rank* rank = (Rank*)comm;
    if (!rank || rank->aborted) return INVALID_ARGUMENT;
    *status = rank->group->is_lost() ? REMOTE_ERROR : !rank->group->is_complete() ? IN_PROGRESS : sticky ? CUDA_ERROR : OK;
    return OK;
}

SD_API int ncclCommAbort(void* comm) {
    Call call("ncclCommAbort");
    if (!comm) return INVALID_ARGUMENT;
    // Collectives in a stream may still name it, so its memory stays.
    ((Rank*)comm)->aborted = true;
    return OK;
}

SD_API int ncclCommFinalize(void* comm) {
    Call call("ncclCommFinalize");
    return comm ? OK : INVALID_ARGUMENT;
}

SD_API int ncclCommDestroy(void* comm) { return ncclCommAbort(comm); }

SD_API int ncclAllReduce(const void* from, void* to, size_t count, int type, int op, void* comm, void* stream) {
    if (op != 0) return INVALID_ARGUMENT;
    return collective("ncclAllReduce", ALL_REDUCE, from, to, count, type, 0, comm, stream);
}

SD_API int ncclAllGather(const void* from, void* to, size_t count, int type, void* comm, void* stream) {
    return collective("ncclAllGather", ALL_GATHER, from, to, count, type, 0, comm, stream);
}

SD_API int ncclReduceScatter(const void* from, void* to, size_t count, int type, int op, void* comm, void* stream) {
    if (op != 0) return INVALID_ARGUMENT;
    return collective("ncclReduceScatter", REDUCE_SCATTER, from, to, count, type, 0, comm, stream);
}

SD_API int ncclBroadcast(const void* from, void* to, size_t count, int type, int root, void* comm, void* stream) {
    return collective("ncclBroadcast", BROADCAST, from, to, count, type, root, comm, stream);
}

SD_API int ncclReduce(const void* from, void* to, size_t count, int type, int op, int root, void* comm, void* stream) {
    if (op != 0) return INVALID_ARGUMENT;
    return collective("ncclReduce", REDUCE, from, to, count, type, root, comm, stream);
}

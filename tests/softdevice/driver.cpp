// The driver's calls for devices, contexts, memory and errors.

#include "device.h"

#include <cstdio>
#include <cstring>

using namespace sd;

namespace {

thread_local uintptr_t context;
const uintptr_t CONTEXT_BASE = 0x5d000000;
bool initialised;

struct ErrorText {
    Result code;
    const char *name, *text;
};
const ErrorText ERRORS[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {ECC_UNCORRECTABLE, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
    {CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream"},
};

Result copy(void* to, const void* from, size_t bytes) {
    memmove(to, from, bytes);
    return SUCCESS;
}

}  // namespace

namespace sd {

int current_device() { return context ? (int)(context - CONTEXT_BASE) : 0; }
bool has_context() { return context != 0; }

}  // namespace sd

SD_API Result cuInit(unsigned) {
    SD_ENTER("cuInit");
    initialised = true;
    return settings().devices > 0 ? SUCCESS : NO_DEVICE;
}

SD_API Result cuDriverGetVersion(int* version) {
    SD_ENTER("cuDriverGetVersion");
    *version = 13000;
    return SUCCESS;
}

SD_API Result cuDeviceGetCount(int* count) {
    SD_ENTER("cuDeviceGetCount");
    if (!initialised) return NOT_INITIALIZED;
    *count = settings().devices;
    return SUCCESS;
}

SD_API Result cuDeviceGet(int* device, int ordinal) {
    SD_ENTER("cuDeviceGet");
    if (!initialised) return NOT_INITIALIZED;
    if (ordinal < 0 || ordinal >= settings().devices) return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}

SD_API Result cuDeviceGetName(char* name, int bytes, int) {
    SD_ENTER("cuDeviceGetName");
    snprintf(name, (size_t)bytes, "software device");
    return SUCCESS;
}

SD_API Result cuDeviceGetUuid_v2(void* uuid, int device) {
    SD_ENTER("cuDeviceGetUuid_v2");
    memset(uuid, device + 1, 16);
    return SUCCESS;
}

SD_API Result cuDeviceTotalMem_v2(size_t* bytes, int) {
    SD_ENTER("cuDeviceTotalMem_v2");
    *bytes = settings().memory;
    return SUCCESS;
}

SD_API Result cuDeviceGetAttribute(int* value, int attribute, int device) {
    SD_ENTER("cuDeviceGetAttribute");
    switch (attribute) {
        case 1: *value = 1024; break;           // threads of a block
        case 2: case 3: *value = 1024; break;   // block x, y
        case 4: *value = 64; break;             // block z
        case 5: *value = 2147483647; break;     // grid x
        case 6: case 7: *value = 65535; break;  // grid y, z
        case 8: *value = 48 << 10; break;       // shared memory of a block
        case 10: *value = 32; break;            // warp
        case 12: *value = 65536; break;         // registers
        case 16: *value = 4; break;             // multiprocessors
        case 31: *value = 1; break;             // concurrent kernels
        case 33: *value = device; break;        // PCI bus
        case 39: *value = 2048; break;          // threads of a multiprocessor
        case 41: *value = 1; break;             // unified addressing
        case 75: *value = settings().arch / 10; break;
        case 76: *value = settings().arch % 10; break;
        case 81: *value = 228 << 10; break;     // shared memory of a multiprocessor
        case 97: *value = settings().arch >= 90 ? 227 << 10 : settings().arch >= 80 ? 163 << 10 : 64 << 10; break;
        case 115: *value = 1; break;            // memory pools
        default: *value = 0;
    }
    return SUCCESS;
}

SD_API Result cuDevicePrimaryCtxRetain(void** out, int device) {
    SD_ENTER("cuDevicePrimaryCtxRetain");
    *out = (void*)(CONTEXT_BASE + (uintptr_t)device);
    return SUCCESS;
}

SD_API Result cuDevicePrimaryCtxRelease_v2(int) {
    SD_ENTER("cuDevicePrimaryCtxRelease_v2");
    return SUCCESS;
}

SD_API Result cuCtxGetCurrent(void** out) {
    Call call("cuCtxGetCurrent");
    *out = (void*)context;
    return SUCCESS;
}

SD_API Result cuCtxSetCurrent(void* to) {
    Call call("cuCtxSetCurrent");
    context = (uintptr_t)to;
    return SUCCESS;
}

SD_API Result cuCtxGetDevice(int* device) {
    SD_ENTER("cuCtxGetDevice");
    if (!context) return INVALID_CONTEXT;
    *device = current_device();
    return SUCCESS;
}

SD_API Result cuCtxSetFlags(unsigned) {
    SD_ENTER("cuCtxSetFlags");
    return context ? SUCCESS : INVALID_CONTEXT;
}

SD_API Result cuGetErrorName(Result code, const char** out) {
    for (const ErrorText& error : ERRORS)
        if (error.code == code) return *out = error.name, SUCCESS;
    *out = nullptr;
    return INVALID_VALUE;
}

SD_API Result cuGetErrorString(Result code, const char** out) {
    for (const ErrorText& error : ERRORS)
        if (error.code == code) return *out = error.text, SUCCESS;
    *out = nullptr;
    return INVALID_VALUE;
}

SD_API Result cuMemGetInfo_v2(size_t* free, size_t* total) {
    SD_ENTER("cuMemGetInfo_v2");
    if (!context) return INVALID_CONTEXT;
    *total = settings().memory;
    *free = settings().memory - used_bytes();
    return SUCCESS;
}

SD_API Result cuMemAlloc_v2(Pointer* out, size_t bytes) {
    SD_ENTER("cuMemAlloc_v2");
    if (!context) return INVALID_CONTEXT;
    if (Result result = refuse_in_capture("cuMemAlloc")) return result;
    return allocate(out, bytes, false);
}

SD_API Result cuMemFree_v2(Pointer at) {
    SD_ENTER("cuMemFree_v2");
    if (!at) return SUCCESS;
    if (Result result = refuse_in_capture("cuMemFree")) return result;
    count_busy_free();
    if (Result result = drain_all()) return result;
    return release(at, false);
}

SD_API Result cuMemAllocAsync(Pointer* out, size_t bytes, void* stream) {
    SD_ENTER("cuMemAllocAsync");
    if (capturing(stream)) return fail(CAPTURE_UNSUPPORTED, "cuMemAllocAsync in a capture is not supported here");
    return allocate(out, bytes, false);
}

SD_API Result cuMemFreeAsync(Pointer at, void* stream) {
    SD_ENTER("cuMemFreeAsync");
    if (!at) return SUCCESS;
    if (capturing(stream)) return fail(CAPTURE_UNSUPPORTED, "cuMemFreeAsync in a capture is not supported here");
    return enqueue(stream, "free", [=] { return release(at, false); });
}

SD_API Result cuMemHostAlloc(void** out, size_t bytes, unsigned) {
    SD_ENTER("cuMemHostAlloc");
    if (!context) return INVALID_CONTEXT;
    if (Result result = refuse_in_capture("cuMemHostAlloc")) return result;
    return allocate((Pointer*)out, bytes, true);
}

SD_API Result cuMemFreeHost(void* at) {
    SD_ENTER("cuMemFreeHost");
    if (Result result = refuse_in_capture("cuMemFreeHost")) return result;
    count_busy_free();
    if (Result result = drain_all()) return result;
    return release((Pointer)at, true);
}

static Result outside(const char* name) { return fail(INVALID_VALUE, std::string(name) + " outside of what was allocated"); }

SD_API Result cuMemsetD8Async(Pointer at, unsigned char value, size_t bytes, void* stream) {
    SD_ENTER("cuMemsetD8Async");
    if (!on_device(at, bytes)) return outside("cuMemsetD8Async");
    return enqueue(stream, "memset", [=] {
        memset((void*)at, value, bytes);
        return SUCCESS;
    });
}

SD_API Result cuMemsetD8_v2(Pointer at, unsigned char value, size_t bytes) {
    SD_ENTER("cuMemsetD8_v2");
    if (!on_device(at, bytes)) return outside("cuMemsetD8");
    // Like the real one, it may return before the memory is set.
    return enqueue(nullptr, "memset", [=] {
        memset((void*)at, value, bytes);
        return SUCCESS;
    });
}

SD_API Result cuMemsetD32Async(Pointer at, unsigned value, size_t count, void* stream) {
    SD_ENTER("cuMemsetD32Async");
    if (at % 4 || !on_device(at, count * 4)) return outside("cuMemsetD32Async");
    return enqueue(stream, "memset", [=] {
        for (size_t k = 0; k < count; k++) ((unsigned*)at)[k] = value;
        return SUCCESS;
    });
}

SD_API Result cuMemcpyHtoDAsync_v2(Pointer to, const void* from, size_t bytes, void* stream) {
    SD_ENTER("cuMemcpyHtoDAsync_v2");
    if (!bytes) return SUCCESS;
    if (!on_device(to, bytes)) return outside("cuMemcpyHtoDAsync");
    // Pinned memory is read when the copy runs, so it must not change before; other memory is read at once.
    if (pinned(from) || capturing(stream)) return enqueue(stream, "upload", [=] { return copy((void*)to, from, bytes); });
    auto staged = std::make_shared<std::vector<char>>((const char*)from, (const char*)from + bytes);
    return enqueue(stream, "upload", [=] { return copy((void*)to, staged->data(), bytes); });
}

SD_API Result cuMemcpyDtoHAsync_v2(void* to, Pointer from, size_t bytes, void* stream) {
    SD_ENTER("cuMemcpyDtoHAsync_v2");
    if (!bytes) return SUCCESS;
    if (!on_device(from, bytes)) return outside("cuMemcpyDtoHAsync");
    if (Result result = enqueue(stream, "download", [=] { return copy(to, (const void*)from, bytes); })) return result;
    return pinned(to) || capturing(stream) ? SUCCESS : drain_stream(stream);
}

SD_API Result cuMemcpyDtoDAsync_v2(Pointer to, Pointer from, size_t bytes, void* stream) {
    SD_ENTER("cuMemcpyDtoDAsync_v2");
    if (!bytes) return SUCCESS;
    if (!on_device(to, bytes) || !on_device(from, bytes)) return outside("cuMemcpyDtoDAsync");
    if (to < from + bytes && from < to + bytes && to != from) return fail(INVALID_VALUE, "a copy onto itself");
    return enqueue(stream, "copy", [=] { return copy((void*)to, (const void*)from, bytes); });
}

SD_API Result cuMemcpyHtoD_v2(Pointer to, const void* from, size_t bytes) {
    SD_ENTER("cuMemcpyHtoD_v2");
    if (!bytes) return SUCCESS;
    if (Result result = refuse_in_capture("cuMemcpyHtoD")) return result;
    if (!on_device(to, bytes)) return outside("cuMemcpyHtoD");
    if (Result result = enqueue(nullptr, "upload", [=] { return copy((void*)to, from, bytes); })) return result;
    return drain_stream(nullptr);
}

SD_API Result cuMemcpyDtoH_v2(void* to, Pointer from, size_t bytes) {
    SD_ENTER("cuMemcpyDtoH_v2");
    if (!bytes) return SUCCESS;
    if (Result result = refuse_in_capture("cuMemcpyDtoH")) return result;
    if (!on_device(from, bytes)) return outside("cuMemcpyDtoH");
    if (Result result = enqueue(nullptr, "download", [=] { return copy(to, (const void*)from, bytes); })) return result;
    return drain_stream(nullptr);
}

SD_API Result cuMemcpyDtoD_v2(Pointer to, Pointer from, size_t bytes) {
    return cuMemcpyDtoDAsync_v2(to, from, bytes, nullptr);
}

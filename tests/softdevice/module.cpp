// Modules and launches.
//
// An image of this device is either the shared object that the host's compiler made of a kernel (in place of
// a CUBIN), or the kernel's source (in place of PTX), behind a line that says which and for which machine.

#include "device.h"
#include "image.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <set>
#include <unistd.h>

using namespace sd;

namespace {

struct Module {
    void* library;
    char* shared;
    size_t shared_bytes;
};

struct Function {
    Module* module;
    std::string name;
    Thunk thunk;
    std::vector<size_t> sizes;
    long most_dynamic;
};

const long SHARED_BYTES = 48 << 10;

std::set<void*>& modules() {
    static auto& all = *new std::set<void*>;
    return all;
}

std::set<void*>& functions() {
    static auto& all = *new std::set<void*>;
    return all;
}

// Writes the object to a file that only lives until it is loaded.
void* load_object(const char* bytes, size_t length) {
    std::string path = (getenv("TMPDIR") ? std::string(getenv("TMPDIR")) : "/tmp") + "/softdevice-XXXXXX";
    int file = mkstemp(&path[0]);
    if (file < 0) return nullptr;
    size_t written = 0;
    while (written < length) {
        ssize_t n = write(file, bytes + written, length - written);
        if (n <= 0) break;
        written += (size_t)n;
    }
    close(file);
    void* library = written == length ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (!library) last_message = written == length ? dlerror() : "the image could not be written";
    unlink(path.c_str());
    return library;
}

}  // namespace

SD_API Result cuModuleLoadData(void** out, const void* image) {
    SD_ENTER("cuModuleLoadData");
    if (!has_context()) return INVALID_CONTEXT;
    if (Result result = refuse_in_capture("cuModuleLoadData")) return result;
    const char* text = (const char*)image;
    int arch = 0;
    unsigned long long length = 0;
    int header = 0;
    std::string object;
    if (sscanf(text, IMAGE_OF_OBJECT, &arch, &length, &header) == 2 && header) {
        if (arch / 10 != settings().arch / 10 || arch > settings().arch)
            return fail(NO_BINARY_FOR_GPU, "an image for sm_" + std::to_string(arch));
        object.assign(text + header, length);
    } else if (sscanf(text, IMAGE_OF_SOURCE, &arch, &header) == 1 && header) {
        if (arch > settings().arch) return fail(INVALID_PTX, "PTX for sm_" + std::to_string(arch));
        Compiled compiled = compile(text + header, {});
        if (!compiled.ok) return fail(INVALID_PTX, compiled.log);
        object = compiled.object;
    } else {
        return fail(INVALID_IMAGE, "an image that is not of this device");
    }
    void* library = load_object(object.data(), object.size());
    if (!library) return fail(INVALID_IMAGE, last_message);
    KernelState** state = (KernelState**)dlsym(library, "sd_kernel_state");
    char** shared = (char**)dlsym(library, "sd_shared_memory");
    if (!state || !shared) return fail(INVALID_IMAGE, "an image without the symbols of this device");
    *state = &kernel_state;
    Module* module = new Module{library, shared[0], (size_t)(shared[1] - shared[0])};
    modules().insert(module);
    *out = module;
    return SUCCESS;
}

SD_API Result cuModuleUnload(void* handle) {
    SD_ENTER("cuModuleUnload");
    if (!modules().count(handle)) return INVALID_HANDLE;
    if (Result result = drain_all()) return result;
    modules().erase(handle);
    dlclose(((Module*)handle)->library);
    delete (Module*)handle;
    return SUCCESS;
}

SD_API Result cuModuleGetFunction(void** out, void* handle, const char* name) {
    SD_ENTER("cuModuleGetFunction");
    if (!modules().count(handle)) return INVALID_HANDLE;
    Module* module = (Module*)handle;
    Thunk thunk = (Thunk)dlsym(module->library, (std::string("sd_call_") + name).c_str());
    auto sizes = (int (*)(size_t*))dlsym(module->library, (std::string("sd_sizes_") + name).c_str());
    if (!thunk || !sizes) return fail(NOT_FOUND, std::string("no kernel `") + name + "`");
    size_t all[256];
    int n = sizes(all);
    Function* function = new Function{module, name, thunk, std::vector<size_t>(all, all + n), SHARED_BYTES};
    functions().insert(function);
    *out = function;
    return SUCCESS;
}

SD_API Result cuModuleGetGlobal_v2(Pointer*, size_t*, void*, const char* name) {
    SD_ENTER("cuModuleGetGlobal_v2");
    return fail(NOT_FOUND, std::string("no global `") + name + "`");
}

SD_API Result cuFuncGetAttribute(int* value, int attribute, void* handle) {
    SD_ENTER("cuFuncGetAttribute");
    if (!functions().count(handle)) return INVALID_HANDLE;
    Function* function = (Function*)handle;
    *value = attribute == 0 ? 1024 : attribute == 1 ? (int)function->module->shared_bytes : attribute == 8 ? (int)function->most_dynamic : 0;
    return SUCCESS;
}

SD_API Result cuFuncSetAttribute(void* handle, int attribute, int value) {
    SD_ENTER("cuFuncSetAttribute");
    if (!functions().count(handle)) return INVALID_HANDLE;
    long most = settings().arch >= 90 ? 227 << 10 : settings().arch >= 80 ? 163 << 10 : 64 << 10;
    if (attribute == 8) {
        if (value < 0 || value > most) return INVALID_VALUE;
        ((Function*)handle)->most_dynamic = value;
    }
    return SUCCESS;
}

SD_API Result cuFuncSetCacheConfig(void*, int) {
    SD_ENTER("cuFuncSetCacheConfig");
    return SUCCESS;
}

SD_API Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int threads, size_t) {
    SD_ENTER("cuOccupancyMaxActiveBlocksPerMultiprocessor");
    *blocks = threads > 0 ? 2048 / threads : 0;
    return SUCCESS;
}

SD_API Result cuLaunchKernel(void* handle, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                             unsigned shared, void* stream, void** args, void** extra) {
    SD_ENTER("cuLaunchKernel");
    if (!functions().count(handle)) return INVALID_HANDLE;
    Function* function = (Function*)handle;
    uint64_t threads = (uint64_t)bx * by * bz;
    if (!gx || !gy || !gz || !threads || extra) return fail(INVALID_VALUE, "a launch without blocks or threads of `" + function->name + "`");
    if (gx > 2147483647u || gy > 65535 || gz > 65535 || threads > 1024 || bz > 64)
        return fail(INVALID_VALUE, "a launch of `" + function->name + "` with too many blocks or threads");
    if ((long)shared > function->most_dynamic)
        return fail(INVALID_VALUE, "a launch of `" + function->name + "` with " + std::to_string(shared) +
                                       " bytes of dynamic shared memory, where " + std::to_string(function->most_dynamic) +
                                       " are allowed");
    if (!args && !function->sizes.empty()) return INVALID_VALUE;
    auto values = std::make_shared<std::vector<std::vector<char>>>();
    for (size_t k = 0; k < function->sizes.size(); k++)
        values->emplace_back((char*)args[k], (char*)args[k] + function->sizes[k]);
    Dims dims{{gx, gy, gz}, {bx, by, bz}, shared};
    return enqueue(stream, "kernel", [=] {
        count_up("launches");
        if (fault_of_launch()) return fail_for_good(LAUNCH_FAILED, "fault on demand in a launch of `" + function->name + "`");
        std::vector<void*> pointers;
        for (auto& value : *values) pointers.push_back(value.data());
        return run_grid(function->name.c_str(), function->thunk, pointers.data(), dims, function->module->shared,
                        function->module->shared_bytes);
    });
}

// Settings, counts, and faults on demand.
//
// `SOFTDEVICE_FAULT` holds faults, separated by commas:
//   launch:N   the N-th launch of a kernel fails when it runs (719, sticky)
//   memory:N   the N-th allocation on the device finds no room
//   hang:N     the N-th collective of NCCL never ends, whatever the other ranks do
//   lost:N     from the N-th call on, the device is gone (214, sticky)
//   CALL:N     the N-th call of the function CALL fails with 1
//   kill_CALL:N, stop_CALL:N   it ends the process without a word, or lets it do nothing any more
// N counts from 1.

#include "device.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>

namespace sd {

std::recursive_mutex lock;
Result sticky = SUCCESS;
std::string last_message;

namespace {

std::map<std::string, uint64_t>& counts() {
    static auto& all = *new std::map<std::string, uint64_t>;
    return all;
}

uint64_t number(const char* name, uint64_t otherwise) {
    const char* text = getenv(name);
    return text && *text ? strtoull(text, nullptr, 10) : otherwise;
}

// The N of `NAME:N` in the list of faults, or 0.
uint64_t fault(const std::string& name) {
    const char* list = getenv("SOFTDEVICE_FAULT");
    if (!list) return 0;
    std::string text = std::string(",") + list + ",";
    size_t at = text.find("," + name + ":");
    return at == std::string::npos ? 0 : strtoull(text.c_str() + at + name.size() + 2, nullptr, 10);
}

void write_report() {
    FILE* file = fopen(settings().report.c_str(), "a");
    if (!file) return;
    fprintf(file, "pid %d\npeak_bytes %llu\n", (int)getpid(), (unsigned long long)peak_bytes());
    for (auto& entry : counts()) fprintf(file, "%s %llu\n", entry.first.c_str(), (unsigned long long)entry.second);
    fclose(file);
}

}  // namespace

const Settings& settings() {
    static const Settings& all = *[] {
        Settings* s = new Settings;
        s->devices = (int)number("SOFTDEVICE_COUNT", 1);
        if (s->devices > 16) s->devices = 16;
        s->memory = number("SOFTDEVICE_MEMORY", 2ull << 30);
        s->arch = (int)number("SOFTDEVICE_ARCH", 90);
        s->order = (int)number("SOFTDEVICE_ORDER", 0);
        if (const char* report = getenv("SOFTDEVICE_REPORT")) s->report = report;
        if (const char* cache = getenv("SOFTDEVICE_CACHE")) s->cache = cache;
        if (!s->report.empty()) atexit(write_report);
        return s;
    }();
    return all;
}

Call::Call(const char* name) : guard(lock), error(SUCCESS) {
    count_up(name);
    count_up("calls");
    error = sticky ? sticky : fault_of_call(name);
}

Result fail(Result code, const std::string& why) {
    last_message = why;
    if (getenv("SOFTDEVICE_VERBOSE")) fprintf(stderr, "[software device] error %d: %s\n", code, why.c_str());
    return code;
}

Result fail_for_good(Result code, const std::string& why) {
    if (!sticky) {
        sticky = code;
        last_message = why;
        fprintf(stderr, "[software device] error %d: %s\n", code, why.c_str());
    }
    return sticky;
}

uint64_t count(const char* name) { return counts()[name]; }
void count_up(const char* name, uint64_t by) { counts()[name] += by; }

uint64_t random() {
    static uint64_t state = 0x9e3779b97f4a7c15;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

Result fault_of_call(const char* name) {
    static const uint64_t lost = fault("lost");
    if (lost && count("calls") >= lost) return fail_for_good(ECC_UNCORRECTABLE, "the device is lost");
    static const bool any = getenv("SOFTDEVICE_FAULT");
    if (any && fault(std::string("kill_") + name) == count(name)) raise(SIGKILL);
    if (any && fault(std::string("stop_") + name) == count(name)) raise(SIGSTOP);
    if (any && fault(name) == count(name)) return fail(INVALID_VALUE, std::string("fault on demand in ") + name);
    return SUCCESS;
}

bool fault_of_launch() {
    static const uint64_t at = fault("launch");
    return at && count("launches") == at;
}

bool fault_of_allocation() {
    static const uint64_t at = fault("memory");
    count_up("allocations");
    return at && count("allocations") == at;
}

bool fault_of_collective() {
    static const uint64_t at = fault("hang");
    count_up("collectives");
    return at && count("collectives") == at;
}

}  // namespace sd

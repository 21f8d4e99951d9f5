// The stand-in for NVRTC: compiles kernels with the host's C++ compiler.
//
// The text is preprocessed first, with `__global__` and `extern __shared__` left as they are; then kernels
// are found by `__global__`, whatever macros wrote them, and each gets a function that calls it with the
// arguments of a launch. Objects are cached by content.

#include "device.h"
#include "image.h"

#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

using namespace sd;

namespace {

enum { NVRTC_INVALID_OPTION = 5, NVRTC_COMPILATION = 6, NVRTC_INVALID_PROGRAM = 4 };

struct Program {
    std::string source, defines, log, object;
    int arch = 52;
    bool real_arch = false, compiled = false;
};

// The folder of this library, where `kernel.h` is.
std::string home() {
    Dl_info info;
    if (!dladdr((void*)&home, &info) || !info.dli_fname) return ".";
    std::string path = info.dli_fname;
    size_t slash = path.rfind('/');
    return slash == std::string::npos ? "." : path.substr(0, slash);
}

std::string read_file(const std::string& path) {
    std::string text;
    if (FILE* file = fopen(path.c_str(), "rb")) {
        char buffer[65536];
        while (size_t n = fread(buffer, 1, sizeof buffer, file)) text.append(buffer, n);
        fclose(file);
    }
    return text;
}

bool write_file(const std::string& path, const std::string& text) {
    FILE* file = fopen(path.c_str(), "wb");
    if (!file) return false;
    bool ok = fwrite(text.data(), 1, text.size(), file) == text.size();
    return fclose(file) == 0 && ok;
}

bool run(const std::vector<std::string>& words, const std::string& log) {
    std::vector<char*> args;
    for (const std::string& word : words) args.push_back((char*)word.c_str());
    args.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 2, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
    pid_t child;
    int failed = posix_spawnp(&child, args[0], &files, nullptr, args.data(), environ);
    posix_spawn_file_actions_destroy(&files);
    int status = 0;
    if (failed) return false;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return false;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

uint64_t hash(const std::string& text, uint64_t value = 0xcbf29ce484222325) {
    for (unsigned char byte : text) value = (value ^ byte) * 0x100000001b3;
    return value;
}

bool word_character(char c) { return isalnum((unsigned char)c) || c == '_'; }

// Where a word stands by itself, from `from` on.
size_t find_word(const std::string& text, const std::string& word, size_t from) {
    for (size_t at = text.find(word, from); at != std::string::npos; at = text.find(word, at + 1)) {
        bool before = at == 0 || !word_character(text[at - 1]);
        bool after = at + word.size() >= text.size() || !word_character(text[at + word.size()]);
        if (before && after) return at;
    }
    return std::string::npos;
}

// `extern __shared__ T name[];` becomes a pointer to dynamic shared memory, other `__shared__` a static.
void rewrite_shared(std::string& text) {
    const std::string word = "__shared__";
    for (size_t at = find_word(text, word, 0); at != std::string::npos; at = find_word(text, word, at)) {
        size_t before = at;
        while (before > 0 && isspace((unsigned char)text[before - 1])) before--;
        bool dynamic = before >= 6 && text.compare(before - 6, 6, "extern") == 0;
        if (!dynamic) {
            text.replace(at, word.size(), "static");
            at += 6;
            continue;
        }
        size_t end = text.find(';', at), bracket = text.find('[', at);
        if (end == std::string::npos || bracket == std::string::npos || bracket > end) return;
        std::string declared = text.substr(at + word.size(), bracket - at - word.size());
        size_t align = declared.find("__attribute__");
        if (align != std::string::npos) {
            int depth = 0;
            size_t close = align;
            for (; close < declared.size(); close++) {
                if (declared[close] == '(') depth++;
                if (declared[close] == ')' && --depth == 0) break;
            }
            declared.erase(align, close + 1 - align);
        }
        while (!declared.empty() && isspace((unsigned char)declared.back())) declared.pop_back();
        size_t name = declared.size();
        while (name > 0 && word_character(declared[name - 1])) name--;
        std::string type = declared.substr(0, name);
        std::string made = type + "* " + declared.substr(name) + " = (" + type + "*)sd_kernel_state->dynamic_shared";
        text.replace(before - 6, end - (before - 6), made);
        at = before - 6 + made.size();
    }
}

// Removes `__global__` and collects the names of the kernels.
std::vector<std::string> take_kernels(std::string& text) {
    std::vector<std::string> names;
    const std::string word = "__global__";
    for (size_t at = find_word(text, word, 0); at != std::string::npos; at = find_word(text, word, at)) {
        text.replace(at, word.size(), std::string(word.size(), ' '));
        // The name stands before the first parenthesis that is not of an attribute.
        size_t open = text.find('(', at);
        while (open != std::string::npos) {
            size_t end = open;
            while (end > at && isspace((unsigned char)text[end - 1])) end--;
            size_t start = end;
            while (start > at && word_character(text[start - 1])) start--;
            std::string name = text.substr(start, end - start);
            if (name != "__attribute__") {
                bool known = false;
                for (const std::string& other : names) known |= other == name;
                if (!name.empty() && !known) names.push_back(name);
                break;
            }
            int depth = 0;
            for (; open < text.size(); open++) {
                if (text[open] == '(') depth++;
                if (text[open] == ')' && --depth == 0) break;
            }
            open = text.find('(', open);
        }
    }
    return names;
}

}  // namespace

namespace sd {

// Compiles without holding the device's lock.
Compiled compile(const std::string& source, const std::vector<std::string>& options) {
    const char* compiler = getenv("CXX") && *getenv("CXX") ? getenv("CXX") : "g++";
    std::string header = home() + "/kernel.h";
    std::string folder = settings().cache.empty() ? home() + "/kernels" : settings().cache;
    mkdir(folder.c_str(), 0777);
    static const std::string header_text = read_file(header);
    uint64_t key = hash(source, hash(header_text, hash(compiler)));
    for (const std::string& option : options) key = hash(option + "\n", key);
    char name[32];
    snprintf(name, sizeof name, "/%016llx", (unsigned long long)key);
    std::string cached = folder + name + ".so";
    Compiled result{true, "", read_file(cached)};
    if (!result.object.empty()) return result;

    static std::mutex counting;
    static int counter;
    counting.lock();
    std::string base = folder + name + "-" + std::to_string(getpid()) + "-" + std::to_string(counter++);
    counting.unlock();
    std::string text = base + ".cpp", expanded = base + ".ii", log = base + ".log", object = base + ".tmp";
    result.ok = write_file(text, "#include \"" + header + "\"\n#line 1 \"kernel.cu\"\n" + source + "\n");
    std::vector<std::string> preprocess = {compiler, "-std=c++17", "-E", "-x", "c++", text, "-o", expanded};
    preprocess.insert(preprocess.end(), options.begin(), options.end());
    result.ok = result.ok && run(preprocess, log);
    if (result.ok) {
        std::string code = read_file(expanded);
        rewrite_shared(code);
        std::vector<std::string> kernels = take_kernels(code);
        code += "\nextern \"C\" char __bss_start[] __attribute__((visibility(\"hidden\")));\n"
                "extern \"C\" char _end[] __attribute__((visibility(\"hidden\")));\n"
                "extern \"C\" __attribute__((visibility(\"default\"))) char* sd_shared_memory[2];\n"
                "char* sd_shared_memory[2] = {__bss_start, _end};\n";
        for (const std::string& kernel : kernels)
            code += "extern \"C\" __attribute__((visibility(\"default\"))) void sd_call_" + kernel +
                    "(void** args) { sd_call(&" + kernel + ", args); }\n" +
                    "extern \"C\" __attribute__((visibility(\"default\"))) int sd_sizes_" + kernel +
                    "(size_t* sizes) { return sd_sizes(&" + kernel + ", sizes); }\n";
        result.ok = write_file(expanded, code) &&
                    run({compiler, "-std=c++17", "-O1", "-w", "-fPIC", "-shared", "-nostartfiles", "-ffp-contract=off",
                         "-fno-strict-aliasing", "-fno-exceptions", "-fno-rtti", "-fno-gnu-unique", "-fvisibility=hidden",
                         "-fwrapv", "-Wl,-Bsymbolic", "-Wl,-z,now", "-x", "c++-cpp-output", expanded, "-o", object, "-lm"},
                        log);
    }
    result.log = read_file(log);
    if (result.ok) {
        result.object = read_file(object);
        rename(object.c_str(), cached.c_str());
    }
    for (const std::string& file : {text, expanded, log, object}) unlink(file.c_str());
    return result;
}

}  // namespace sd

SD_API Result nvrtcVersion(int* major, int* minor) {
    *major = 13;
    // No version of the real one, so that compiled kernels are never taken for its.
    *minor = 99;
    return 0;
}

SD_API const char* nvrtcGetErrorString(Result code) {
    return code == 0 ? "NVRTC_SUCCESS" : code == NVRTC_COMPILATION ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR";
}

SD_API Result nvrtcCreateProgram(void** out, const char* source, const char*, int headers, const char* const*, const char* const*) {
    Call call("nvrtcCreateProgram");
    if (!source || headers) return NVRTC_INVALID_PROGRAM;
    Program* program = new Program;
    program->source = source;
    *out = program;
    return 0;
}

SD_API Result nvrtcDestroyProgram(void** program) {
    delete (Program*)*program;
    *program = nullptr;
    return 0;
}

SD_API Result nvrtcCompileProgram(void* handle, int n, const char* const* options) {
    { Call call("nvrtcCompileProgram"); }
    Program* program = (Program*)handle;
    std::vector<std::string> kept;
    for (int k = 0; k < n; k++) {
        std::string option = options[k];
        size_t equals = option.find('=');
        std::string name = option.substr(0, equals), value = equals == std::string::npos ? "" : option.substr(equals + 1);
        // NVRTC takes the value of some options as the next one.
        if (equals == std::string::npos && k + 1 < n && (name == "-arch" || name == "--gpu-architecture" || name == "-std" || name == "--std"))
            value = options[++k];
        if (option.compare(0, 2, "-D") == 0) {
            kept.push_back(option);
        } else if (name == "--define-macro") {
            kept.push_back("-D" + value);
        } else if (name == "--gpu-architecture" || name == "-arch") {
            size_t digits = value.find('_');
            program->real_arch = value.compare(0, 3, "sm_") == 0;
            program->arch = digits == std::string::npos ? 0 : atoi(value.c_str() + digits + 1);
            if (program->arch < 75) {
                program->log = "nvrtc: error: invalid value for --gpu-architecture (-arch)\n";
                return NVRTC_INVALID_OPTION;
            }
        } else if (name == "--fmad" || name == "-fmad" || name == "--ftz" || name == "--prec-div" || name == "--prec-sqrt" ||
                   name == "--std" || name == "-std" || name == "--restrict" || name == "-restrict" || name == "--maxrregcount" ||
                   name == "--include-path" || option.compare(0, 2, "-I") == 0 || name == "-lineinfo" ||
                   name == "--generate-line-info" || name == "--device-as-default-execution-space" || name == "-default-device" ||
                   name == "--extra-device-vectorization" || name == "-w" || name == "--disable-warnings" ||
                   name == "--no-source-include" || name == "-no-source-include" || name == "--dopt" || name == "-dopt" ||
                   name == "--split-compile" || name == "--minimal" || name == "-minimal" || name == "-diag-suppress" || name == "--diag-suppress") {
            // What these change does not show here: products are never contracted, and all is IEEE.
        } else {
            program->log = "nvrtc: error: unrecognized option " + option + " found\n";
            return NVRTC_INVALID_OPTION;
        }
    }
    kept.push_back("-D__CUDA_ARCH__=" + std::to_string(program->arch * 10));
    for (const std::string& option : kept) {
        std::string define = option.substr(2);
        size_t equals = define.find('=');
        program->defines += "#define " + define.substr(0, equals) + " " +
                            (equals == std::string::npos ? "1" : define.substr(equals + 1)) + "\n";
    }
    Compiled compiled = compile(program->source, kept);
    program->log = compiled.log;
    program->object = compiled.object;
    program->compiled = compiled.ok;
    return compiled.ok ? 0 : NVRTC_COMPILATION;
}

SD_API Result nvrtcGetProgramLogSize(void* program, size_t* bytes) {
    *bytes = ((Program*)program)->log.size() + 1;
    return 0;
}

SD_API Result nvrtcGetProgramLog(void* program, char* log) {
    memcpy(log, ((Program*)program)->log.c_str(), ((Program*)program)->log.size() + 1);
    return 0;
}

static std::string object_image(const Program& program) {
    char line[80];
    int header;
    snprintf(line, sizeof line, IMAGE_OF_OBJECT, program.arch, (unsigned long long)program.object.size(), &header);
    return line + program.object;
}

static std::string source_image(const Program& program) {
    char line[80];
    int header;
    snprintf(line, sizeof line, IMAGE_OF_SOURCE, program.arch, &header);
    return line + program.defines + program.source;
}

// As with the real one, there is machine code only for an architecture of the form `sm_90`.
SD_API Result nvrtcGetCUBINSize(void* handle, size_t* bytes) {
    Program* program = (Program*)handle;
    *bytes = program->compiled && program->real_arch ? object_image(*program).size() : 0;
    return program->compiled ? 0 : NVRTC_INVALID_PROGRAM;
}

SD_API Result nvrtcGetCUBIN(void* handle, char* out) {
    Program* program = (Program*)handle;
    if (!program->compiled || !program->real_arch) return NVRTC_INVALID_PROGRAM;
    std::string image = object_image(*program);
    memcpy(out, image.data(), image.size());
    return 0;
}

SD_API Result nvrtcGetPTXSize(void* handle, size_t* bytes) {
    Program* program = (Program*)handle;
    if (!program->compiled) return NVRTC_INVALID_PROGRAM;
    *bytes = source_image(*program).size() + 1;
    return 0;
}

SD_API Result nvrtcGetPTX(void* handle, char* out) {
    Program* program = (Program*)handle;
    if (!program->compiled) return NVRTC_INVALID_PROGRAM;
    std::string image = source_image(*program);
    memcpy(out, image.c_str(), image.size() + 1);
    return 0;
}

SD_API Result nvrtcGetNumSupportedArchs(int* n) {
    *n = 4;
    return 0;
}

SD_API Result nvrtcGetSupportedArchs(int* archs) {
    const int all[4] = {75, 80, 90, 100};
    memcpy(archs, all, sizeof all);
    return 0;
}

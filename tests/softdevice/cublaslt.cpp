// The stand-in for cublasLt: products in f32 (f64 for f64), in one fixed order of summation.
//
// It is as strict as the real library where programs go wrong: operands must lie in allocations and be as
// aligned as was promised when the algorithm was chosen, leading dimensions must cover the matrix, and the
// workspace is overwritten, as the real library may do. A bias has the type of D, lies without gaps in an allocation,
// and is there before an algorithm is chosen, which looks at its alignment.

#include "device.h"

#include <cmath>
#include <cstring>

using namespace sd;

namespace {

enum : int { OK = 0, NOT_INITIALIZED_ = 1, INVALID = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum : int { R_32F = 0, R_64F = 1, R_16F = 2, R_16BF = 14 };
enum : int { COMPUTE_32F = 68, COMPUTE_32F_PEDANTIC = 69, COMPUTE_64F = 70, COMPUTE_64F_PEDANTIC = 71, COMPUTE_TF32 = 77 };
enum : int { EPILOGUE_DEFAULT = 1, EPILOGUE_RELU = 2, EPILOGUE_BIAS = 4, EPILOGUE_RELU_BIAS = 6, EPILOGUE_GELU = 32, EPILOGUE_GELU_BIAS = 36 };

struct Layout {
    int type;
    int order = 0;  // columns first; 1 is rows first
    uint64_t rows, columns;
    int64_t leading;
    int batch = 1;
    int64_t batch_stride = 0;
};

struct Desc {
    int compute, scale, pointer_mode = 0, transpose_a = 0, transpose_b = 0;
    int epilogue = EPILOGUE_DEFAULT, bias_type = -1;
    Pointer bias = 0;
    int64_t bias_stride = 0;
};

struct Preference {
    uint64_t workspace = 0;
    uint32_t align[4] = {256, 256, 256, 256};
};

struct Algorithm {
    uint64_t magic;
    uint32_t align[4];
    uint64_t workspace;
    int epilogue;
    uint32_t bias_align;
    uint64_t rest[3];
};
static_assert(sizeof(Algorithm) == 64, "cublasLtMatmulAlgo_t");

struct Heuristic {
    Algorithm algorithm;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

// The real library documents no least alignment of a bias, but has kernels that fail below this.
const uint32_t BIAS_ALIGNMENT = 16;

const uint64_t MAGIC = 0x736f6674646576;

size_t size_of(int type) { return type == R_64F ? 8 : type == R_32F ? 4 : 2; }
bool is_float(int type) { return type == R_32F || type == R_64F || type == R_16F || type == R_16BF; }

float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

uint32_t to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

float half_to_float(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
    if (exponent == 31) return from_bits(sign | 0x7f800000 | fraction << 13);
    if (exponent) return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    float small = (float)fraction * from_bits(0x33800000);
    return sign ? -small : small;
}

uint16_t float_to_half(float value) {
    uint32_t bits = to_bits(value), magnitude = bits & 0x7fffffff;
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    if (magnitude > 0x7f800000) return sign | 0x7e00;
    if (magnitude >= 0x477ff000) return sign | 0x7c00;
    if (magnitude < 0x38800000) {
        // Below the smallest normal number the sum has the wanted bits at its end, rounded to even.
        float shifted = from_bits(magnitude) + 0.5f;
        return sign | (uint16_t)(to_bits(shifted) - 0x3f000000);
    }
    uint32_t rebased = magnitude - 0x38000000;
    return sign | (uint16_t)((rebased + 0xfff + (rebased >> 13 & 1)) >> 13);
}

uint16_t float_to_bfloat(float value) {
    uint32_t bits = to_bits(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

double load(const char* at, int type, size_t index) {
    switch (type) {
        case R_64F: return ((const double*)at)[index];
        case R_32F: return ((const float*)at)[index];
        case R_16F: return half_to_float(((const uint16_t*)at)[index]);
        default: return from_bits((uint32_t)((const uint16_t*)at)[index] << 16);
    }
}

void store(char* at, int type, size_t index, double value) {
    switch (type) {
        case R_64F: ((double*)at)[index] = value; break;
        case R_32F: ((float*)at)[index] = (float)value; break;
        case R_16F: ((uint16_t*)at)[index] = float_to_half((float)value); break;
        default: ((uint16_t*)at)[index] = float_to_bfloat((float)value);
    }
}

float round_to_tf32(float value) {
    uint32_t bits = to_bits(value);
    if ((bits & 0x7f800000) == 0x7f800000) return value;
    return from_bits((bits + 0x1000) & 0xffffe000);
}

size_t place(const Layout& layout, uint64_t row, uint64_t column) {
    return layout.order ? row * (uint64_t)layout.leading + column : column * (uint64_t)layout.leading + row;
}

bool covered(const Layout& layout) {
    return layout.leading >= (int64_t)(layout.order ? layout.columns : layout.rows) && layout.rows && layout.columns;
}

uint64_t reach(const Layout& layout) {
    uint64_t last = place(layout, layout.rows - 1, layout.columns - 1) + (uint64_t)(layout.batch - 1) * (uint64_t)layout.batch_stride;
    return (last + 1) * size_of(layout.type);
}

struct Job {
    Desc desc;
    Layout a, b, c, d;
    const char *at_a, *at_b, *at_c;
    char* at_d;
    double alpha, beta;
};

// Takes a matrix apart into rows of `T` (columns for the right operand) so that the inner loop is plain.
template <class T>
void gather(std::vector<T>& to, const char* at, const Layout& layout, int transposed, uint64_t rows, uint64_t columns, bool tf32) {
    to.resize(rows * columns);
    for (uint64_t row = 0; row < rows; row++)
        for (uint64_t column = 0; column < columns; column++) {
            size_t index = transposed ? place(layout, column, row) : place(layout, row, column);
            T value = (T)load(at, layout.type, index);
            to[row * columns + column] = tf32 ? (T)round_to_tf32((float)value) : value;
        }
}

template <class T> T activate(int epilogue, T value) {
    if (epilogue & EPILOGUE_RELU) return value > 0 ? value : 0;
    if (epilogue & EPILOGUE_GELU) {
        T cubed = (T)0.044715 * value * value * value;
        return (T)0.5 * value * ((T)1 + (T)tanh(0.7978845608028654 * (double)(value + cubed)));
    }
    return value;
}

template <class T> Result multiply(const Job& job) {
    const Desc& desc = job.desc;
    uint64_t rows = job.d.rows, columns = job.d.columns;
    uint64_t inner = desc.transpose_a ? job.a.rows : job.a.columns;
    bool tf32 = desc.compute == COMPUTE_TF32;
    std::vector<T> left, right, sums(columns);
    for (int batch = 0; batch < job.d.batch; batch++) {
        auto start = [&](const char* at, const Layout& layout) {
            return at + (layout.batch > 1 ? (int64_t)batch * layout.batch_stride * (int64_t)size_of(layout.type) : 0);
        };
        gather(left, start(job.at_a, job.a), job.a, desc.transpose_a, rows, inner, tf32);
        gather(right, start(job.at_b, job.b), job.b, desc.transpose_b, inner, columns, tf32);
        const char* old = start(job.at_c, job.c);
        char* out = (char*)start(job.at_d, job.d);
        for (uint64_t row = 0; row < rows; row++) {
            for (uint64_t column = 0; column < columns; column++) sums[column] = 0;
            for (uint64_t k = 0; k < inner; k++) {
                T factor = left[row * inner + k];
                const T* values = &right[k * columns];
                for (uint64_t column = 0; column < columns; column++) sums[column] += factor * values[column];
            }
            for (uint64_t column = 0; column < columns; column++) {
                T value = (T)job.alpha * sums[column];
                if (job.beta != 0) value += (T)job.beta * (T)load(old, job.c.type, place(job.c, row, column));
                if (desc.epilogue & EPILOGUE_BIAS)
                    value += (T)load((const char*)desc.bias, desc.bias_type < 0 ? job.d.type : desc.bias_type,
                                     row + (size_t)(batch * desc.bias_stride));
                store(out, job.d.type, place(job.d, row, column), (double)activate(desc.epilogue, value));
            }
        }
    }
    return SUCCESS;
}

// What the real library would refuse, for the operation at hand.
int examine(const Desc& desc, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
    for (const Layout* layout : {&a, &b, &c, &d})
        if (!is_float(layout->type) || layout->order > 1 || layout->batch < 1) return NOT_SUPPORTED;
    bool wide = d.type == R_64F;
    if (wide != (desc.compute == COMPUTE_64F || desc.compute == COMPUTE_64F_PEDANTIC)) return NOT_SUPPORTED;
    if (desc.scale != (wide ? R_64F : R_32F)) return NOT_SUPPORTED;
    if (!wide && desc.compute != COMPUTE_32F && desc.compute != COMPUTE_32F_PEDANTIC && desc.compute != COMPUTE_TF32) return NOT_SUPPORTED;
    if (desc.compute == COMPUTE_TF32 && a.type != R_32F) return NOT_SUPPORTED;
    if (a.type != b.type || c.type != d.type || (a.type != d.type && d.type != R_32F)) return NOT_SUPPORTED;
    if (!covered(a) || !covered(b) || !covered(c) || !covered(d)) return INVALID;
    uint64_t inner = desc.transpose_a ? a.rows : a.columns;
    if ((desc.transpose_a ? a.columns : a.rows) != d.rows || (desc.transpose_b ? b.rows : b.columns) != d.columns ||
        (desc.transpose_b ? b.columns : b.rows) != inner || c.rows != d.rows || c.columns != d.columns || c.order != d.order)
        return INVALID;
    if (a.batch != d.batch || b.batch != d.batch || c.batch != d.batch) return INVALID;
    if (desc.transpose_a > 1 || desc.transpose_b > 1 || desc.transpose_a < 0 || desc.transpose_b < 0) return INVALID;
    // Epilogues other than the plain one are made for results that are stored columns first.
    if (desc.epilogue != EPILOGUE_DEFAULT && d.order) return NOT_SUPPORTED;
    if (wide && desc.epilogue != EPILOGUE_DEFAULT) return NOT_SUPPORTED;
    if (desc.epilogue & EPILOGUE_BIAS) {
        if (!desc.bias || desc.bias_stride < 0) return INVALID;
        if (desc.bias_type != -1 && desc.bias_type != d.type) return NOT_SUPPORTED;
        if (desc.bias % BIAS_ALIGNMENT) return NOT_SUPPORTED;
    }
    switch (desc.epilogue) {
        case EPILOGUE_DEFAULT: case EPILOGUE_RELU: case EPILOGUE_BIAS: case EPILOGUE_RELU_BIAS: case EPILOGUE_GELU: case EPILOGUE_GELU_BIAS:
            return OK;
        default: return NOT_SUPPORTED;
    }
}

// The largest power of two that divides an address, up to 256.
uint32_t alignment(Pointer at) {
    uint32_t align = 256;
    while (at % align) align /= 2;
    return align;
}

template <class T> int set(T& field, const void* value, size_t bytes) {
    if (bytes < sizeof(T)) return INVALID;
    memcpy(&field, value, sizeof(T));
    return OK;
}

}  // namespace

SD_API int cublasLtCreate(void** out) {
    Call call("cublasLtCreate");
    if (call.error || !has_context()) return NOT_INITIALIZED_;
    *out = new uint64_t(MAGIC);
    return OK;
}

SD_API int cublasLtDestroy(void* handle) {
    delete (uint64_t*)handle;
    return OK;
}

SD_API size_t cublasLtGetVersion() { return 130000; }

SD_API int cublasLtMatrixLayoutCreate(void** out, int type, uint64_t rows, uint64_t columns, int64_t leading) {
    Call call("cublasLtMatrixLayoutCreate");
    Layout* layout = new Layout;
    layout->type = type;
    layout->rows = rows;
    layout->columns = columns;
    layout->leading = leading;
    *out = layout;
    return OK;
}

SD_API int cublasLtMatrixLayoutSetAttribute(void* handle, int attribute, const void* value, size_t bytes) {
    Layout* layout = (Layout*)handle;
    switch (attribute) {
        case 0: return set(layout->type, value, bytes);
        case 1: return set(layout->order, value, bytes);
        case 2: return set(layout->rows, value, bytes);
        case 3: return set(layout->columns, value, bytes);
        case 4: return set(layout->leading, value, bytes);
        case 5: return set(layout->batch, value, bytes);
        case 6: return set(layout->batch_stride, value, bytes);
        default: return INVALID;
    }
}

SD_API int cublasLtMatrixLayoutDestroy(void* layout) {
    delete (Layout*)layout;
    return OK;
}

SD_API int cublasLtMatmulDescCreate(void** out, int compute, int scale) {
    Call call("cublasLtMatmulDescCreate");
    Desc* desc = new Desc;
    desc->compute = compute;
    desc->scale = scale;
    *out = desc;
    return OK;
}

SD_API int cublasLtMatmulDescSetAttribute(void* handle, int attribute, const void* value, size_t bytes) {
    Desc* desc = (Desc*)handle;
    switch (attribute) {
        case 0: return set(desc->compute, value, bytes);
        case 1: return set(desc->scale, value, bytes);
        case 2: return set(desc->pointer_mode, value, bytes);
        case 3: return set(desc->transpose_a, value, bytes);
        case 4: return set(desc->transpose_b, value, bytes);
        case 7: return set(desc->epilogue, value, bytes);
        case 8: return set(desc->bias, value, bytes);
        case 10: return set(desc->bias_stride, value, bytes);
        case 26: return set(desc->bias_type, value, bytes);
        default: return INVALID;
    }
}

SD_API int cublasLtMatmulDescDestroy(void* desc) {
    delete (Desc*)desc;
    return OK;
}

SD_API int cublasLtMatmulPreferenceCreate(void** out) {
    *out = new Preference;
    return OK;
}

SD_API int cublasLtMatmulPreferenceSetAttribute(void* handle, int attribute, const void* value, size_t bytes) {
    Preference* preference = (Preference*)handle;
    switch (attribute) {
        case 1: return set(preference->workspace, value, bytes);
        case 5: case 6: case 7: case 8: return set(preference->align[attribute - 5], value, bytes);
        case 0: case 3: case 9: case 10: return OK;
        default: return INVALID;
    }
}

SD_API int cublasLtMatmulPreferenceDestroy(void* preference) {
    delete (Preference*)preference;
    return OK;
}

SD_API int cublasLtMatmulAlgoGetHeuristic(void*, void* desc, void* a, void* b, void* c, void* d, void* preference, int most,
                                          Heuristic* results, int* found) {
    Call call("cublasLtMatmulAlgoGetHeuristic");
    *found = 0;
    if (call.error) return EXECUTION_FAILED;
    int status = examine(*(Desc*)desc, *(Layout*)a, *(Layout*)b, *(Layout*)c, *(Layout*)d);
    if (status != OK) return status;
    if (most < 1) return INVALID;
    Preference& wanted = *(Preference*)preference;
    memset(results, 0, sizeof *results);
    results->algorithm.magic = MAGIC;
    memcpy(results->algorithm.align, wanted.align, sizeof wanted.align);
    // The real library likes to split long sums through the workspace, and takes what it is given.
    results->workspace = results->algorithm.workspace = wanted.workspace < (1 << 20) ? wanted.workspace : 1 << 20;
    const Desc& chosen_for = *(Desc*)desc;
    results->algorithm.epilogue = chosen_for.epilogue;
    if (chosen_for.epilogue & EPILOGUE_BIAS) results->algorithm.bias_align = alignment(chosen_for.bias);
    results->state = OK;
    results->waves = 1;
    *found = 1;
    return OK;
}

SD_API int cublasLtMatmul(void*, void* desc_handle, const void* alpha, const void* at_a, void* a, const void* at_b, void* b,
                          const void* beta, const void* at_c, void* c, void* at_d, void* d, const Algorithm* algorithm, void* workspace,
                          size_t workspace_bytes, void* stream) {
    Call call("cublasLtMatmul");
    if (call.error) return EXECUTION_FAILED;
    Job job{*(Desc*)desc_handle, *(Layout*)a, *(Layout*)b, *(Layout*)c, *(Layout*)d,
            (const char*)at_a, (const char*)at_b, (const char*)at_c, (char*)at_d, 0, 0};
    auto refuse = [](const char* why) { return fail(INVALID, std::string("cublasLtMatmul: ") + why); };
    if (int status = examine(job.desc, job.a, job.b, job.c, job.d)) {
        refuse("the product is not supported or its shapes do not fit");
        return status;
    }
    if (job.desc.pointer_mode) return NOT_SUPPORTED;
    bool wide = job.d.type == R_64F;
    job.alpha = wide ? *(const double*)alpha : *(const float*)alpha;
    job.beta = wide ? *(const double*)beta : *(const float*)beta;
    if (!on_device((Pointer)at_a, reach(job.a))) return refuse("A lies outside of what was allocated");
    if (!on_device((Pointer)at_b, reach(job.b))) return refuse("B lies outside of what was allocated");
    if (!on_device((Pointer)at_d, reach(job.d))) return refuse("D lies outside of what was allocated");
    if (job.beta != 0 && !on_device((Pointer)at_c, reach(job.c))) return refuse("C lies outside of what was allocated");
    if (job.desc.epilogue & EPILOGUE_BIAS) {
        uint64_t elements = job.d.rows + (uint64_t)(job.d.batch - 1) * (uint64_t)job.desc.bias_stride;
        if (!on_device(job.desc.bias, elements * size_of(job.d.type))) return refuse("the bias lies outside of what was allocated");
    }
    if (workspace_bytes && !on_device((Pointer)workspace, workspace_bytes)) return refuse("the workspace lies outside of what was allocated");
    if (algorithm) {
        if (algorithm->magic != MAGIC) return refuse("not an algorithm of this library");
        if (algorithm->workspace > workspace_bytes) return refuse("the workspace is smaller than the algorithm needs");
        const void* operands[4] = {at_a, at_b, job.beta != 0 ? at_c : at_d, at_d};
        for (int k = 0; k < 4; k++)
            if (algorithm->align[k] && (Pointer)operands[k] % algorithm->align[k])
                return refuse("an operand is less aligned than the algorithm was chosen for");
        if (algorithm->epilogue != job.desc.epilogue) return refuse("the algorithm was chosen for another epilogue");
        if (algorithm->bias_align && job.desc.bias % algorithm->bias_align)
            return refuse("the bias is less aligned than the algorithm was chosen for");
    }
    if (workspace_bytes && (Pointer)workspace % 16) return refuse("the workspace is not aligned to 16 bytes");
    size_t clobbered = algorithm ? algorithm->workspace : workspace_bytes;
    Result result = enqueue(stream, "product", [=] {
        count_up("products");
        if (clobbered) memset(workspace, 0xff, clobbered);
        return wide ? multiply<double>(job) : multiply<float>(job);
    });
    return result ? EXECUTION_FAILED : OK;
}

// Pooling over the last two axes of dense planes. The sizes are defined before: KERNEL_H, …, INPUT_H, OUTPUT_H, ….

typedef Wide<T>::type A;

// The part of a window along one axis that lies inside the input.
__device__ inline void window(I at, I stride, I padding, I kernel, I size, I* first, I* end) {
    I start = at * stride;
    I from = start > padding ? start - padding : 0, to = start + kernel > padding ? start + kernel - padding : 0;
    *first = from < size ? from : size;
    *end = to < size ? to : size;
}

// The first largest element of a window; NaN is larger than anything. The number of elements of a plane for a
// window of padding only.
__device__ inline I largest_of(const T* plane, I y, I x) {
    I top, bottom, left, right;
    window(y, STRIDE_H, PADDING_H, KERNEL_H, INPUT_H, &top, &bottom);
    window(x, STRIDE_W, PADDING_W, KERNEL_W, INPUT_W, &left, &right);
    if (top >= bottom || left >= right) return (I)INPUT_H * INPUT_W;
    I best = top * INPUT_W + left;
    A most = widen(plane[best]);
    for (I row = top; row < bottom; ++row) {
        for (I column = left; column < right; ++column) {
            A value = widen(plane[row * INPUT_W + column]);
            if (value > most || (value != value && most == most)) {
                most = value;
                best = row * INPUT_W + column;
            }
        }
    }
    return best;
}

extern "C" __global__ void max_pool(const T* x, T* y, i64 count) {
    I index = (I)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= (I)count) return;
    I plane = index / (OUTPUT_H * OUTPUT_W), at = index % (OUTPUT_H * OUTPUT_W);
    const T* from = x + plane * (INPUT_H * INPUT_W);
    I best = largest_of(from, at / OUTPUT_W, at % OUTPUT_W);
    y[index] = best < INPUT_H * INPUT_W ? from[best] : narrow<T>(-infinity((A)0));
}

extern "C" __global__ void max_pool_gather(const T* x, const T* t, T* y, i64 count) {
    I index = (I)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= (I)count) return;
    I plane = index / (OUTPUT_H * OUTPUT_W), at = index % (OUTPUT_H * OUTPUT_W);
    I best = largest_of(x + plane * (INPUT_H * INPUT_W), at / OUTPUT_W, at % OUTPUT_W);
    y[index] = best < INPUT_H * INPUT_W ? t[plane * (INPUT_H * INPUT_W) + best] : narrow<T>((A)0);
}

// The outputs along one axis whose windows cover an input.
__device__ inline void covering(I at, I stride, I padding, I kernel, I outputs, I* first, I* end) {
    I to = (at + padding) / stride + 1;
    *end = to < outputs ? to : outputs;
    I from = at + padding + 1 > kernel ? (at + padding + 1 - kernel + stride - 1) / stride : 0;
    *first = from < *end ? from : *end;
}

// Each input takes the gradients of the windows in which it is the first largest, in the order of outputs.
extern "C" __global__ void max_pool_grad(const T* x, const T* g, T* dx, i64 count) {
    I index = (I)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= (I)count) return;
    I plane = index / (INPUT_H * INPUT_W), at = index % (INPUT_H * INPUT_W);
    I top, bottom, left, right;
    covering(at / INPUT_W, STRIDE_H, PADDING_H, KERNEL_H, OUTPUT_H, &top, &bottom);
    covering(at % INPUT_W, STRIDE_W, PADDING_W, KERNEL_W, OUTPUT_W, &left, &right);
    const T* from = x + plane * (INPUT_H * INPUT_W);
    A total = 0;
    for (I y = top; y < bottom; ++y) {
        for (I column = left; column < right; ++column) {
            if (largest_of(from, y, column) == at) {
                total += widen(g[plane * (OUTPUT_H * OUTPUT_W) + y * OUTPUT_W + column]);
            }
        }
    }
    dx[index] = narrow<T>(total);
}

// Means count the padding as zeros.
#define AREA ((A)((double)KERNEL_H * (double)KERNEL_W))

extern "C" __global__ void avg_pool(const T* x, T* y, i64 count) {
    I index = (I)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= (I)count) return;
    I plane = index / (OUTPUT_H * OUTPUT_W), at = index % (OUTPUT_H * OUTPUT_W);
    const T* from = x + plane * (INPUT_H * INPUT_W);
    I top, bottom, left, right;
    window(at / OUTPUT_W, STRIDE_H, PADDING_H, KERNEL_H, INPUT_H, &top, &bottom);
    window(at % OUTPUT_W, STRIDE_W, PADDING_W, KERNEL_W, INPUT_W, &left, &right);
    A total = 0;
    for (I row = top; row < bottom; ++row) {
        for (I column = left; column < right; ++column) total += widen(from[row * INPUT_W + column]);
    }
    y[index] = narrow<T>(total / AREA);
}

extern "C" __global__ void avg_pool_grad(const T* g, T* dx, i64 count) {
    I index = (I)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= (I)count) return;
    I plane = index / (INPUT_H * INPUT_W), at = index % (INPUT_H * INPUT_W);
    I top, bottom, left, right;
    covering(at / INPUT_W, STRIDE_H, PADDING_H, KERNEL_H, OUTPUT_H, &top, &bottom);
    covering(at % INPUT_W, STRIDE_W, PADDING_W, KERNEL_W, OUTPUT_W, &left, &right);
    A total = 0;
    for (I y = top; y < bottom; ++y) {
        for (I column = left; column < right; ++column) {
            total += widen(g[plane * (OUTPUT_H * OUTPUT_W) + y * OUTPUT_W + column]);
        }
    }
    dx[index] = narrow<T>(total / AREA);
}

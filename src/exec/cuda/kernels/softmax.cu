// Softmax, its logarithm and its gradient over rows. Results may lie over operands: each element is read for
// the last time by the thread that writes it, behind all sums.

extern "C" __global__ void softmax(const T* x, T* y, i64 width) {
    I row = blockIdx.x, columns = (I)width;
    const T* from = x + x_at(row, columns);
    T* to = y + y_at(row, columns);
    A shift = largest(columns, [&](I k) { return widen(from[k * X_STRIDE]); });
    shift = shift == -infinity((A)0) ? (A)0 : shift;
    double total = ordered_sum(columns, [&](I k) { return exp_of(widen(from[k * X_STRIDE]) - shift); });
    A scale = (A)(total == 0.0 ? 0.0 : 1.0 / total);
    for (I k = threadIdx.x; k < columns; k += blockDim.x) {
        to[k] = narrow<T>(exp_of(widen(from[k * X_STRIDE]) - shift) * scale);
    }
}

extern "C" __global__ void log_softmax(const T* x, T* y, i64 width) {
    I row = blockIdx.x, columns = (I)width;
    const T* from = x + x_at(row, columns);
    T* to = y + y_at(row, columns);
    A shift, log_sum;
    log_sum_exp(columns, [&](I k) { return widen(from[k * X_STRIDE]); }, &shift, &log_sum);
    bool masked = log_sum == -infinity((A)0);
    for (I k = threadIdx.x; k < columns; k += blockDim.x) {
        A value = widen(from[k * X_STRIDE]);
        to[k] = narrow<T>(masked ? value : value - shift - log_sum);
    }
}

// From y and g, here x and g: where y is 0 the result is, whatever g.
extern "C" __global__ void softmax_grad(const T* x, const T* g, T* y, i64 width) {
    I row = blockIdx.x, columns = (I)width;
    const T* p = x + x_at(row, columns);
    const T* up = g + g_at(row, columns);
    T* to = y + y_at(row, columns);
    double sum = ordered_sum(columns, [&](I k) {
        A value = widen(p[k * X_STRIDE]);
        return value * (value == (A)0 ? (A)0 : widen(up[k * G_STRIDE]));
    });
    A total = (A)sum;
    for (I k = threadIdx.x; k < columns; k += blockDim.x) {
        A value = widen(p[k * X_STRIDE]);
        A slope = widen(up[k * G_STRIDE]);
        to[k] = narrow<T>(value == (A)0 ? (A)0 : value * (slope - total));
    }
}

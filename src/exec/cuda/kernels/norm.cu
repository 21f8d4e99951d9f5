// Layer norm (CENTRED is 1) and RMS norm over rows, and their gradients.

extern "C" __global__ void norm_rows(
    const T* x, const T* w, const T* b, T* y, A* means, A* rstds, i64 width, double eps
) {
    I row = blockIdx.x, columns = (I)width;
    const T* from = x + x_at(row, columns);
    T* to = y + y_at(row, columns);
    A mean = 0;
    if (CENTRED) mean = (A)(ordered_sum(columns, [&](I k) { return widen(from[k * X_STRIDE]); }) / (double)width);
    double squares = ordered_sum(columns, [&](I k) {
        A value = widen(from[k * X_STRIDE]) - mean;
        return value * value;
    });
    A rstd = (A)(1.0 / sqrt(squares / (double)width + eps));
    for (I k = threadIdx.x; k < columns; k += blockDim.x) {
        A value = (widen(from[k * X_STRIDE]) - mean) * rstd * widen(w[k * W_STRIDE]);
        if (CENTRED) value += widen(b[k * B_STRIDE]);
        to[k] = narrow<T>(value);
    }
    if (threadIdx.x == 0) {
        if (CENTRED) means[row] = mean;
        rstds[row] = rstd;
    }
}

// dx = rstd·(ĝ − mean(ĝ) − x̂·mean(ĝ·x̂)) with x̂ = (x − mean)·rstd and ĝ = g·w; RMS norm is without the first
// mean. dx may lie over x or g. With PLUS, a dense tensor is added to the rounded result, which may lie over it.
extern "C" __global__ void norm_grad(
    const T* x, const T* w, const A* means, const A* rstds, const T* g, const T* plus, T* dx, i64 width
) {
    I row = blockIdx.x, columns = (I)width;
    const T* from = x + x_at(row, columns);
    const T* up = g + g_at(row, columns);
    T* to = dx + dx_at(row, columns);
    A mean = CENTRED ? means[mean_at(row)] : (A)0, rstd = rstds[rstd_at(row)];
    A average = 0;
    if (CENTRED) {
        double total = ordered_sum(columns, [&](I k) { return widen(up[k * G_STRIDE]) * widen(w[k * W_STRIDE]); });
        average = (A)(total / (double)width);
    }
    double along = ordered_sum(columns, [&](I k) {
        A slope = widen(up[k * G_STRIDE]) * widen(w[k * W_STRIDE]);
        return slope * ((widen(from[k * X_STRIDE]) - mean) * rstd);
    });
    A projection = (A)(along / (double)width);
    for (I k = threadIdx.x; k < columns; k += blockDim.x) {
        A normal = (widen(from[k * X_STRIDE]) - mean) * rstd;
        T value = narrow<T>(rstd * (widen(up[k * G_STRIDE]) * widen(w[k * W_STRIDE]) - average - normal * projection));
        to[k] = PLUS ? narrow<T>(widen(value) + widen(plus[row * columns + k])) : value;
    }
}

// Sums of g·x̂ (and of g) over a part of the rows, by column.
extern "C" __global__ void norm_partial(
    const T* x, const A* means, const A* rstds, const T* g, A* partial, i64 width, i64 height, i64 parts
) {
    I columns = (I)width, column = (I)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= columns) return;
    i64 part = blockIdx.y;
    I first = (I)(height * part / parts), end = (I)(height * (part + 1) / parts);
    A along = 0, total = 0;
    #pragma unroll 4
    for (I row = first; row < end; ++row) {
        A mean = CENTRED ? means[mean_at(row)] : (A)0;
        A slope = widen(g[g_at(row, columns) + column * G_STRIDE]);
        along += slope * ((widen(x[x_at(row, columns) + column * X_STRIDE]) - mean) * rstds[rstd_at(row)]);
        if (CENTRED) total += slope;
    }
    partial[(I)part * columns + column] = along;
    if (CENTRED) partial[((I)parts + (I)part) * columns + column] = total;
}

// The parts of dw (and of db) in order.
extern "C" __global__ void norm_sums(const A* partial, T* dw, T* db, i64 width, i64 parts) {
    I columns = (I)width, column = (I)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= columns) return;
    A along = 0, total = 0;
    for (I part = 0; part < (I)parts; ++part) {
        along += partial[part * columns + column];
        if (CENTRED) total += partial[((I)parts + part) * columns + column];
    }
    dw[column] = narrow<T>(along);
    if (CENTRED) db[column] = narrow<T>(total);
}

// Batch norm over all axes but the second, and its gradient: a block of threads for each channel of a dense
// [n, c, inner]. Results may lie over x or g.

struct Channel {
    I start, inner, step;
    __device__ inline I at(I k) const { return start + k / inner * step + k % inner; }
};

__device__ inline Channel channel_of(I block, i64 channels, i64 inner) {
    Channel channel;
    channel.start = block * (I)inner;
    channel.inner = (I)inner;
    channel.step = (I)channels * (I)inner;
    return channel;
}

extern "C" __global__ void batch_norm(
    const T* x, const T* w, const T* b, T* y, A* means, A* variances, i64 count, i64 channels, i64 inner, double eps
) {
    Channel c = channel_of(blockIdx.x, channels, inner);
    A mean = (A)(ordered_sum((I)count, [&](I k) { return widen(x[c.at(k)]); }) / (double)count);
    double squares = ordered_sum((I)count, [&](I k) {
        A value = widen(x[c.at(k)]) - mean;
        return value * value;
    });
    A variance = (A)(squares / (double)count);
    A scale = (A)(1.0 / sqrt((double)variance + eps)) * widen(w[blockIdx.x]);
    A shift = widen(b[blockIdx.x]);
    for (I k = threadIdx.x; k < (I)count; k += blockDim.x) {
        I at = c.at(k);
        y[at] = narrow<T>((widen(x[at]) - mean) * scale + shift);
    }
    if (threadIdx.x == 0) {
        means[blockIdx.x] = mean;
        variances[blockIdx.x] = variance;
    }
}

// With x̂ = (x − mean)·rstd: db = Σ g, dw = Σ g·x̂, dx = w·rstd·(g − db/m − x̂·dw/m).
extern "C" __global__ void batch_norm_grad(
    const T* x, const T* w, const A* means, const A* variances, const T* g, T* dx, T* dw, T* db,
    i64 count, i64 channels, i64 inner, double eps
) {
    Channel c = channel_of(blockIdx.x, channels, inner);
    A mean = means[blockIdx.x];
    A rstd = (A)(1.0 / sqrt((double)variances[blockIdx.x] + eps));
    double total = ordered_sum((I)count, [&](I k) { return widen(g[c.at(k)]); });
    double along = ordered_sum((I)count, [&](I k) {
        I at = c.at(k);
        return widen(g[at]) * ((widen(x[at]) - mean) * rstd);
    });
    A average = (A)(total / (double)count), slope = (A)(along / (double)count);
    A scale = widen(w[blockIdx.x]) * rstd;
    for (I k = threadIdx.x; k < (I)count; k += blockDim.x) {
        I at = c.at(k);
        dx[at] = narrow<T>(scale * (widen(g[at]) - average - (widen(x[at]) - mean) * rstd * slope));
    }
    if (threadIdx.x == 0) {
        dw[blockIdx.x] = narrow<T>((A)along);
        db[blockIdx.x] = narrow<T>((A)total);
    }
}

// Cross-entropy of logits against class numbers, and its gradient. L is the type of labels. A label outside
// the classes was found by the check before; here it counts as none.

extern "C" __global__ void cross_entropy(const T* x, const L* labels, T* loss, A* logs, i64 width) {
    I row = blockIdx.x, columns = (I)width;
    const T* from = x + x_at(row, columns);
    A shift, log_sum;
    log_sum_exp(columns, [&](I k) { return widen(from[k * X_STRIDE]); }, &shift, &log_sum);
    if (threadIdx.x == 0) {
        i64 label = (i64)labels[label_at(row)];
        bool is_class = label >= 0 && label < width;
        A picked = is_class ? widen(from[(I)label * X_STRIDE]) : (A)0;
        logs[row] = log_sum;
        // A row that is masked throughout has probability 0 everywhere.
        bool masked = log_sum == -infinity((A)0);
        loss[row] = narrow<T>(masked ? infinity((A)0) : shift - picked + log_sum);
    }
}

// (exp(x − the largest x − log) − onehot)·g, or 0 where the whole row is masked.
extern "C" __global__ void cross_entropy_grad(const T* x, const L* labels, const A* logs, const T* g, T* y, i64 width) {
    I row = blockIdx.x, columns = (I)width;
    const T* from = x + x_at(row, columns);
    T* to = y + y_at(row, columns);
    A log_sum = logs[logs_at(row)], slope = widen(g[g_at(row)]);
    i64 label = (i64)labels[label_at(row)];
    bool masked = log_sum == -infinity((A)0);
    A shift = largest(columns, [&](I k) { return widen(from[k * X_STRIDE]); });
    for (I k = threadIdx.x; k < columns; k += blockDim.x) {
        A p = exp_of(widen(from[k * X_STRIDE]) - shift - log_sum);
        // Not `p·g − g`: near a probability of 1 that rounds twice.
        A value = (i64)k == label ? (p - (A)1) * slope : p * slope;
        to[k] = narrow<T>(masked ? (A)0 : value);
    }
}

// The gradient of the weights from its sums over segments of the pixels, in order.

extern "C" __global__ void conv_grad_weight_sum(const A* partial, T* dw, i64 segments) {
    I index = (I)blockIdx.x * blockDim.x + threadIdx.x, count = GROUPS * OUTPUTS * INPUTS * KERNEL_H * KERNEL_W;
    if (index >= count) return;
    A total = 0;
    for (I segment = 0; segment < (I)segments; ++segment) total += partial[segment * count + index];
    dw[index] = narrow<T>(total);
}

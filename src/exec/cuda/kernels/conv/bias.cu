// A bias for each output channel, where the result of a convolution will be added to it.

extern "C" __global__ void conv_bias(const T* bias, T* y, i64 count) {
    I index = (I)blockIdx.x * blockDim.x + threadIdx.x;
    if (index < (I)count) y[index] = bias[index / (OUTPUT_H * OUTPUT_W) % (GROUPS * OUTPUTS)];
}

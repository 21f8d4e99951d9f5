// Random numbers from a counter: Philox 4×32-10, as on the CPU. An element's bits depend on the seed, the
// op's key, the step and the element's number only.

struct Words { u32 w[4]; };

__device__ inline u64 mix(u64 x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

__device__ inline Words philox(u64 seed, u64 key, u64 step, u64 group) {
    u64 mixed = mix(mix(seed) ^ key);
    u32 k0 = (u32)mixed, k1 = (u32)(mixed >> 32);
    u32 w0 = (u32)group, w1 = (u32)(group >> 32), w2 = (u32)step, w3 = (u32)(step >> 32);
    for (int round = 0; round < 10; ++round) {
        u64 low = (u64)w0 * 0xd2511f53ull, high = (u64)w2 * 0xcd9e8d57ull;
        w0 = (u32)(high >> 32) ^ w1 ^ k0;
        w1 = (u32)high;
        w2 = (u32)(low >> 32) ^ w3 ^ k1;
        w3 = (u32)low;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    Words words;
    words.w[0] = w0;
    words.w[1] = w1;
    words.w[2] = w2;
    words.w[3] = w3;
    return words;
}

// Word `place` of four, without an index into registers.
__device__ inline u32 word_at(const Words& words, u32 place) {
    u32 low = place & 1u ? words.w[1] : words.w[0], high = place & 1u ? words.w[3] : words.w[2];
    return place & 2u ? high : low;
}
// Long word `place` of two.
__device__ inline u64 long_at(const Words& words, u32 place) {
    u32 low = place & 1u ? words.w[2] : words.w[0], high = place & 1u ? words.w[3] : words.w[1];
    return (u64)low | (u64)high << 32;
}

__device__ inline float uniform_f32(u32 word) { return (float)(word >> 8) * (1.0f / 16777216.0f); }
__device__ inline double uniform_f64(u64 word) { return (double)(word >> 11) * (1.0 / 9007199254740992.0); }

// Box–Muller: elements 2k and 2k + 1 share two words. The first is in (0, 1]: its logarithm is finite.
__device__ inline float normal_f32(const Words& words, u32 place) {
    float u = (float)((word_at(words, place & 2u) >> 8) + 1u) * (1.0f / 16777216.0f);
    float radius = sqrtf(-2.0f * log_of(u));
    float angle = uniform_f32(word_at(words, place | 1u)) * 6.28318530717958647693f;
    return radius * (place & 1u ? near_sin(angle) : near_cos(angle));
}
__device__ inline double normal_f64(const Words& words, u32 place) {
    double u = (double)((long_at(words, 0u) >> 11) + 1ull) * (1.0 / 9007199254740992.0);
    double radius = sqrt(-2.0 * log(u));
    double angle = uniform_f64(long_at(words, 1u)) * 6.28318530717958647693;
    return radius * (place & 1u ? sin(angle) : cos(angle));
}

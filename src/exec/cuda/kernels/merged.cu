// A kernel for several sets of arguments at once. Each set has in a table: where its blocks begin (the lower
// half of a word) and how many of them are in a row of the grid (the upper half), then a word for each argument.

struct MergedTable { u64 words[TABLE_WORDS]; };

struct MergedBlock { u32 x, y, z; };

struct MergedWord {
    u64 bits;
    template <class P> __device__ inline operator P*() const { return (P*)bits; }
    __device__ inline operator i64() const { return (i64)bits; }
    __device__ inline operator double() const { return bits_f64(bits); }
};

// Finds the set that this block belongs to, for sets of so many words: the last that begins at it or before.
#define MERGED_PLACE(NUMBER, WORDS) \
    u32 low = 0, high = (u32)count - 1; \
    while (low < high) { \
        u32 middle = (low + high + 1) / 2; \
        if ((u32)table.words[middle * WORDS] <= (NUMBER)) low = middle; \
        else high = middle - 1; \
    } \
    u32 at = low * WORDS, number = (NUMBER) - (u32)table.words[at]; \
    u32 across = (u32)(table.words[at] >> 32); \
    MergedBlock block = {number % across, number / across, 0};

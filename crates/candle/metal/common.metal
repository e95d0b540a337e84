// What all kernels share: sums over a simdgroup's lanes, and functions whose bits are the CPU's.
//
// Every kernel takes its buffers in order, a shape last, and then where it is: the threadgroup, the lane, and the simdgroup within
// the threadgroup. Sums have one order, whatever the number of rows: each lane adds its own values from first to last, then lanes are
// folded by halves. So products are added with an explicit `fma`, and nothing else may be contracted or put in another order.

#include <metal_stdlib>
using namespace metal;

#if defined(__METAL_VERSION__) && __METAL_VERSION__ >= 320
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
#endif

enum : uint {
    // Threads of a simdgroup.
    LANES = 32,
};

// The sum over all lanes, in every lane: halves are added to each other, so that each lane adds the same pairs.
inline float lane_sum(float x) {
    for (ushort step = LANES / 2; step > 0; step /= 2) {
        x += simd_shuffle_xor(x, step);
    }
    return x;
}

// e^x as the CPU computes it (`ops::exp`): reduced by multiples of ln 2, in two parts, then a polynomial. Zero below the smallest
// normal result; what is no number stays none. Source of the coefficients: Cephes' `expf`.
inline float exp_of(float x) {
    const float highest = 88.37626f, lowest = -87.33654f;
    float y = x > highest ? highest : x;
    y = y < lowest ? lowest : y;
    const float n = rint(y * 1.44269504f);
    const float r = (y - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.9875691e-4f;
    p = p * r + 1.3981999e-3f;
    p = p * r + 8.333452e-3f;
    p = p * r + 4.1665796e-2f;
    p = p * r + 1.6666665e-1f;
    p = p * r + 0.5f;
    p = (p * (r * r) + r) + 1.0f;
    const float power = as_type<float>((int(n) + 127) << 23);
    return x < lowest ? 0.0f : p * power;
}

inline float sigmoid(float x) {
    return 1.0f / (1.0f + exp_of(-x));
}

inline float silu(float x) {
    return x * sigmoid(x);
}

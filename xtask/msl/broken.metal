// What the check of the kernels must refuse, one fault at a time: `cargo xtask msl` compiles this file as it is, which must pass, and
// with each `FAULT`, which must not.

#ifndef FAULT
#define FAULT 0
#endif

kernel void broken(
    device const float *x [[buffer(0)]],
    device float *y [[buffer(1)]],
    constant uint &n [[buffer(2)]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]])
{
    threadgroup float shared[LANES];
#if FAULT == 1
    // A pointer into another address space.
    thread float *sum = shared;
#elif FAULT == 2
    // A write through what is only read.
    x[0] = y[0];
#elif FAULT == 3
    // A function that Metal hasn't.
    y[0] = simd_summ(x[0]);
#elif FAULT == 4
    // A write to a constant.
    n = 1;
#elif FAULT == 5
    // A value where a pointer is wanted.
    device const float *row = x[0];
#endif
    shared[lane] = x[lane];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (lane < n) {
        y[lane] = shared[lane];
    }
}

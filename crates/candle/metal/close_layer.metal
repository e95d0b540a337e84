// The end of a layer: the routed experts' results, weighted and added in rank order, then the shared expert's, onto the residual
// stream. Twin: `AddExperts` of the compute crate's stack.

struct CloseShape {
    uint n_rows;
    uint hidden;
    uint top_k;
    // Whether there is a shared expert; without one its buffers aren't read.
    uint has_shared;
};

// A thread is one value; threadgroups have four simdgroups.
//
// ranked: [n_rows, top_k, hidden]; rank_weights: [n_rows, top_k]; shared, x: [n_rows, hidden]; switches: [n_rows], logits
kernel void close_layer(
    device const float *ranked [[buffer(0)]],
    device const float *rank_weights [[buffer(1)]],
    device const float *shared [[buffer(2)]],
    device const float *switches [[buffer(3)]],
    device float *x [[buffer(4)]],
    constant CloseShape &shape [[buffer(5)]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]])
{
    const uint i = (group * 4 + simd) * LANES + lane;
    if (i >= shape.n_rows * shape.hidden) {
        return;
    }
    const uint row = i / shape.hidden, column = i % shape.hidden;
    float sum = 0.0f;
    for (uint rank = 0; rank < shape.top_k; ++rank) {
        const uint place = row * shape.top_k + rank;
        sum = sum + rank_weights[place] * ranked[place * shape.hidden + column];
    }
    if (shape.has_shared != 0) {
        sum = sum + sigmoid(switches[row]) * shared[i];
    }
    x[i] = x[i] + sum;
}

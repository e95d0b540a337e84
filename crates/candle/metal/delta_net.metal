// The gated delta-net between its projections and its output matrix: convolution, the delta rule over the rows of one sequence, and
// the gated norm of its heads. Twins: `delta_net::{convolve, step}` and `ops::{l2_norm, rms_norm_in_place}` of the compute crate.

struct DeltaShape {
    uint n_rows;
    uint n_key_heads;
    uint n_value_heads;
    uint key_dim;
    uint value_dim;
    // Taps of the convolution, the row itself included.
    uint taps;
    // Value heads that read one key head follow each other; else they are `n_key_heads` apart.
    uint grouped;
    float eps;
    // What normalised queries are multiplied with.
    float query_scale;
};

inline uint channels_of(constant DeltaShape &shape) {
    return 2 * shape.n_key_heads * shape.key_dim + shape.n_value_heads * shape.value_dim;
}

// Row `row` of the rows before the step, `taps - 1` of them, and of the step.
inline device const float *raw_row(
    device const float *history, device const float *projections, constant DeltaShape &shape, uint row)
{
    const uint before = shape.taps - 1, channels = channels_of(shape);
    return row < before ? history + row * channels : projections + (row - before) * channels;
}

// Convolves one head's channels of one row, and normalises them if they are a query or a key. The first rows' threadgroups leave the
// history for the next step as well. A threadgroup is one simdgroup; there are `max(n_rows, taps - 1) * heads` of them.
//
// history, next_history: [taps - 1, channels]; projections, convolved: [n_rows, channels]; weights: [taps, channels]
kernel void delta_convolve(
    device const float *history [[buffer(0)]],
    device const float *projections [[buffer(1)]],
    device const float *weights [[buffer(2)]],
    device float *next_history [[buffer(3)]],
    device float *convolved [[buffer(4)]],
    constant DeltaShape &shape [[buffer(5)]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]])
{
    const uint key_heads = 2 * shape.n_key_heads, heads = key_heads + shape.n_value_heads;
    const uint row = group / heads, head = group % heads, channels = channels_of(shape);
    const bool is_key = head < key_heads;
    const uint dim = is_key ? shape.key_dim : shape.value_dim;
    const uint start =
        is_key ? head * dim : key_heads * shape.key_dim + (head - key_heads) * shape.value_dim;
    if (row + 1 < shape.taps) {
        device const float *from = raw_row(history, projections, shape, shape.n_rows + row);
        for (uint c = start + lane; c < start + dim; c += LANES) {
            next_history[row * channels + c] = from[c];
        }
    }
    if (row >= shape.n_rows) {
        return;
    }
    device float *out = convolved + row * channels;
    float squares = 0.0f;
    for (uint c = start + lane; c < start + dim; c += LANES) {
        float sum = 0.0f;
        for (uint tap = 0; tap < shape.taps; ++tap) {
            sum = fma(raw_row(history, projections, shape, row + tap)[c], weights[tap * channels + c], sum);
        }
        const float value = silu(sum);
        squares = fma(value, value, squares);
        out[c] = value;
    }
    if (!is_key) {
        return;
    }
    const float factor = head < shape.n_key_heads ? shape.query_scale : 1.0f;
    const float scale = factor / sqrt(lane_sum(squares) + shape.eps);
    for (uint c = start + lane; c < start + dim; c += LANES) {
        out[c] *= scale;
    }
}

// The delta rule over the rows of one sequence: `S *= decay`, `e = v - S^T k`, `S += k (beta e)^T`, `o = S^T q`.
//
// Columns of a state don't meet, so a threadgroup takes 32 of them, a lane each; its simdgroups take 32 keys each and keep that part
// of the state in registers over all rows. There are `ceil(key_dim / 32)` simdgroups and `heads * ceil(value_dim / 32)` threadgroups.
//
// old_state, new_state: [value heads, key_dim, value_dim]; convolved: [n_rows, channels]; log_decays, betas: [n_rows, value heads];
// out: [n_rows, value heads, value_dim]
enum : uint {
    KEYS = 32,
    KEY_GROUPS_MAX = 32,
};

// The sum of what the simdgroups have, from first to last.
inline float sum_of(threadgroup const float (&parts)[KEY_GROUPS_MAX][LANES], uint n, uint lane) {
    float sum = 0.0f;
    for (uint i = 0; i < n; ++i) {
        sum += parts[i][lane];
    }
    return sum;
}

kernel void delta_step(
    device const float *old_state [[buffer(0)]],
    device const float *convolved [[buffer(1)]],
    device const float *log_decays [[buffer(2)]],
    device const float *betas [[buffer(3)]],
    device float *new_state [[buffer(4)]],
    device float *out [[buffer(5)]],
    constant DeltaShape &shape [[buffer(6)]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]])
{
    threadgroup float remembered[KEY_GROUPS_MAX][LANES];
    threadgroup float answered[KEY_GROUPS_MAX][LANES];
    const uint blocks = (shape.value_dim + LANES - 1) / LANES;
    const uint head = group / blocks, column = group % blocks * LANES + lane;
    const bool inside = column < shape.value_dim;
    const uint key_groups = (shape.key_dim + KEYS - 1) / KEYS, first = simd * KEYS;
    const uint n_keys = min(uint(KEYS), shape.key_dim - first);
    const uint per_key = shape.n_value_heads / shape.n_key_heads;
    const uint key_head = shape.grouped != 0 ? head / per_key : head % shape.n_key_heads;
    const uint key_width = shape.n_key_heads * shape.key_dim, channels = channels_of(shape);
    const uint state_at = (head * shape.key_dim + first) * shape.value_dim + column;
    float state[KEYS];
    for (uint i = 0; i < KEYS; ++i) {
        state[i] = inside && i < n_keys ? old_state[state_at + i * shape.value_dim] : 0.0f;
    }
    for (uint row = 0; row < shape.n_rows; ++row) {
        device const float *x = convolved + row * channels;
        device const float *query = x + key_head * shape.key_dim + first, *key = query + key_width;
        const uint at = row * shape.n_value_heads + head;
        const float decay = exp_of(log_decays[at]);
        float sum = 0.0f;
        for (uint i = 0; i < KEYS; ++i) {
            if (i < n_keys) {
                state[i] *= decay;
                sum = fma(state[i], key[i], sum);
            }
        }
        remembered[simd][lane] = sum;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const float value = inside ? x[2 * key_width + head * shape.value_dim + column] : 0.0f;
        const float correction = (value - sum_of(remembered, key_groups, lane)) * betas[at];
        sum = 0.0f;
        for (uint i = 0; i < KEYS; ++i) {
            if (i < n_keys) {
                state[i] = fma(key[i], correction, state[i]);
                sum = fma(state[i], query[i], sum);
            }
        }
        answered[simd][lane] = sum;
        // Everybody has read what was remembered when this is passed, so that the next row may write it.
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (simd == 0 && inside) {
            out[at * shape.value_dim + column] = sum_of(answered, key_groups, lane);
        }
    }
    for (uint i = 0; i < KEYS; ++i) {
        if (inside && i < n_keys) {
            new_state[state_at + i * shape.value_dim] = state[i];
        }
    }
}

// Normalises each head's output and multiplies it with `silu` of its gate, where it stands. A threadgroup is one simdgroup; there are
// `n_rows * value heads` of them.
//
// gates, out: [n_rows, value heads, value_dim]; norm: [value_dim]
kernel void delta_gate(
    device const float *gates [[buffer(0)]],
    device const float *norm [[buffer(1)]],
    device float *out [[buffer(2)]],
    constant DeltaShape &shape [[buffer(3)]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]])
{
    const uint dim = shape.value_dim, start = group * dim;
    float squares = 0.0f;
    for (uint i = lane; i < dim; i += LANES) {
        squares = fma(out[start + i], out[start + i], squares);
    }
    const float scale = 1.0f / sqrt(lane_sum(squares) / float(dim) + shape.eps);
    for (uint i = lane; i < dim; i += LANES) {
        out[start + i] = out[start + i] * scale * norm[i] * silu(gates[start + i]);
    }
}

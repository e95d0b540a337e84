// A routed expert on the rows that want it, where it lies in its slot: gate and up in one pass over the rows of activations, then
// down, whose results go where row and rank say. Twin: `Products::expert` over decoded weights.
//
// A simdgroup takes one row of a matrix (inner: the row of both), decodes each unit once and multiplies it with up to eight rows of
// activations; more rows are more threadgroups. A threadgroup has four simdgroups.

enum : uint {
    // Uses that share a decoded unit.
    USES = 8,
    SIMDS = 4,
};

struct ExpertShape {
    // Where the matrices begin, in bytes from the start of the slot.
    ulong gate;
    ulong up;
    ulong down;
    uint hidden;
    uint ff;
    uint top_k;
    uint n_uses;
};

// A row that wants the expert, and the rank that the expert has for it.
struct Use {
    uint row;
    uint rank;
};

// Adds the products of one unit of a matrix row with a unit of a row of activations.
inline float add_products(thread const float *w, device const float *x, float sum) {
    for (uint i = 0; i < UNIT; ++i) {
        sum = fma(w[i], x[i], sum);
    }
    return sum;
}

// inner[use, r] = silu(gate[r] . x[row]) * (up[r] . x[row]); x: [rows, hidden], inner: [n_uses, ff]
template <typename Block>
inline void expert_inner(
    device const uchar *slot, device const float *x, device const Use *uses, device float *inner,
    constant ExpertShape &shape, uint group, uint lane, uint simd)
{
    const uint blocks = (shape.ff + SIMDS - 1) / SIMDS;
    const uint r = group % blocks * SIMDS + simd, first = group / blocks * USES;
    if (r >= shape.ff) {
        return;
    }
    const uint n = min(uint(USES), shape.n_uses - first);
    const uint n_units = shape.hidden / UNIT;
    const ulong row_bytes = ulong(n_units / Block::UNITS) * Block::BYTES;
    device const uchar *gate = slot + shape.gate + r * row_bytes, *up = slot + shape.up + r * row_bytes;
    float gates[USES] = {}, ups[USES] = {}, w[UNIT];
    for (uint u = lane; u < n_units; u += LANES) {
        const ulong at = ulong(u / Block::UNITS) * Block::BYTES;
        Block::unit(gate + at, u % Block::UNITS, w);
        for (uint i = 0; i < USES; ++i) {
            if (i < n) {
                gates[i] = add_products(w, x + uses[first + i].row * shape.hidden + u * UNIT, gates[i]);
            }
        }
        Block::unit(up + at, u % Block::UNITS, w);
        for (uint i = 0; i < USES; ++i) {
            if (i < n) {
                ups[i] = add_products(w, x + uses[first + i].row * shape.hidden + u * UNIT, ups[i]);
            }
        }
    }
    for (uint i = 0; i < USES; ++i) {
        if (i < n) {
            const float g = lane_sum(gates[i]), v = lane_sum(ups[i]);
            if (lane == 0) {
                inner[(first + i) * shape.ff + r] = silu(g) * v;
            }
        }
    }
}

// ranked[row, rank, r] = down[r] . inner[use]; inner: [n_uses, ff], ranked: [rows, top_k, hidden]
template <typename Block>
inline void expert_down(
    device const uchar *slot, device const float *inner, device const Use *uses, device float *ranked,
    constant ExpertShape &shape, uint group, uint lane, uint simd)
{
    const uint blocks = (shape.hidden + SIMDS - 1) / SIMDS;
    const uint r = group % blocks * SIMDS + simd, first = group / blocks * USES;
    if (r >= shape.hidden) {
        return;
    }
    const uint n = min(uint(USES), shape.n_uses - first);
    const uint n_units = shape.ff / UNIT;
    const ulong row_bytes = ulong(n_units / Block::UNITS) * Block::BYTES;
    device const uchar *down = slot + shape.down + r * row_bytes;
    float sums[USES] = {}, w[UNIT];
    for (uint u = lane; u < n_units; u += LANES) {
        Block::unit(down + ulong(u / Block::UNITS) * Block::BYTES, u % Block::UNITS, w);
        for (uint i = 0; i < USES; ++i) {
            if (i < n) {
                sums[i] = add_products(w, inner + (first + i) * shape.ff + u * UNIT, sums[i]);
            }
        }
    }
    for (uint i = 0; i < USES; ++i) {
        if (i < n) {
            const float sum = lane_sum(sums[i]);
            if (lane == 0) {
                const Use use = uses[first + i];
                ranked[(use.row * shape.top_k + use.rank) * shape.hidden + r] = sum;
            }
        }
    }
}

// The kernels by the type of their matrices. Plain functions, since a template's instances have no name that a host can ask for but
// with an attribute that only Apple's compiler reads.
#define KERNELS_OF(Block)                                                                            \
    kernel void expert_inner_##Block(                                                                \
        device const uchar *slot [[buffer(0)]],                                                      \
        device const float *x [[buffer(1)]],                                                         \
        device const Use *uses [[buffer(2)]],                                                        \
        device float *inner [[buffer(3)]],                                                           \
        constant ExpertShape &shape [[buffer(4)]],                                                   \
        uint group [[threadgroup_position_in_grid]],                                                 \
        uint lane [[thread_index_in_simdgroup]],                                                     \
        uint simd [[simdgroup_index_in_threadgroup]])                                                \
    {                                                                                                \
        expert_inner<Block>(slot, x, uses, inner, shape, group, lane, simd);                         \
    }                                                                                                \
    kernel void expert_down_##Block(                                                                 \
        device const uchar *slot [[buffer(0)]],                                                      \
        device const float *inner [[buffer(1)]],                                                     \
        device const Use *uses [[buffer(2)]],                                                        \
        device float *ranked [[buffer(3)]],                                                          \
        constant ExpertShape &shape [[buffer(4)]],                                                   \
        uint group [[threadgroup_position_in_grid]],                                                 \
        uint lane [[thread_index_in_simdgroup]],                                                     \
        uint simd [[simdgroup_index_in_threadgroup]])                                                \
    {                                                                                                \
        expert_down<Block>(slot, inner, uses, ranked, shape, group, lane, simd);                     \
    }

KERNELS_OF(F32)
KERNELS_OF(Q8_0)
KERNELS_OF(Q3_K)
KERNELS_OF(Q4_K)
KERNELS_OF(Q5_K)
KERNELS_OF(Q6_K)

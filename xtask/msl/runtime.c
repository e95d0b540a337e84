// What the shim's functions do: they ask whoever runs the kernels.

typedef void (*Barrier)(void);
typedef float (*Shuffle)(float value, unsigned mask);

static Barrier on_barrier;
static Shuffle on_shuffle;

// Comes before the first kernel.
void msl_host(Barrier barrier, Shuffle shuffle) {
    on_barrier = barrier;
    on_shuffle = shuffle;
}

void msl_barrier(void) {
    on_barrier();
}

float msl_shuffle_xor(float value, unsigned mask) {
    return on_shuffle(value, mask);
}

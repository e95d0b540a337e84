// Stored blocks, decoded sixteen values at a time. Formats: ggml's block structures; twin: `dequant` of the compute crate.
//
// A row is a sequence of units of sixteen values, of which a lane takes every 32nd. Blocks are read in halves and words of two
// bytes, so a row begins at an even byte; rows of f32 at a multiple of four.

enum : uint {
    UNIT = 16,
    // Units of a block of 256 values.
    WIDE_UNITS = 16,
    // Units of a block of 32 values.
    NARROW_UNITS = 2,
};

inline float half_at(device const uchar *bytes) {
    return float(*(device const half *)bytes);
}

// Sixteen bytes.
struct Codes {
    ushort words[UNIT / 2];
};

inline Codes codes_at(device const uchar *bytes) {
    Codes codes;
    for (uint i = 0; i < UNIT / 2; ++i) {
        codes.words[i] = ((device const ushort *)bytes)[i];
    }
    return codes;
}

inline uint code(thread const Codes &codes, uint i) {
    return codes.words[i / 2] >> (i % 2 * 8) & 0xFF;
}

struct F32 {
    enum : uint { BYTES = 64, UNITS = 1 };

    static void unit(device const uchar *block, uint, thread float *y) {
        for (uint i = 0; i < UNIT; ++i) {
            y[i] = ((device const float *)block)[i];
        }
    }
};

// `d`, 32 signed bytes.
struct Q8_0 {
    enum : uint { BYTES = 34, UNITS = NARROW_UNITS };

    static void unit(device const uchar *block, uint unit, thread float *y) {
        const float d = half_at(block);
        const Codes codes = codes_at(block + 2 + unit * UNIT);
        for (uint i = 0; i < UNIT; ++i) {
            y[i] = float(int(code(codes, i) ^ 0x80) - 0x80) * d;
        }
    }
};

// 32 bytes of third bits, 64 bytes of 2-bit codes, 12 bytes of scales, `d`.
struct Q3_K {
    enum : uint { BYTES = 110, UNITS = WIDE_UNITS };

    static void unit(device const uchar *block, uint unit, thread float *y) {
        device const uchar *packed = block + 96;
        const uint low = unit < 8 ? packed[unit] & 15 : packed[unit - 8] >> 4;
        const uint high = packed[8 + unit % 4] >> (2 * (unit / 4)) & 3;
        const float scale = half_at(block + 108) * float(int(low | high << 4) - 32);
        const uint start = unit / 8 * 32 + unit % 2 * UNIT, shift = unit % 8 / 2 * 2;
        const Codes pairs = codes_at(block + 32 + start), thirds = codes_at(block + unit % 2 * UNIT);
        for (uint i = 0; i < UNIT; ++i) {
            const uint q = (code(pairs, i) >> shift & 3) | (code(thirds, i) >> (unit / 2) & 1) << 2;
            y[i] = scale * (float(q) - 4.0f);
        }
    }
};

struct Scales {
    float scale;
    float least;
};

// Scale and minimum `j` of 8, six bits each in the twelve packed bytes of Q4_K and Q5_K, multiplied with `d` and `dmin`.
inline Scales scales_at(device const uchar *block, uint j) {
    device const uchar *packed = block + 4;
    uint scale, least;
    if (j < 4) {
        scale = packed[j] & 63;
        least = packed[j + 4] & 63;
    } else {
        scale = (packed[j + 4] & 15) | packed[j - 4] >> 6 << 4;
        least = packed[j + 4] >> 4 | packed[j] >> 6 << 4;
    }
    return Scales { half_at(block) * float(scale), half_at(block + 2) * float(least) };
}

// `d`, `dmin`, 12 bytes of scales and minima, 128 bytes of nibbles.
struct Q4_K {
    enum : uint { BYTES = 144, UNITS = WIDE_UNITS };

    static void unit(device const uchar *block, uint unit, thread float *y) {
        const uint group = unit / 2;
        const Scales scales = scales_at(block, group);
        const Codes codes = codes_at(block + 16 + group / 2 * 32 + unit % 2 * UNIT);
        for (uint i = 0; i < UNIT; ++i) {
            y[i] = scales.scale * float(code(codes, i) >> (group % 2 * 4) & 15) - scales.least;
        }
    }
};

// `d`, `dmin`, 12 bytes of scales and minima, 32 bytes of fifth bits, 128 bytes of nibbles.
struct Q5_K {
    enum : uint { BYTES = 176, UNITS = WIDE_UNITS };

    static void unit(device const uchar *block, uint unit, thread float *y) {
        const uint group = unit / 2;
        const Scales scales = scales_at(block, group);
        const Codes codes = codes_at(block + 48 + group / 2 * 32 + unit % 2 * UNIT);
        const Codes fifths = codes_at(block + 16 + unit % 2 * UNIT);
        for (uint i = 0; i < UNIT; ++i) {
            const uint q = (code(codes, i) >> (group % 2 * 4) & 15) | (code(fifths, i) >> group & 1) << 4;
            y[i] = scales.scale * float(q) - scales.least;
        }
    }
};

// 128 bytes of nibbles, 64 bytes of upper bit pairs, 16 signed scales, `d`.
struct Q6_K {
    enum : uint { BYTES = 210, UNITS = WIDE_UNITS };

    static void unit(device const uchar *block, uint unit, thread float *y) {
        const uint part = unit / 8, quarter = unit % 8 / 2, odd = unit % 2 * UNIT;
        const float scale = half_at(block + 208) * float(int(block[192 + unit] ^ 0x80) - 0x80);
        const Codes nibbles = codes_at(block + part * 64 + quarter % 2 * 32 + odd);
        const Codes pairs = codes_at(block + 128 + part * 32 + odd);
        for (uint i = 0; i < UNIT; ++i) {
            const uint q =
                (code(nibbles, i) >> (quarter / 2 * 4) & 15) | (code(pairs, i) >> (quarter * 2) & 3) << 4;
            y[i] = scale * (float(q) - 32.0f);
        }
    }
};

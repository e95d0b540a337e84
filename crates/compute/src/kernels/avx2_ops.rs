//! AVX2 and F16C instructions as methods of the proof that the CPU has them.

#![expect(unsafe_code, reason = "CPU intrinsics; a value of `Avx2` proves that the CPU has them")]

use std::arch::x86_64::*;

use super::isa::Loop;

/// Proof that this CPU has AVX2 and F16C: [`Avx2::detect`] is the only way to get one.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

/// Safe methods for intrinsics that read no memory.
macro_rules! instructions {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty = $intrinsic:expr;)*) => {
        impl Avx2 {
            $(
                #[inline(always)]
                pub(super) fn $name(self, $($arg: $ty),*) -> $out {
                    // SAFETY: `self` exists, so `detect` saw these instructions on this CPU.
                    unsafe { $intrinsic($($arg),*) }
                }
            )*
        }
    };
}

instructions! {
    zero() -> __m256i = _mm256_setzero_si256;
    zero_ps() -> __m256 = _mm256_setzero_ps;
    splat_u8(v: i8) -> __m256i = _mm256_set1_epi8;
    splat_i16(v: i16) -> __m256i = _mm256_set1_epi16;
    and(a: __m256i, b: __m256i) -> __m256i = _mm256_and_si256;
    or(a: __m256i, b: __m256i) -> __m256i = _mm256_or_si256;
    add_i32(a: __m256i, b: __m256i) -> __m256i = _mm256_add_epi32;
    sub_i16(a: __m256i, b: __m256i) -> __m256i = _mm256_sub_epi16;
    abs_i8(v: __m256i) -> __m256i = _mm256_abs_epi8;
    with_sign_i8(v: __m256i, sign: __m256i) -> __m256i = _mm256_sign_epi8;
    pairs_u8_i8(a: __m256i, b: __m256i) -> __m256i = _mm256_maddubs_epi16;
    pairs_i16(a: __m256i, b: __m256i) -> __m256i = _mm256_madd_epi16;
    neighbours_i32(a: __m256i, b: __m256i) -> __m256i = _mm256_hadd_epi32;
    lower_halves(a: __m256i, b: __m256i) -> __m256i = _mm256_permute2x128_si256::<0x20>;
    upper_halves(a: __m256i, b: __m256i) -> __m256i = _mm256_permute2x128_si256::<0x31>;
    shuffle_u8(v: __m256i, at: __m256i) -> __m256i = _mm256_shuffle_epi8;
    shuffle_u8_half(v: __m128i, at: __m128i) -> __m128i = _mm_shuffle_epi8;
    splat_u8_half(v: i8) -> __m128i = _mm_set1_epi8;
    sub_i8_half(a: __m128i, b: __m128i) -> __m128i = _mm_sub_epi8;
    widen_i8(v: __m128i) -> __m256i = _mm256_cvtepi8_epi16;
    twice(v: __m128i) -> __m256i = _mm256_broadcastsi128_si256;
    widen_u8_half(v: __m128i) -> __m128i = _mm_cvtepu8_epi16;
    zip_u8(a: __m128i, b: __m128i) -> __m128i = _mm_unpacklo_epi8;
    i32_to_f32(v: __m256i) -> __m256 = _mm256_cvtepi32_ps;
    f16_to_f32(v: __m128i) -> __m256 = _mm256_cvtph_ps;
    bits_f32(v: __m256i) -> __m256 = _mm256_castsi256_ps;
    upper_u16(v: __m256i) -> __m256i = _mm256_slli_epi32::<16>;
    widen_u16(v: __m128i) -> __m256i = _mm256_cvtepu16_epi32;
    add(a: __m256, b: __m256) -> __m256 = _mm256_add_ps;
    sub(a: __m256, b: __m256) -> __m256 = _mm256_sub_ps;
    mul(a: __m256, b: __m256) -> __m256 = _mm256_mul_ps;
}

impl Avx2 {
    /// The kernels, where the CPU can run them.
    pub fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")).then_some(Self(()))
    }

    /// Runs a loop that is compiled for these instructions.
    #[inline(always)]
    pub(super) fn run<L: Loop>(self, work: L) -> L::Output {
        // SAFETY: `self` exists, so `detect` saw these instructions on this CPU.
        unsafe { compiled(work) }
    }

    /// Eight half floats.
    #[inline(always)]
    pub(super) fn halves(self, h: [u16; 8]) -> __m256 {
        let h = |i: usize| h[i].cast_signed();
        // SAFETY: `self` exists, so `detect` saw these instructions on this CPU.
        unsafe { _mm256_cvtph_ps(_mm_setr_epi16(h(0), h(1), h(2), h(3), h(4), h(5), h(6), h(7))) }
    }

    /// Every 16-bit lane moved by `by` bits: up, or down when negative.
    #[inline(always)]
    pub(super) fn shift_u16(self, v: __m256i, by: i64) -> __m256i {
        // SAFETY: `self` exists, so `detect` saw these instructions on this CPU.
        unsafe {
            let count = _mm_cvtsi64_si128(by.abs());
            if by < 0 { _mm256_srl_epi16(v, count) } else { _mm256_sll_epi16(v, count) }
        }
    }

    #[inline(always)]
    pub(super) fn load_bytes(self, bytes: &[u8; 32]) -> __m256i {
        // SAFETY: as above; 32 bytes lie behind the pointer, at any alignment.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    pub(super) fn load_i8(self, codes: &[i8; 32]) -> __m256i {
        // SAFETY: as above; 32 bytes lie behind the pointer, at any alignment.
        unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) }
    }

    #[inline(always)]
    pub(super) fn load_i16(self, sums: &[i16; 16]) -> __m256i {
        // SAFETY: as above; 32 bytes lie behind the pointer, at any alignment.
        unsafe { _mm256_loadu_si256(sums.as_ptr().cast()) }
    }

    #[inline(always)]
    pub(super) fn load_half(self, bytes: &[u8; 16]) -> __m128i {
        // SAFETY: as above; 16 bytes lie behind the pointer, at any alignment.
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
    }

    /// Eight bytes, and eight zeros after them.
    #[inline(always)]
    pub(super) fn load_quarter(self, bytes: [u8; 8]) -> __m128i {
        // SAFETY: `self` exists, so `detect` saw these instructions on this CPU.
        unsafe { _mm_cvtsi64_si128(i64::from_le_bytes(bytes)) }
    }

    #[inline(always)]
    pub(super) fn load_ps(self, values: &[f32; 8]) -> __m256 {
        // SAFETY: as above; 32 bytes lie behind the pointer, at any alignment.
        unsafe { _mm256_loadu_ps(values.as_ptr()) }
    }

    #[inline(always)]
    pub(super) fn store_ps(self, v: __m256) -> [f32; 8] {
        let mut values = [0.0; 8];
        // SAFETY: as above; 32 bytes lie behind the pointer, at any alignment.
        unsafe { _mm256_storeu_ps(values.as_mut_ptr(), v) };
        values
    }

    /// Asks for the line of memory at `address`, valid or not.
    #[inline(always)]
    pub(super) fn prefetch(self, address: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
}

#[target_feature(enable = "avx2,f16c")]
fn compiled<L: Loop>(work: L) -> L::Output {
    work.run()
}

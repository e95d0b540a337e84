//! NEON instructions, and those of two extensions, as methods of the proof that the CPU has them.

#![expect(unsafe_code, reason = "CPU intrinsics; values of these types prove that the CPU has them")]

use std::arch::aarch64::*;
use std::arch::asm;
use std::arch::is_aarch64_feature_detected;

use super::isa::Loop;

/// Proof that this CPU has NEON, as nearly all of this architecture do.
#[derive(Clone, Copy, Debug)]
pub struct Neon(());

/// Proof that this CPU also has products of four pairs of bytes (`dotprod`).
#[derive(Clone, Copy, Debug)]
pub struct NeonDot(Neon);

/// Proof that this CPU also has products of matrices of bytes (`i8mm`).
#[derive(Clone, Copy, Debug)]
pub struct NeonI8mm(NeonDot);

/// Safe methods for intrinsics that read no memory.
macro_rules! instructions {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty = $intrinsic:expr;)*) => {
        impl Neon {
            $(
                #[inline(always)]
                pub(super) fn $name(self, $($arg: $ty),*) -> $out {
                    // SAFETY: `self` exists, so `detect` saw NEON on this CPU.
                    unsafe { $intrinsic($($arg),*) }
                }
            )*
        }
    };
}

instructions! {
    splat_u8(v: u8) -> uint8x16_t = vdupq_n_u8;
    splat_i8(v: i8) -> int8x16_t = vdupq_n_s8;
    splat_i32(v: i32) -> int32x4_t = vdupq_n_s32;
    splat_f32(v: f32) -> float32x4_t = vdupq_n_f32;
    and(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t = vandq_u8;
    or(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t = vorrq_u8;
    shift(v: uint8x16_t, by: int8x16_t) -> uint8x16_t = vshlq_u8;
    signed(v: uint8x16_t) -> int8x16_t = vreinterpretq_s8_u8;
    sub_i8(a: int8x16_t, b: int8x16_t) -> int8x16_t = vsubq_s8;
    low_i8(v: int8x16_t) -> int8x8_t = vget_low_s8;
    mul_low_i8(a: int8x8_t, b: int8x8_t) -> int16x8_t = vmull_s8;
    mul_add_high_i8(acc: int16x8_t, a: int8x16_t, b: int8x16_t) -> int16x8_t = vmlal_high_s8;
    add_pairs_i16(acc: int32x4_t, v: int16x8_t) -> int32x4_t = vpadalq_s16;
    neighbours_i16(a: int16x8_t, b: int16x8_t) -> int16x8_t = vpaddq_s16;
    low_i16(v: int16x8_t) -> int16x4_t = vget_low_s16;
    mul_low_i16(a: int16x4_t, b: int16x4_t) -> int32x4_t = vmull_s16;
    mul_add_high_i16(acc: int32x4_t, a: int16x8_t, b: int16x8_t) -> int32x4_t = vmlal_high_s16;
    widen_low_i8(v: int8x8_t) -> int16x8_t = vmovl_s8;
    widen_high_i8(v: int8x16_t) -> int16x8_t = vmovl_high_s8;
    widen_low_i16(v: int16x4_t) -> int32x4_t = vmovl_s16;
    widen_high_i16(v: int16x8_t) -> int32x4_t = vmovl_high_s16;
    mul_add_i32(acc: int32x4_t, a: int32x4_t, b: int32x4_t) -> int32x4_t = vmlaq_s32;
    neighbours_i32(a: int32x4_t, b: int32x4_t) -> int32x4_t = vpaddq_s32;
    zip_low_i32(a: int32x4_t, b: int32x4_t) -> int32x4_t = vzip1q_s32;
    zip_high_i32(a: int32x4_t, b: int32x4_t) -> int32x4_t = vzip2q_s32;
    i32_to_f32(v: int32x4_t) -> float32x4_t = vcvtq_f32_s32;
    add(a: float32x4_t, b: float32x4_t) -> float32x4_t = vaddq_f32;
    sub(a: float32x4_t, b: float32x4_t) -> float32x4_t = vsubq_f32;
    mul(a: float32x4_t, b: float32x4_t) -> float32x4_t = vmulq_f32;
}

impl Neon {
    /// The kernels, where the CPU can run them.
    pub fn detect() -> Option<Self> {
        is_aarch64_feature_detected!("neon").then_some(Self(()))
    }

    /// Runs a loop that is compiled for these instructions.
    #[inline(always)]
    pub(super) fn run<L: Loop>(self, work: L) -> L::Output {
        // SAFETY: `self` exists, so `detect` saw these instructions on this CPU.
        unsafe { compiled(work) }
    }

    /// `acc + v * by[LANE]`.
    #[inline(always)]
    pub(super) fn mul_add_lane<const LANE: i32>(
        self,
        acc: int32x4_t,
        v: int32x4_t,
        by: int32x4_t,
    ) -> int32x4_t {
        // SAFETY: `self` exists, so `detect` saw NEON on this CPU.
        unsafe { vmlaq_laneq_s32::<LANE>(acc, v, by) }
    }

    #[inline(always)]
    pub(super) fn load(self, bytes: &[u8; 16]) -> uint8x16_t {
        // SAFETY: as above; 16 bytes lie behind the pointer, at any alignment.
        unsafe { vld1q_u8(bytes.as_ptr()) }
    }

    #[inline(always)]
    pub(super) fn load_i8(self, codes: &[i8; 16]) -> int8x16_t {
        // SAFETY: as above; 16 bytes lie behind the pointer, at any alignment.
        unsafe { vld1q_s8(codes.as_ptr()) }
    }

    #[inline(always)]
    pub(super) fn load_i16(self, sums: &[i16; 8]) -> int16x8_t {
        // SAFETY: as above; 16 bytes lie behind the pointer, at any alignment.
        unsafe { vld1q_s16(sums.as_ptr()) }
    }

    #[inline(always)]
    pub(super) fn load_four(self, values: &[f32; 4]) -> float32x4_t {
        // SAFETY: as above; 16 bytes lie behind the pointer, at any alignment.
        unsafe { vld1q_f32(values.as_ptr()) }
    }

    #[inline(always)]
    pub(super) fn store_four(self, v: float32x4_t) -> [f32; 4] {
        let mut values = [0.0; 4];
        // SAFETY: as above; 16 bytes lie behind the pointer, at any alignment.
        unsafe { vst1q_f32(values.as_mut_ptr(), v) };
        values
    }

    /// Eight bytes.
    #[inline(always)]
    pub(super) fn load_i8_half(self, bytes: [u8; 8]) -> int8x8_t {
        // SAFETY: `self` exists, so `detect` saw NEON on this CPU.
        unsafe { vcreate_s8(u64::from_le_bytes(bytes)) }
    }

    /// Four words of F32.
    #[inline(always)]
    pub(super) fn bits_f32(self, bytes: &[u8; 16]) -> float32x4_t {
        // SAFETY: as above; 16 bytes lie behind the pointer, at any alignment.
        unsafe { vreinterpretq_f32_u8(vld1q_u8(bytes.as_ptr())) }
    }

    /// Four words of F16.
    #[inline(always)]
    pub(super) fn f16_to_f32(self, bytes: &[u8; 8]) -> float32x4_t {
        // SAFETY: as above; eight bytes lie behind the pointer, at any alignment.
        unsafe { vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(bytes.as_ptr()))) }
    }

    /// Four half floats.
    #[inline(always)]
    pub(super) fn halves(self, h: [u16; 4]) -> float32x4_t {
        let [a, b, c, d] = h;
        let bits = u64::from(a) | u64::from(b) << 16 | u64::from(c) << 32 | u64::from(d) << 48;
        // SAFETY: `self` exists, so `detect` saw NEON on this CPU.
        unsafe { vcvt_f32_f16(vcreate_f16(bits)) }
    }

    /// Four words of BF16.
    #[inline(always)]
    pub(super) fn bf16_to_f32(self, bytes: &[u8; 8]) -> float32x4_t {
        // SAFETY: as above; eight bytes lie behind the pointer, at any alignment.
        unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vreinterpret_u16_u8(vld1_u8(bytes.as_ptr())))) }
    }

    /// The lower halves of two registers.
    #[inline(always)]
    pub(super) fn lower_halves(self, a: int8x16_t, b: int8x16_t) -> int8x16_t {
        // SAFETY: `self` exists, so `detect` saw NEON on this CPU.
        unsafe { vreinterpretq_s8_s64(vzip1q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b))) }
    }

    /// The upper halves of two registers.
    #[inline(always)]
    pub(super) fn upper_halves(self, a: int8x16_t, b: int8x16_t) -> int8x16_t {
        // SAFETY: `self` exists, so `detect` saw NEON on this CPU.
        unsafe { vreinterpretq_s8_s64(vzip2q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b))) }
    }

    /// The lower halves of two registers.
    #[inline(always)]
    pub(super) fn lower_halves_i32(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        // SAFETY: `self` exists, so `detect` saw NEON on this CPU.
        unsafe { vreinterpretq_s32_s64(vzip1q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b))) }
    }

    /// The upper halves of two registers.
    #[inline(always)]
    pub(super) fn upper_halves_i32(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        // SAFETY: `self` exists, so `detect` saw NEON on this CPU.
        unsafe { vreinterpretq_s32_s64(vzip2q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b))) }
    }

    /// Asks for the line of memory at `address`, valid or not.
    #[inline(always)]
    pub(super) fn prefetch(self, address: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe {
            asm!("prfm pldl1keep, [{}]", in(reg) address, options(readonly, nostack, preserves_flags));
        }
    }
}

impl NeonDot {
    /// The kernels, where the CPU can run them.
    pub fn detect() -> Option<Self> {
        let neon = Neon::detect()?;
        is_aarch64_feature_detected!("dotprod").then_some(Self(neon))
    }

    /// The instructions that every NEON has.
    #[inline(always)]
    pub(super) fn neon(self) -> Neon {
        self.0
    }

    /// Runs a loop that is compiled for these instructions.
    #[inline(always)]
    pub(super) fn run<L: Loop>(self, work: L) -> L::Output {
        // SAFETY: `self` exists, so `detect` saw these instructions on this CPU.
        unsafe { compiled_dot(work) }
    }

    /// Adds the products of four neighbouring bytes to every lane.
    #[inline(always)]
    pub(super) fn dot(self, acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
        // SAFETY: `self` exists, so `detect` saw these instructions on this CPU.
        unsafe { sdot(acc, a, b) }
    }
}

impl NeonI8mm {
    /// The kernels, where the CPU can run them.
    pub fn detect() -> Option<Self> {
        let dot = NeonDot::detect()?;
        is_aarch64_feature_detected!("i8mm").then_some(Self(dot))
    }

    /// The instructions for products of single rows.
    #[inline(always)]
    pub(super) fn dot(self) -> NeonDot {
        self.0
    }

    /// Runs a loop that is compiled for these instructions.
    #[inline(always)]
    pub(super) fn run<L: Loop>(self, work: L) -> L::Output {
        // SAFETY: `self` exists, so `detect` saw these instructions on this CPU.
        unsafe { compiled_i8mm(work) }
    }

    /// Adds the products of two rows of eight bytes with two others: `[a0 b0, a0 b1, a1 b0, a1 b1]`.
    #[inline(always)]
    pub(super) fn two_by_two(self, acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
        // SAFETY: `self` exists, so `detect` saw these instructions on this CPU.
        unsafe { smmla(acc, a, b) }
    }
}

/// The intrinsic isn't stable yet.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot(mut acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: reads and writes registers only.
    unsafe {
        asm!("sdot {acc:v}.4s, {a:v}.16b, {b:v}.16b", acc = inout(vreg) acc, a = in(vreg) a, b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    acc
}

/// The intrinsic isn't stable yet.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn smmla(mut acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: reads and writes registers only.
    unsafe {
        asm!("smmla {acc:v}.4s, {a:v}.16b, {b:v}.16b", acc = inout(vreg) acc, a = in(vreg) a, b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    acc
}

#[target_feature(enable = "neon")]
fn compiled<L: Loop>(work: L) -> L::Output {
    work.run()
}

#[target_feature(enable = "neon,dotprod")]
fn compiled_dot<L: Loop>(work: L) -> L::Output {
    work.run()
}

#[target_feature(enable = "neon,dotprod,i8mm")]
fn compiled_i8mm<L: Loop>(work: L) -> L::Output {
    work.run()
}

//! Loops over f32 values that are written once and compiled for every instruction set.
//!
//! Rust never fuses or reorders floating-point operations, so wider registers change no bit.

#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "calls code that is compiled for what the value proves")
)]

/// A loop. `run` must be `#[inline(always)]`, and so must what it calls, or it is compiled for the baseline.
pub trait Loop {
    /// What it leaves.
    type Output;

    /// Runs it.
    fn run(self) -> Self::Output;
}

/// An instruction set that this CPU has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(Set);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    Baseline,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Isa {
    /// What every CPU of this target has.
    pub const BASELINE: Self = Self(Set::Baseline);

    /// The widest that this CPU has.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
            {
                return Self(Set::Avx512);
            }
            if is_x86_feature_detected!("avx2") {
                return Self(Set::Avx2);
            }
        }
        Self::BASELINE
    }

    /// Every set that this CPU has, narrowest first.
    pub fn all() -> Vec<Self> {
        #[cfg(target_arch = "x86_64")]
        match Self::detect().0 {
            Set::Avx512 => return vec![Self::BASELINE, Self(Set::Avx2), Self(Set::Avx512)],
            Set::Avx2 => return vec![Self::BASELINE, Self(Set::Avx2)],
            Set::Baseline => {}
        }
        vec![Self::BASELINE]
    }

    /// Runs a loop that was compiled for this set.
    #[inline(always)]
    pub fn run<L: Loop>(self, work: L) -> L::Output {
        match self.0 {
            Set::Baseline => work.run(),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the value exists, so `detect` saw AVX2.
            Set::Avx2 => unsafe { on_avx2(work) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the value exists, so `detect` saw these parts of AVX-512.
            Set::Avx512 => unsafe { on_avx512(work) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl From<super::Avx2> for Isa {
    /// The loops that go with these kernels.
    fn from(_: super::Avx2) -> Self {
        Self(Set::Avx2)
    }
}

#[cfg(target_arch = "x86_64")]
impl From<super::Avx512> for Isa {
    /// The loops that go with these kernels.
    fn from(_: super::Avx512) -> Self {
        Self(Set::Avx512)
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn on_avx2<L: Loop>(work: L) -> L::Output {
    work.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn on_avx512<L: Loop>(work: L) -> L::Output {
    work.run()
}

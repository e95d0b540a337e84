//! Packed scales, decoded eight bytes at a time.

/// The 8 scales and the 8 minima of a Q4_K or Q5_K block, a byte each; the same values as
/// [`crate::dequant::scale_min_k4`].
#[inline(always)]
pub(super) fn scales_mins_k4(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    const SIX_BITS: u32 = 0x3F3F_3F3F;
    const NIBBLES: u32 = 0x0F0F_0F0F;
    const PAIRS: u32 = 0x3030_3030;
    let [scales, mins, nibbles] = words(packed);
    let upper_scales = (nibbles & NIBBLES) | (scales >> 2 & PAIRS);
    let upper_mins = (nibbles >> 4 & NIBBLES) | (mins >> 2 & PAIRS);
    let join = |low: u32, high: u32| (u64::from(high) << 32 | u64::from(low)).to_le_bytes();
    (join(scales & SIX_BITS, upper_scales), join(mins & SIX_BITS, upper_mins))
}

/// The 16 scales of a Q3_K block before 32 is taken from each; the same values as [`crate::dequant::scales_q3_k`].
#[inline(always)]
pub(super) fn raw_scales_q3_k(packed: &[u8; 12]) -> [u8; 16] {
    const NIBBLES: u64 = 0x0F0F_0F0F_0F0F_0F0F;
    const PAIRS: u64 = 0x3030_3030_3030_3030;
    let [first, second, upper] = words(packed);
    let low = u64::from(second) << 32 | u64::from(first);
    let upper = u64::from(upper);
    // Scales 0..4 and 8..12 have their upper bits in the lower half, the others two bits further up.
    let pairs = |upper: u64| (upper << 4 | upper << 34) & PAIRS;
    let scales = [(low & NIBBLES) | pairs(upper), (low >> 4 & NIBBLES) | pairs(upper >> 4)];
    (u128::from(scales[1]) << 64 | u128::from(scales[0])).to_le_bytes()
}

#[inline(always)]
fn words(packed: &[u8; 12]) -> [u32; 3] {
    let words = packed.as_chunks::<4>().0;
    [u32::from_le_bytes(words[0]), u32::from_le_bytes(words[1]), u32::from_le_bytes(words[2])]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::dequant::{scale_min_k4, scales_q3_k};

    proptest! {
        #[test]
        fn scales_are_the_decoders(packed: [u8; 12]) {
            let (scales, mins) = scales_mins_k4(&packed);
            for j in 0..8 {
                prop_assert_eq!((scales[j], mins[j]), scale_min_k4(&packed, j));
            }
            prop_assert_eq!(raw_scales_q3_k(&packed).map(|s| s.cast_signed() - 32), scales_q3_k(&packed));
        }
    }
}

//! ggml's tensor types: their ids, names and block sizes.
//!
//! Source: the type table of the `gguf` package (`GGML_QUANT_SIZES`). Ids 4, 5, 31..=33 and 36..=38 were removed
//! from the format and are refused.

use std::fmt;

/// How the values of a tensor are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the variants are ggml's own names")]
#[expect(non_camel_case_types, reason = "the variants are ggml's own names")]
pub enum QuantType {
    F32,
    F16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q8_1,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    Q8_K,
    IQ2_XXS,
    IQ2_XS,
    IQ3_XXS,
    IQ1_S,
    IQ4_NL,
    IQ3_S,
    IQ2_S,
    IQ4_XS,
    I8,
    I16,
    I32,
    I64,
    F64,
    IQ1_M,
    BF16,
    TQ1_0,
    TQ2_0,
    MXFP4,
    NVFP4,
    Q1_0,
}

/// One row of the table: type, ggml id, name, values per block, bytes per block.
type Row = (QuantType, u32, &'static str, u32, u32);

use QuantType as Q;
const TABLE: [Row; 34] = [
    (Q::F32, 0, "F32", 1, 4),
    (Q::F16, 1, "F16", 1, 2),
    (Q::Q4_0, 2, "Q4_0", 32, 18),
    (Q::Q4_1, 3, "Q4_1", 32, 20),
    (Q::Q5_0, 6, "Q5_0", 32, 22),
    (Q::Q5_1, 7, "Q5_1", 32, 24),
    (Q::Q8_0, 8, "Q8_0", 32, 34),
    (Q::Q8_1, 9, "Q8_1", 32, 40),
    (Q::Q2_K, 10, "Q2_K", 256, 84),
    (Q::Q3_K, 11, "Q3_K", 256, 110),
    (Q::Q4_K, 12, "Q4_K", 256, 144),
    (Q::Q5_K, 13, "Q5_K", 256, 176),
    (Q::Q6_K, 14, "Q6_K", 256, 210),
    (Q::Q8_K, 15, "Q8_K", 256, 292),
    (Q::IQ2_XXS, 16, "IQ2_XXS", 256, 66),
    (Q::IQ2_XS, 17, "IQ2_XS", 256, 74),
    (Q::IQ3_XXS, 18, "IQ3_XXS", 256, 98),
    (Q::IQ1_S, 19, "IQ1_S", 256, 50),
    (Q::IQ4_NL, 20, "IQ4_NL", 32, 18),
    (Q::IQ3_S, 21, "IQ3_S", 256, 110),
    (Q::IQ2_S, 22, "IQ2_S", 256, 82),
    (Q::IQ4_XS, 23, "IQ4_XS", 256, 136),
    (Q::I8, 24, "I8", 1, 1),
    (Q::I16, 25, "I16", 1, 2),
    (Q::I32, 26, "I32", 1, 4),
    (Q::I64, 27, "I64", 1, 8),
    (Q::F64, 28, "F64", 1, 8),
    (Q::IQ1_M, 29, "IQ1_M", 256, 56),
    (Q::BF16, 30, "BF16", 1, 2),
    (Q::TQ1_0, 34, "TQ1_0", 256, 54),
    (Q::TQ2_0, 35, "TQ2_0", 256, 66),
    (Q::MXFP4, 39, "MXFP4", 32, 17),
    (Q::NVFP4, 40, "NVFP4", 64, 36),
    (Q::Q1_0, 41, "Q1_0", 128, 18),
];

impl QuantType {
    /// Every type of the format, in the order of the ids.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.0)
    }

    /// The type with ggml's id `id`; `None` for ids that are unknown or were removed.
    pub fn from_id(id: u32) -> Option<Self> {
        TABLE.iter().find(|row| row.1 == id).map(|row| row.0)
    }

    /// ggml's id.
    pub fn id(self) -> u32 {
        self.row().1
    }

    /// ggml's name, such as `Q4_K`.
    pub fn name(self) -> &'static str {
        self.row().2
    }

    /// Values per block.
    pub fn block_len(self) -> usize {
        self.row().3 as usize
    }

    /// Bytes per block.
    pub fn block_bytes(self) -> usize {
        self.row().4 as usize
    }

    /// Bytes of a row of `n` values; `None` unless `n` fills whole blocks and the product fits.
    ///
    /// ```
    /// use forerun_model::QuantType;
    ///
    /// assert_eq!(QuantType::Q4_K.row_bytes(512), Some(2 * 144));
    /// assert_eq!(QuantType::Q4_K.row_bytes(500), None);
    /// ```
    pub fn row_bytes(self, n: usize) -> Option<usize> {
        let len = self.block_len();
        if !n.is_multiple_of(len) {
            return None;
        }
        (n / len).checked_mul(self.block_bytes())
    }

    fn row(self) -> &'static Row {
        // The enum's order is the table's order; a test holds them together.
        &TABLE[self as usize]
    }
}

impl fmt::Display for QuantType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_enum_and_the_table_are_in_one_order() {
        for (i, row) in TABLE.iter().enumerate() {
            assert_eq!(row.0 as usize, i, "{}", row.2);
            assert_eq!(QuantType::from_id(row.1), Some(row.0));
        }
        assert!(TABLE.windows(2).all(|pair| pair[0].1 < pair[1].1));
    }

    /// Ids, names and blocks as the `gguf` package lists them, written down apart from the table.
    #[test]
    fn every_id_of_the_format_is_known() {
        let listed = "0 F32 1 4, 1 F16 1 2, 2 Q4_0 32 18, 3 Q4_1 32 20, 6 Q5_0 32 22, 7 Q5_1 32 24, 8 Q8_0 32 34, \
                      9 Q8_1 32 40, 10 Q2_K 256 84, 11 Q3_K 256 110, 12 Q4_K 256 144, 13 Q5_K 256 176, \
                      14 Q6_K 256 210, 15 Q8_K 256 292, 16 IQ2_XXS 256 66, 17 IQ2_XS 256 74, \
                      18 IQ3_XXS 256 98, 19 IQ1_S 256 50, 20 IQ4_NL 32 18, 21 IQ3_S 256 110, \
                      22 IQ2_S 256 82, 23 IQ4_XS 256 136, 24 I8 1 1, 25 I16 1 2, 26 I32 1 4, 27 I64 1 8, \
                      28 F64 1 8, 29 IQ1_M 256 56, 30 BF16 1 2, 34 TQ1_0 256 54, 35 TQ2_0 256 66, \
                      39 MXFP4 32 17, 40 NVFP4 64 36, 41 Q1_0 128 18";
        let mut n = 0;
        for line in listed.split(", ") {
            let id = line.split(' ').next().unwrap().parse().unwrap();
            let quant = QuantType::from_id(id).unwrap();
            let found = format!("{} {quant} {} {}", quant.id(), quant.block_len(), quant.block_bytes());
            assert_eq!(found, line);
            n += 1;
        }
        assert_eq!(n, QuantType::all().count());
    }

    #[test]
    fn removed_and_unknown_ids_are_refused() {
        for id in [4, 5, 31, 32, 33, 36, 37, 38, 42, 200, 999, 1 << 31, u32::MAX] {
            assert_eq!(QuantType::from_id(id), None, "{id}");
        }
    }

    #[test]
    fn a_row_is_whole_blocks() {
        assert_eq!(QuantType::Q4_K.row_bytes(2048), Some(8 * 144));
        assert_eq!(QuantType::Q4_K.row_bytes(2000), None);
        assert_eq!(QuantType::F32.row_bytes(usize::MAX), None);
    }
}

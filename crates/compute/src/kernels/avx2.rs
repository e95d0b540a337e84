//! AVX2: which product goes where. Blocks of 8-bit products are in `avx2_blocks`, f32 products in `avx2_f32`.

use forerun_model::QuantType;

use super::avx2_blocks::{Q3K, Q4K, Q5K, Q6K, Q8Zero, Wides};
use super::avx2_f32::multiply_f32;
use super::isa::Loop;
use super::tiles::Tiles;
use super::{Columns, Isa, Kernels, check_sizes};
use crate::activation::{Form, Operand};
use crate::tensor::Matrix;

pub use super::avx2_ops::Avx2;

impl Kernels for Avx2 {
    fn name(&self) -> &'static str {
        "avx2"
    }

    fn isa(&self) -> Isa {
        Isa::detect()
    }

    fn multiply(&self, matrix: Matrix<'_>, x: Operand<'_>, out: &mut Columns<'_>) {
        check_sizes(matrix, x, out);
        let v = *self;
        match matrix.layout.quant {
            QuantType::Q3_K => v.run(Tiles::<_, 110, 256> { block: Wides::<Q3K, 1>::new(v), matrix, x, out }),
            QuantType::Q4_K => v.run(Tiles::<_, 144, 256> { block: Wides::<Q4K, 2>::new(v), matrix, x, out }),
            QuantType::Q5_K => v.run(Tiles::<_, 176, 256> { block: Wides::<Q5K, 2>::new(v), matrix, x, out }),
            QuantType::Q6_K => v.run(Tiles::<_, 210, 256> { block: Wides::<Q6K, 1>::new(v), matrix, x, out }),
            QuantType::Q8_0 => v.run(Tiles::<_, 34, 32> { block: Q8Zero(v), matrix, x, out }),
            quant => {
                assert_eq!(Form::of(quant), Form::F32, "{quant} has no product with 8-bit activations");
                v.run(F32Product { v, matrix, x, out });
            }
        }
    }
}

/// A product with f32 activations.
struct F32Product<'a, 'b> {
    v: Avx2,
    matrix: Matrix<'a>,
    x: Operand<'a>,
    out: &'a mut Columns<'b>,
}

impl Loop for F32Product<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        multiply_f32(self.v, self.matrix, self.x, self.out);
    }
}

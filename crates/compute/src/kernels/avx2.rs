//! AVX2: which product goes where.

use forerun_model::QuantType;

use super::avx2_blocks::{Q3K, Q4K, Q5K, Q6K, Q8Zero, Wides};
use super::floats::Products;
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
        Isa::from(*self)
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
                v.run(Products { v, matrix, x, out });
            }
        }
    }
}

//! NEON: which product goes where, for CPUs with and without two extensions.

use forerun_model::QuantType;

use super::floats::Products;
use super::neon_blocks::{Bytes, Q8Zero, Wides};
use super::neon_pairs::{Q8ZeroPairs, WidePairs};
use super::neon_unpack::{Q3K, Q4K, Q5K, Q6K};
use super::tiles::Tiles;
use super::{Columns, Isa, Kernels, check_sizes};
use crate::activation::{Form, Operand};
use crate::tensor::Matrix;

pub use super::neon_ops::{Neon, NeonDot, NeonI8mm};

impl Kernels for Neon {
    fn name(&self) -> &'static str {
        "neon"
    }

    fn isa(&self) -> Isa {
        Isa::BASELINE
    }

    fn multiply(&self, matrix: Matrix<'_>, x: Operand<'_>, out: &mut Columns<'_>) {
        multiply(*self, matrix, x, out);
    }
}

impl Kernels for NeonDot {
    fn name(&self) -> &'static str {
        "neon-dotprod"
    }

    fn isa(&self) -> Isa {
        Isa::BASELINE
    }

    fn multiply(&self, matrix: Matrix<'_>, x: Operand<'_>, out: &mut Columns<'_>) {
        multiply(*self, matrix, x, out);
    }
}

impl Kernels for NeonI8mm {
    fn name(&self) -> &'static str {
        "neon-i8mm"
    }

    fn isa(&self) -> Isa {
        Isa::BASELINE
    }

    fn multiply(&self, matrix: Matrix<'_>, x: Operand<'_>, out: &mut Columns<'_>) {
        check_sizes(matrix, x, out);
        let v = *self;
        match matrix.layout.quant {
            QuantType::Q3_K => {
                v.run(Tiles::<_, 110, 256> { block: WidePairs::<Q3K, 1>::new(v), matrix, x, out })
            }
            QuantType::Q4_K => {
                v.run(Tiles::<_, 144, 256> { block: WidePairs::<Q4K, 2>::new(v), matrix, x, out })
            }
            QuantType::Q5_K => {
                v.run(Tiles::<_, 176, 256> { block: WidePairs::<Q5K, 2>::new(v), matrix, x, out })
            }
            QuantType::Q6_K => {
                v.run(Tiles::<_, 210, 256> { block: WidePairs::<Q6K, 1>::new(v), matrix, x, out })
            }
            QuantType::Q8_0 => v.run(Tiles::<_, 34, 32> { block: Q8ZeroPairs(v), matrix, x, out }),
            _ => multiply(v.dot(), matrix, x, out),
        }
    }
}

fn multiply<V: Bytes>(v: V, matrix: Matrix<'_>, x: Operand<'_>, out: &mut Columns<'_>) {
    check_sizes(matrix, x, out);
    match matrix.layout.quant {
        QuantType::Q3_K => v.run(Tiles::<_, 110, 256> { block: Wides::<_, Q3K, 1>::new(v), matrix, x, out }),
        QuantType::Q4_K => v.run(Tiles::<_, 144, 256> { block: Wides::<_, Q4K, 2>::new(v), matrix, x, out }),
        QuantType::Q5_K => v.run(Tiles::<_, 176, 256> { block: Wides::<_, Q5K, 2>::new(v), matrix, x, out }),
        QuantType::Q6_K => v.run(Tiles::<_, 210, 256> { block: Wides::<_, Q6K, 1>::new(v), matrix, x, out }),
        QuantType::Q8_0 => v.run(Tiles::<_, 34, 32> { block: Q8Zero(v), matrix, x, out }),
        quant => {
            assert_eq!(Form::of(quant), Form::F32, "{quant} has no product with 8-bit activations");
            let v = v.neon();
            v.run(Products { v, matrix, x, out });
        }
    }
}

//! The list of tensors: each one's name, type, dimensions and bytes, checked against the file's real length.

use forerun_model::QuantType;

use super::header::Cursor;
use crate::error::HeaderError;

/// Longest tensor name that is accepted; the usual writers stop at 64.
const NAME_BYTES_MAX: u64 = 1024;

/// Most axes of a tensor.
const DIMS_MAX: usize = 4;

/// Sizes of a tensor's axes, fastest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dims {
    sizes: [u64; DIMS_MAX],
    n: u8,
}

impl Dims {
    /// The axes of `sizes`, fastest first; `None` unless there are 1 to 4.
    pub fn new(sizes: &[u64]) -> Option<Self> {
        let n = u8::try_from(sizes.len()).ok().filter(|_| (1..=DIMS_MAX).contains(&sizes.len()))?;
        let mut dims = Self { sizes: [1; DIMS_MAX], n };
        dims.sizes[..sizes.len()].copy_from_slice(sizes);
        Some(dims)
    }

    /// The sizes, fastest first.
    pub fn as_slice(&self) -> &[u64] {
        &self.sizes[..usize::from(self.n)]
    }
}

/// One tensor of a file set. Its range lies inside its file and overlaps no other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name, unique in the set.
    pub name: String,
    /// How its values are stored.
    pub quant: QuantType,
    /// Sizes of its axes.
    pub dims: Dims,
    /// Index of its file in the set.
    pub file: u16,
    /// First byte in the file.
    pub offset_bytes: u64,
    /// Bytes in the file.
    pub len_bytes: u64,
}

impl TensorInfo {
    /// Sizes of the axes, fastest first.
    pub fn dims(&self) -> &[u64] {
        self.dims.as_slice()
    }
}

/// Reads `n` tensor infos of file `file`, whose offsets count from the data section's start.
pub(super) fn read(cursor: &mut Cursor<'_>, n: u64, file: u16) -> Result<Vec<TensorInfo>, HeaderError> {
    let mut tensors = cursor.room("the list of tensors", n, 1)?;
    for idx in 0..n {
        tensors.push(read_one(cursor, idx, file)?);
    }
    Ok(tensors)
}

fn read_one(cursor: &mut Cursor<'_>, idx: u64, file: u16) -> Result<TensorInfo, HeaderError> {
    let name = cursor.name("a tensor name", (idx, NAME_BYTES_MAX))?;
    let n_dims = cursor.u32(&name)?;
    let Some(n) = u8::try_from(n_dims).ok().filter(|n| (1..=DIMS_MAX).contains(&usize::from(*n))) else {
        return Err(HeaderError::DimCount { name, found: n_dims });
    };
    let mut dims = Dims { sizes: [1; DIMS_MAX], n };
    for size in &mut dims.sizes[..usize::from(n)] {
        *size = cursor.u64(&name)?;
    }
    let kind = cursor.u32(&name)?;
    let Some(quant) = QuantType::from_id(kind) else {
        return Err(HeaderError::TensorType { name, found: kind });
    };
    let offset_bytes = cursor.u64(&name)?;
    let len_bytes = tensor_bytes(&name, quant, dims)?;
    if len_bytes > cursor.file_bytes() {
        return Err(too_long(&name, len_bytes, offset_bytes.saturating_add(len_bytes), cursor.file_bytes()));
    }
    Ok(TensorInfo { name, quant, dims, file, offset_bytes, len_bytes })
}

/// Bytes of a tensor; every product is checked.
pub(super) fn tensor_bytes(name: &str, quant: QuantType, dims: Dims) -> Result<u64, HeaderError> {
    let impossible = || HeaderError::Dims { name: name.to_owned(), dims: dims.as_slice().to_vec() };
    if dims.as_slice().contains(&0) {
        return Err(impossible());
    }
    let (len, block_len) = (dims.sizes[0], quant.block_len() as u64);
    if !len.is_multiple_of(block_len) {
        return Err(HeaderError::RowBlocks { name: name.to_owned(), quant: quant.name(), len, block_len });
    }
    let row_bytes = (len / block_len).checked_mul(quant.block_bytes() as u64).ok_or_else(impossible)?;
    let bytes = dims.sizes[1..].iter().try_fold(row_bytes, |product, &size| product.checked_mul(size));
    bytes.ok_or_else(impossible)
}

/// Turns offsets into the data section into offsets into the file, and checks every range.
pub(super) fn place(
    tensors: &mut [TensorInfo],
    data_start: u64,
    alignment: u64,
    file_bytes: u64,
) -> Result<(), HeaderError> {
    for tensor in &mut *tensors {
        if !tensor.offset_bytes.is_multiple_of(alignment) {
            let (name, offset_bytes) = (tensor.name.clone(), tensor.offset_bytes);
            return Err(HeaderError::Offset { name, offset_bytes, alignment });
        }
        let start = data_start.checked_add(tensor.offset_bytes);
        let end = start.and_then(|start| start.checked_add(tensor.len_bytes));
        match (start, end) {
            (Some(start), Some(end)) if end <= file_bytes => tensor.offset_bytes = start,
            _ => {
                let end = end.unwrap_or(u64::MAX);
                return Err(too_long(&tensor.name, tensor.len_bytes, end, file_bytes));
            }
        }
    }
    Ok(())
}

/// Refuses two tensors of one name, and two that share bytes; `order` is scratch.
pub(super) fn check_apart(tensors: &[TensorInfo], order: &mut [u32]) -> Result<(), HeaderError> {
    let at = |i: u32| &tensors[i as usize];
    order.sort_unstable_by_key(|&i| at(i).offset_bytes);
    for pair in order.windows(2) {
        let (first, second) = (at(pair[0]), at(pair[1]));
        if first.name == second.name {
            return Err(HeaderError::DuplicateTensor { name: first.name.clone() });
        }
        if first.offset_bytes + first.len_bytes > second.offset_bytes {
            let (first, second) = (first.name.clone(), second.name.clone());
            return Err(HeaderError::Overlap { first, second });
        }
    }
    order.sort_unstable_by(|&a, &b| at(a).name.cmp(&at(b).name));
    match order.windows(2).find(|pair| at(pair[0]).name == at(pair[1]).name) {
        Some(pair) => Err(HeaderError::DuplicateTensor { name: at(pair[0]).name.clone() }),
        None => Ok(()),
    }
}

fn too_long(name: &str, need_bytes: u64, end_bytes: u64, file_bytes: u64) -> HeaderError {
    HeaderError::TensorEnd { name: name.to_owned(), need_bytes, end_bytes, file_bytes }
}

//! Copies with other types: the same bytes however they are cut, packed or not, and after crashes.

use forerun_model::QuantType;

use super::*;
use crate::TensorInfo;
use crate::gguf::Value;
use crate::repack::{Experts, Recode, RecodeError, Recoding, Rows};

fn model() -> Gguf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/architectures/qwen3moe-f32.gguf");
    Gguf::open(&path).unwrap()
}

/// Makes BF16 of some F32: the upper half of each value. A row gets its place in its first value, so that a wrong one shows.
#[derive(Debug, Default)]
struct Halves {
    /// Rows of this tensor can't be made.
    refused: Option<&'static str>,
}

impl Recode for Halves {
    fn target(&self, tensor: &TensorInfo) -> QuantType {
        let is_matrix = tensor.dims().len() > 1 && !tensor.name.contains("_inp");
        if is_matrix { QuantType::BF16 } else { tensor.quant }
    }

    fn recode(&self, rows: Vec<Rows<'_>>) -> Result<(), RecodeError> {
        for rows in rows {
            assert_eq!((rows.tensor.quant, rows.to), (QuantType::F32, QuantType::BF16));
            if self.refused == Some(rows.tensor.name.as_str()) {
                return Err(format!("no rows of {}", rows.tensor.name).into());
            }
            let n_cols = rows.n_cols();
            let n_rows = usize::try_from(rows.tensor.dims()[1]).unwrap();
            assert!(rows.first_row + rows.bytes.len() / 4 / n_cols <= n_rows, "rows of one matrix");
            for (i, (from, to)) in
                rows.bytes.chunks_exact(4 * n_cols).zip(rows.out.chunks_exact_mut(2 * n_cols)).enumerate()
            {
                for (value, half) in from.as_chunks::<4>().0.iter().zip(to.as_chunks_mut::<2>().0) {
                    *half = [value[2], value[3]];
                }
                let place = rows.matrix * n_rows + rows.first_row + i;
                to[..2].copy_from_slice(&u16::try_from(place).unwrap().to_le_bytes());
            }
        }
        Ok(())
    }
}

/// What the tensor should hold.
fn want(gguf: &Gguf, tensor: &TensorInfo) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(tensor.len_bytes).unwrap()];
    gguf.files().files()[0].read_exact_at(&mut bytes, tensor.offset_bytes).unwrap();
    if Halves::default().target(tensor) == tensor.quant {
        return bytes;
    }
    let row_bytes = usize::try_from(4 * tensor.dims()[0]).unwrap();
    let mut halves: Vec<u8> =
        bytes.as_chunks::<4>().0.iter().flat_map(|value| [value[2], value[3]]).collect();
    for (row, place) in halves.chunks_exact_mut(row_bytes / 2).zip(0_u16..) {
        row[..2].copy_from_slice(&place.to_le_bytes());
    }
    halves
}

fn copy(
    disk: &Disk,
    experts: Experts,
    step_bytes: u64,
    refused: Option<&'static str>,
) -> Result<u64, PackError> {
    let (source, halves) = (model(), Halves { refused });
    let keys = vec![("general.file_type".to_owned(), Value::U32(32)), ("x.y".to_owned(), Value::U8(1))];
    let recoding = Recoding { experts, keys, drops: &[], recode: &halves };
    let settings = Settings { step_bytes, checkpoint_bytes: 60_000, ..Settings::default() };
    run(&source, disk, Direction::Recode(&recoding), &settings)
}

fn whole(experts: Experts) -> Vec<u8> {
    let disk = Disk::default();
    copy(&disk, experts, 20_000, None).unwrap();
    let published = disk.lock().published.take();
    published.unwrap()
}

#[test]
fn every_row_is_made_once_and_in_its_place() {
    let source = model();
    let plain = whole(Experts::AsSource);
    let target = Gguf::open_bytes("plain", plain.clone().into()).unwrap();
    assert_eq!(target.metadata.value("general.file_type"), Some(&Value::U32(32)));
    assert_eq!(target.metadata.value("x.y"), Some(&Value::U8(1)));
    for (tensor, from) in target.tensors().iter().zip(source.tensors()) {
        assert_eq!((&tensor.name, tensor.dims), (&from.name, from.dims));
        let at = usize::try_from(tensor.offset_bytes).unwrap();
        let len = usize::try_from(tensor.len_bytes).unwrap();
        assert!(plain[at..at + len] == want(&source, from), "{}", from.name);
    }
    let disk = Disk::default();
    for step_bytes in [1, 5000, 7777, 1 << 20] {
        copy(&disk, Experts::AsSource, step_bytes, None).unwrap();
        assert!(disk.lock().published.take().unwrap() == plain, "steps of {step_bytes}");
    }
}

#[test]
fn a_packed_copy_unpacks_to_the_plain_one() {
    let packed = Gguf::open_bytes("packed", whole(Experts::Packed).into()).unwrap();
    let disk = Disk::default();
    run(&packed, &disk, Direction::Unpack, &settings()).unwrap();
    assert!(disk.lock().published.take().unwrap() == whole(Experts::AsSource));
    let halves = Halves::default();
    let recoding = Recoding { experts: Experts::Packed, keys: Vec::new(), drops: &[], recode: &halves };
    let error = run(&packed, &disk, Direction::Recode(&recoding), &settings()).unwrap_err();
    assert!(matches!(error, PackError::PackedSource { .. }), "{error}");
}

#[test]
fn rows_that_can_not_be_made_leave_nothing() {
    for experts in [Experts::AsSource, Experts::Packed] {
        let disk = Disk::default();
        let error = copy(&disk, experts, 20_000, Some("blk.1.ffn_up_exps.weight")).unwrap_err();
        assert!(matches!(error, PackError::Recode { .. }), "{error}");
        let state = disk.lock();
        assert!(state.part.is_none() && state.journal.is_empty() && state.published.is_none());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn a_crash_changes_nothing_in_the_end(
        allowances in prop::collection::vec(0_usize..500_000, 1..4),
        seed in any::<u64>(),
        is_packed in any::<bool>(),
    ) {
        let experts = if is_packed { Experts::Packed } else { Experts::AsSource };
        let disk = Disk::default();
        for (i, allowance) in allowances.into_iter().enumerate() {
            disk.lock().allowance = Some(allowance);
            let published = copy(&disk, experts, 20_000, None).is_ok();
            prop_assert_eq!(disk.lock().published.take().is_some(), published);
            disk.crash(seed.wrapping_add(i as u64));
        }
        disk.lock().allowance = None;
        let resumed_bytes = copy(&disk, experts, 20_000, None).unwrap();
        prop_assert!(disk.lock().published.take().unwrap() == whole(experts), "{resumed_bytes} resumed");
    }
}

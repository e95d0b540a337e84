//! Both forms in and the newer one out, and what is wrong with either.

use bytes::Bytes;
use forerun_model::QuantType;
use forerun_storage::gguf::{Array, Dims, HeaderWriter, TensorSpec, Value};
use proptest::prelude::*;

use super::{About, Imatrix, Importance, Partial};

/// Three experts, one of which saw nothing, and a matrix for all tokens.
fn sample() -> Imatrix {
    let mut imatrix = Imatrix {
        about: About { datasets: vec!["a.txt".into()], chunk_count: 3, chunk_size: 512, partial: None },
        ..Imatrix::default()
    };
    let experts = Importance::new("e", 2, vec![1.0, 2.0, 0.0, 0.0, 5.0, 6.0], vec![2.0, 0.0, 4.0]).unwrap();
    imatrix.insert("blk.0.ffn_gate_exps.weight".into(), experts);
    let all = Importance::new("a", 3, vec![3.0, 4.5, 0.0], vec![6.0]).unwrap();
    let all = all.with_moments("a", vec![3.0, -1.0, 4.5, 0.0, 0.0, 0.0]).unwrap();
    imatrix.insert("blk.0.attn_q.weight".into(), all);
    imatrix
}

/// Written to a file, changed there by `change`, and read again.
#[track_caller]
fn reread(imatrix: &Imatrix, change: impl FnOnce(&mut Vec<u8>)) -> Result<Imatrix, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("i.gguf");
    imatrix.write(&path).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing but the file is left");
    change(&mut bytes);
    std::fs::write(&path, &bytes).unwrap();
    let from_file = Imatrix::open(&path).map_err(|error| error.to_string());
    let from_bytes = Imatrix::open_bytes(&path.display().to_string(), &bytes.into());
    let from_bytes = from_bytes.map_err(|error| error.to_string());
    // As texts, for a number that is none isn't equal to itself.
    assert_eq!(format!("{from_file:?}"), format!("{from_bytes:?}"));
    from_file.map_err(|error| error.replace(&path.display().to_string(), "i.gguf"))
}

#[test]
fn what_is_written_is_read_again() {
    let mut imatrix = sample();
    assert_eq!(reread(&imatrix, |_| {}), Ok(imatrix.clone()));
    imatrix.about.partial = Some(Partial { source: "a text, a model".into(), windows: 1 << 40 });
    assert_eq!(reread(&imatrix, |_| {}), Ok(imatrix));
}

#[test]
fn a_file_is_replaced_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("i.gguf");
    std::fs::write(&path, "something else").unwrap();
    sample().write(&path).unwrap();
    assert_eq!(Imatrix::open(&path).unwrap(), sample());
    let absent = folder.path().join("no").join("i.gguf");
    assert!(sample().write(&absent).unwrap_err().to_string().starts_with("cannot write"));
    assert!(Imatrix::open(&absent).unwrap_err().to_string().starts_with("cannot open"));
}

#[test]
fn unseen_experts_and_numbers_that_are_none_have_no_mean() {
    let odd = [f32::NAN, f32::INFINITY, -1.0];
    let sums: Vec<f32> =
        odd.iter().flat_map(|&odd| [1.0, odd]).chain([2.0, 4.0, 0.0, 0.0, 1.0, 1.0]).collect();
    let mut imatrix = Imatrix::default();
    let counts = vec![1.0, 1.0, 1.0, 2.0, 3.0, f32::NAN];
    imatrix.insert("x".into(), Importance::new("x", 2, sums, counts).unwrap());
    let read = reread(&imatrix, |_| {}).unwrap();
    let x = read.get("x").unwrap();
    assert!(x.sums(0)[1].is_nan(), "kept as it is");
    let known: Vec<usize> = (0..6).filter(|&i| x.mean_squares(i).is_some()).collect();
    assert_eq!(known, [3]);
    assert_eq!(x.mean_squares(3), Some(vec![1.0, 2.0]));
    for (sum, count) in [(1e10, 1e-30), (1e-30, 1e38)] {
        let passes_bounds = Importance::new("y", 1, vec![sum], vec![count]).unwrap();
        assert_eq!(passes_bounds.mean_squares(0), None, "{sum} over {count}");
    }
}

#[test]
fn moments_that_can_not_be_are_refused() {
    let one = || Importance::new("x", 2, vec![4.0, 9.0], vec![6.0]).unwrap();
    let refused = |of: Importance, moments: &[f32], expect: &str| {
        let error = of.with_moments("x", moments.to_vec()).unwrap_err().to_string();
        assert_eq!(error, format!("the importance matrix's second moments of `x` are none: {expect}"));
    };
    assert_eq!(one().with_moments("x", vec![4.0, 1.0, 9.0]).unwrap().moments(), [4.0, 1.0, 9.0]);
    assert_eq!(one().with_moments("x", Vec::new()).unwrap(), one());
    refused(one(), &[4.0, 1.0], "there are 2, its columns have 3");
    refused(one(), &[4.0, f32::NAN, 9.0], "number 1 is NaN, all must be finite");
    refused(one(), &[4.0, 1.0, -9.0], "the squares of column 1 sum up to -9, which must be at least 0");
    let two = Importance::new("x", 1, vec![4.0, 9.0], vec![6.0, 6.0]).unwrap();
    refused(two, &[4.0], "there are 1, its columns have 0");
}

#[test]
fn an_entry_of_all_experts_is_parted() {
    let one = Importance::new("x", 6, vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], vec![2.0]).unwrap();
    let three = one.clone().into_matrices(3).unwrap();
    assert_eq!((three.n_cols(), three.n_matrices(), three.sums(1)), (2, 3, &[3.0, 4.0][..]));
    assert_eq!(three.count(2).to_bits(), 2.0_f32.to_bits());
    assert_eq!(three.clone().into_matrices(3), Some(three.clone()));
    assert_eq!(one.clone().into_matrices(4), None);
    assert_eq!(one.into_matrices(0), None);
    assert_eq!(three.into_matrices(1), None);
}

/// A file of our keys, but for `kind`, and of tensors given by name, type and axes.
fn gguf(kind: Option<&str>, keys: &[(&str, Value)], tensors: &[(&str, QuantType, &[u64])]) -> Bytes {
    let kind = kind.map(|kind| ("general.type".to_owned(), Value::Text(kind.into())));
    let keys = kind.into_iter().chain(keys.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
    let specs = tensors.iter().map(|(name, quant, dims)| TensorSpec {
        name: (*name).to_owned(),
        quant: *quant,
        dims: Dims::new(dims).unwrap(),
    });
    let header = HeaderWriter::new(keys.collect(), specs.collect()).unwrap();
    let mut bytes = Vec::new();
    header.write(&mut bytes).unwrap();
    bytes.resize(usize::try_from(header.file_bytes()).unwrap(), 0);
    bytes.into()
}

#[track_caller]
fn refused(bytes: &Bytes, expect: &str) {
    let error = Imatrix::open_bytes("f", bytes).unwrap_err().to_string();
    assert_eq!(error, expect);
}

const F32: QuantType = QuantType::F32;

#[test]
fn a_model_is_no_importance_matrix() {
    let absent = "f is no importance matrix: its `general.type` is absent, not imatrix";
    refused(&gguf(None, &[], &[("x.in_sum2", F32, &[2])]), absent);
    let model = "f is no importance matrix: its `general.type` is \"model\", not imatrix";
    refused(&gguf(Some("model"), &[], &[]), model);
    let magic =
        "f is no importance matrix: it begins neither with `GGUF` nor with a number of entries that its";
    for bytes in [&b""[..], b"GG", b"{\"a\": 1, \"b\": 2, \"c\": 3}", &[0; 64], &[0xff; 64]] {
        let error = Imatrix::open_bytes("f", &Bytes::copy_from_slice(bytes)).unwrap_err().to_string();
        assert!(error.starts_with(magic), "{error}");
    }
    let folder = tempfile::tempdir().unwrap();
    assert!(
        Imatrix::open(folder.path()).unwrap_err().to_string().ends_with("is neither a file nor a folder")
    );
}

#[test]
fn entries_must_be_whole() {
    let imatrix = |tensors| gguf(Some("imatrix"), &[], tensors);
    refused(
        &imatrix(&[("x.counts", F32, &[1])]),
        "f has `x.counts` without `x.in_sum2`; each tensor needs both",
    );
    refused(
        &imatrix(&[("x.in_sum2", F32, &[8])]),
        "f has `x.in_sum2` without `x.counts`; each tensor needs both",
    );
    refused(
        &imatrix(&[("x.in_moments", F32, &[3])]),
        "f has `x.in_moments` without `x.in_sum2`; each tensor needs both",
    );
    refused(
        &imatrix(&[("x.in_sum2", F32, &[2]), ("x.counts", F32, &[1]), ("x.in_moments", F32, &[4])]),
        "the importance matrix's second moments of `x` are none: there are 4, its columns have 3",
    );
    refused(
        &imatrix(&[("x.in_sum2", F32, &[5]), ("x.counts", F32, &[1, 2])]),
        "the importance matrix has 5 sums for `x`, which 2 matrices of 0 columns don't give",
    );
    refused(
        &imatrix(&[("x.in_sum2", QuantType::F16, &[4]), ("x.counts", F32, &[1])]),
        "f: tensor `x.in_sum2` is F16; an importance matrix is F32",
    );
    refused(&imatrix(&[("x", F32, &[4])]), "f is an importance matrix without any entry");
}

#[test]
fn keys_must_be_what_they_are_for() {
    let pair: &[_] = &[("x.in_sum2", F32, &[4][..]), ("x.counts", F32, &[1][..])];
    let with = |key, value| gguf(Some("imatrix"), &[(key, value)], pair);
    refused(
        &with("imatrix.chunk_size", Value::I32(-1)),
        "f: metadata key `imatrix.chunk_size` is -1 but must be a number of windows or tokens",
    );
    refused(
        &with("imatrix.datasets", Value::Text("a.txt".into())),
        "f: metadata key `imatrix.datasets` is \"a.txt\" but must be a list of texts",
    );
    let none = with("imatrix.datasets", Value::Array(Array::U8(Vec::new())));
    assert_eq!(Imatrix::open_bytes("f", &none).unwrap().about, About::default());
}

#[test]
fn a_file_that_was_cut_is_refused() {
    let cut = reread(&sample(), |bytes| bytes.truncate(bytes.len() - 64)).unwrap_err();
    assert!(cut.contains("i.gguf, byte "), "{cut}");
}

/// The older form, by hand: name, windows, values.
fn dat(entries: &[(&str, i32, &[f32])], rest: &[u8]) -> Vec<u8> {
    let mut bytes = i32::try_from(entries.len()).unwrap().to_le_bytes().to_vec();
    for (name, n_windows, values) in entries {
        bytes.extend(i32::try_from(name.len()).unwrap().to_le_bytes());
        bytes.extend(name.as_bytes());
        bytes.extend(n_windows.to_le_bytes());
        bytes.extend(i32::try_from(values.len()).unwrap().to_le_bytes());
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }
    bytes.extend(rest);
    bytes
}

#[test]
fn the_older_form_is_read_with_and_without_its_end() {
    let entries: &[_] = &[("a", 3, &[6.0, 3.0][..]), ("b.weight", 3, &[1.0][..])];
    let plain = Imatrix::open_bytes("f", &dat(entries, &[]).into()).unwrap();
    assert_eq!(plain.get("a").unwrap().mean_squares(0), Some(vec![2.0, 1.0]));
    assert_eq!((plain.len(), &plain.about), (2, &About::default()));
    let rest = [&7_i32.to_le_bytes()[..], &3_i32.to_le_bytes(), b"t.x"].concat();
    let whole = Imatrix::open_bytes("f", &dat(entries, &rest).into()).unwrap();
    assert_eq!((whole.about.chunk_count, &whole.about.datasets[..]), (7, &["t.x".to_owned()][..]));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("i.dat");
    std::fs::write(&path, dat(entries, &rest)).unwrap();
    assert_eq!(Imatrix::open(&path).unwrap(), whole);
}

#[test]
fn the_older_form_is_refused_where_it_is_damaged() {
    let good = dat(&[("abc", 1, &[1.0, 2.0])], &[]);
    let with = |at: usize, value: i32| {
        let mut bytes = good.clone();
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        bytes.into()
    };
    refused(&with(4, -1), "f, byte 4: the length of a name is -1; it must be from 0 to 1024");
    refused(&with(11, -2), "f, byte 11: an entry's number of windows is -2; it must be from 0 to 4294967295");
    refused(&with(15, 3), "f, byte 15: an entry's number of values is 3; it must be from 0 to 2");
    refused(
        &with(15, 0),
        "the importance matrix has 0 sums for `abc`, which 1 matrices of 0 columns don't give",
    );
    refused(&with(4, 1000), "f ends at byte 27, within a name");
    refused(&with(7, i32::from_le_bytes(*b"\0\xff\xff\xff")), "f, byte 8: a name is not UTF-8");
    let twice = dat(&[("a", 1, &[1.0]), ("a", 1, &[1.0])], &[]);
    refused(&twice.into(), "f, byte 21: the entry's name occurs twice");
}

proptest! {
    #[test]
    fn any_numbers_survive(values in prop::collection::vec(any::<f32>(), 1..40), n in 1..8_usize) {
        let n_cols = values.len().div_ceil(n);
        let mut sums = values;
        sums.resize(n_cols * n, 0.5);
        let counts: Vec<f32> = (0..n).map(|i| sums[i]).collect();
        let mut imatrix = Imatrix::default();
        imatrix.insert("x".into(), Importance::new("x", n_cols, sums.clone(), counts.clone()).unwrap());
        let read = reread(&imatrix, |_| {}).unwrap();
        let x = read.get("x").unwrap();
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        let found: Vec<f32> = (0..n).flat_map(|i| x.sums(i).to_vec()).collect();
        prop_assert_eq!(bits(&found), bits(&sums));
        prop_assert!((0..n).all(|i| x.count(i).to_bits() == counts[i].to_bits()));
    }

    #[test]
    fn no_bytes_are_a_reason_to_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Imatrix::open_bytes("f", &bytes.into());
    }
}

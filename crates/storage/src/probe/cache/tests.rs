//! Reports that come back, and files that don't count.

use super::*;
use crate::probe::choose::{choose, merge};

const NOW: u64 = 1_800_000_000;

fn report(record_bytes: u64) -> ProbeReport {
    let device = Device { id: "254:0".into(), file_system: "ext4".into(), volume: "a1".into() };
    let choice = merge(choose(&[], &[]), None, None);
    let (version, took_ms) = (VERSION, 1.25);
    let (align_bytes, rates, small, missing) = (Some(512), vec![], None, vec![]);
    ProbeReport { version, device, record_bytes, align_bytes, rates, small, missing, choice, took_ms }
}

struct Rig {
    folder: tempfile::TempDir,
    cache: ProbeCache,
    report: ProbeReport,
}

impl Rig {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let cache = ProbeCache::new(folder.path().join("not/yet"));
        Self { folder, cache, report: report(1_290_240) }
    }

    fn store(&self) -> PathBuf {
        self.cache.store(&self.report, NOW).unwrap().unwrap()
    }

    fn load(&self, unix_seconds: u64) -> Cached {
        self.cache.load(&self.report.device, 1_290_240, unix_seconds)
    }

    #[track_caller]
    fn check_useless(&self, unix_seconds: u64, why: &str) {
        match self.load(unix_seconds) {
            Cached::Useless { note } => assert!(note.ends_with(&format!("is not used: {why}")), "{note}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_report_comes_back() {
    let rig = Rig::new();
    assert_eq!(rig.load(NOW), Cached::Nothing);
    rig.store();
    let report = Box::new(rig.report.clone());
    assert_eq!(rig.load(NOW + 60), Cached::Report { report, age_seconds: 60 });
}

#[test]
fn another_disk_or_other_records_are_not_known() {
    let rig = Rig::new();
    rig.store();
    let other = Device { id: "254:1".into(), ..rig.report.device.clone() };
    assert_eq!(rig.cache.load(&other, 1_290_240, NOW), Cached::Nothing);
    let reformatted = Device { volume: "b2".into(), ..rig.report.device.clone() };
    assert_eq!(rig.cache.load(&reformatted, 1_290_240, NOW), Cached::Nothing);
    assert_eq!(rig.cache.load(&rig.report.device, 1_000_000, NOW), Cached::Nothing);
    assert!(matches!(rig.cache.load(&rig.report.device, 2_000_000, NOW), Cached::Report { .. }));
}

#[test]
fn old_reports_are_not_used() {
    let rig = Rig::new();
    rig.store();
    assert!(matches!(rig.load(NOW + CACHED_SECONDS_MAX), Cached::Report { .. }));
    rig.check_useless(NOW + CACHED_SECONDS_MAX + 1, "it is 30 days old");
    rig.check_useless(NOW - 1, "it is from the future");
}

#[test]
fn damaged_files_are_not_used_and_are_replaced() {
    let rig = Rig::new();
    let path = rig.store();
    let whole = fs::read(&path).unwrap();
    for len in [0, 1, whole.len() / 2, whole.len() - 2] {
        fs::write(&path, &whole[..len]).unwrap();
        rig.check_useless(NOW, "it is damaged");
    }
    fs::write(&path, vec![b' '; 1 << 20]).unwrap();
    rig.check_useless(NOW, "it is damaged");
    rig.store();
    assert!(matches!(rig.load(NOW), Cached::Report { .. }));
}

#[test]
fn absurd_settings_are_not_used() {
    let spoil: [fn(&mut ProbeReport); 5] = [
        |report| report.choice.depth = 1_000_000,
        |report| report.choice.depth = 0,
        |report| report.choice.gap_bytes_max = u32::MAX,
        |report| report.choice.full_speed_bytes = u32::MAX,
        |report| report.choice.bytes_per_second = Some(0),
    ];
    for spoil in spoil {
        let mut rig = Rig::new();
        spoil(&mut rig.report);
        rig.store();
        rig.check_useless(NOW, "it is damaged");
    }
}

#[test]
fn another_version_is_not_used() {
    let mut rig = Rig::new();
    rig.report.version = VERSION + 1;
    let path = rig.store();
    rig.check_useless(NOW, &format!("it is of version {}, this is {VERSION}", VERSION + 1));
    fs::write(&path, r#"{"report": {"version": 77, "nothing": "of ours"}}"#).unwrap();
    rig.check_useless(NOW, &format!("it is of version 77, this is {VERSION}"));
}

#[test]
fn a_file_that_cannot_be_written_is_an_error_and_leaves_nothing() {
    let rig = Rig::new();
    fs::write(rig.folder.path().join("not"), "a file where a folder should be").unwrap();
    let error = rig.cache.store(&rig.report, NOW).unwrap_err();
    assert!(error.to_string().contains("probe-254-0-ext4-a1-2097152.json"), "{error}");
    assert_eq!(fs::read_dir(rig.folder.path()).unwrap().count(), 1);
}

#[test]
fn storing_leaves_one_file() {
    let rig = Rig::new();
    let path = rig.store();
    rig.store();
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
}

#[test]
fn a_disk_without_a_name_is_not_kept() {
    let mut rig = Rig::new();
    rig.report.device.id.clear();
    assert_eq!(rig.cache.store(&rig.report, NOW).unwrap(), None);
    assert_eq!(rig.load(NOW), Cached::Nothing);
}

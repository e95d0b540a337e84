//! Case 91: file systems that refuse direct reads, take them and then fail, or take them in larger blocks. On each the
//! probe ends, says what it found, and what it chose reads the right bytes.
//!
//! File systems of their own are mounted where nobody else sees them, in a namespace that ends with the test. Where
//! the system allows none, the test says so and passes.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a helper of a test may panic, as the test may")]

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use forerun_arena::{Arena, SlotIdx};
use forerun_model::{Clock, Nanos, SystemClock};
use forerun_storage::probe::{Access, ProbeReport};
use forerun_storage::{
    DataFile, DirectFiles, FileSet, PreadBackend, PreadConfig, Priority, ProbeConfig, Read, ReadBackend, Tag,
    probe,
};

const FILE_BYTES: usize = (4 << 20) + 777;
const READ_BYTES: usize = 64 << 10;
const FOLDER: &str = "FORERUN_TEST_FOLDER";
/// What a script ends with when the system doesn't let it mount.
const SKIPPED: i32 = 77;

/// Probes a file in `folder`, then reads it whole in the way that was chosen.
fn probe_and_read(folder: &Path) -> ProbeReport {
    let path = folder.join("model");
    let bytes: Vec<u8> =
        (0..FILE_BYTES).map(|i| (i.wrapping_mul(2_654_435_761) >> 7).to_le_bytes()[0]).collect();
    fs::write(&path, &bytes).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    let files = FileSet::new(vec![DataFile::open(&path).unwrap()]);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let config = ProbeConfig { record_bytes: READ_BYTES, seed: 7, limit: None };
    let report = probe(&files, config, &clock).unwrap();
    let pread = PreadConfig { n_threads: report.choice.depth, depth: report.choice.depth };
    let backend = match report.choice.access {
        Access::Direct => PreadBackend::direct(&files, DirectFiles::open(&files).unwrap(), pread, clock),
        Access::Cached => PreadBackend::new(&files, pread, clock),
    };
    assert!(read_all(backend.unwrap()) == bytes, "wrong bytes: {report:?}");
    report
}

fn read_all(mut backend: PreadBackend) -> Vec<u8> {
    let arena = Arena::new(1, READ_BYTES).unwrap();
    let (mut bytes, mut done) = (Vec::new(), Vec::new());
    loop {
        let windows = vec![arena.try_write(SlotIdx(0)).unwrap().window(0..READ_BYTES)];
        let (tag, priority, offset_bytes) = (Tag(0), Priority::Demand, bytes.len() as u64);
        backend.submit(Read { tag, priority, file: 0, offset_bytes, windows }).unwrap();
        backend.wait(Nanos::MAX, &mut done);
        let mut completed = done.pop().unwrap();
        let n = usize::try_from(completed.result.unwrap()).unwrap();
        bytes.extend_from_slice(&completed.read.windows[0].bytes_mut()[..n]);
        if n < READ_BYTES {
            return bytes;
        }
    }
}

/// Whether direct reads were measured, or it was told why not.
fn has_direct_or_a_reason(report: &ProbeReport) -> bool {
    let is_direct = report.rates.iter().any(|rate| rate.access == Access::Direct);
    let refused = report.missing.iter().any(|way| way.access == Access::Direct && !way.reason.is_empty());
    is_direct || refused
}

#[test]
fn memory_is_no_disk_but_is_probed() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        return eprintln!("skipped: no /dev/shm");
    };
    let report = probe_and_read(folder.path());
    if report.device.file_system != "tmpfs" {
        return eprintln!("skipped: /dev/shm is {}", report.device.file_system);
    }
    assert!(has_direct_or_a_reason(&report), "{report:?}");
    let cached = report.missing.iter().find(|way| way.access == Access::Cached).unwrap();
    assert!(
        cached.reason.contains("memory"),
        "its pages can't be dropped, so no cold rate may be claimed: {report:?}"
    );
    if report.align_bytes.is_none() {
        assert_eq!(report.choice.access, Access::Cached);
        let reason = &report.choice.reasons.iter().find(|reason| reason.what == "page cache").unwrap().reason;
        assert!(reason.contains("on tmpfs"), "{reason}");
    }
}

#[test]
fn an_overlay_is_probed() {
    let script = r#"
        mkdir lower upper work merged &&
        mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged || exit 77
        exec "$0" --ignored --exact --nocapture probes_the_folder_that_is_named"#;
    for options in [&["--user", "--map-root-user", "--mount"][..], &["--mount"][..]] {
        if mounted(options, script, "found overlay ") {
            return;
        }
    }
}

#[test]
fn blocks_of_512_and_of_4096_bytes_are_found() {
    for block_bytes in [512, 4096] {
        let script = format!(
            r#"
            truncate -s 64M image && mkfs.ext4 -q -b 4096 image && mkdir merged || exit 77
            loop=$(losetup --sector-size {block_bytes} --find --show image) || exit 77
            mount "$loop" merged; mounted=$?
            # Detached when it isn't mounted any more, which is when the namespace ends.
            losetup --detach "$loop"
            [ $mounted = 0 ] || exit 77
            exec "$0" --ignored --exact --nocapture probes_the_folder_that_is_named"#
        );
        mounted(&["--mount"], &script, &format!("found ext4 {block_bytes}"));
    }
}

/// Runs `script` in a namespace of its own, in which it mounts `merged` and starts this program again; what is found
/// there must be `expect`; `false` when the system doesn't allow it.
fn mounted(options: &[&str], script: &str, expect: &str) -> bool {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut command = Command::new("unshare");
    command.args(options).args(["sh", "-c", script]).arg(std::env::current_exe().unwrap());
    command.current_dir(folder.path()).env(FOLDER, folder.path().join("merged"));
    let Ok(output) = command.output() else {
        eprintln!("skipped: there is no `unshare`");
        return false;
    };
    let words = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let began = words.contains("running 1 test");
    if output.status.code() == Some(SKIPPED) || !began {
        eprintln!("skipped: the system doesn't let this user mount ({})", words.trim());
        return false;
    }
    assert!(output.status.success() && words.contains(expect), "not {expect}: {words}");
    true
}

#[test]
#[ignore = "started by the tests above, in a folder that they mounted"]
fn probes_the_folder_that_is_named() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let report = probe_and_read(Path::new(&folder));
    assert!(has_direct_or_a_reason(&report), "{report:?}");
    println!(
        "found {} {}",
        report.device.file_system,
        report.align_bytes.map_or("-".into(), |b| b.to_string())
    );
}

//! A probe's report for people.

use std::io::{self, Write};

use forerun_decode::bytes_text;
use forerun_storage::probe::{ProbeReport, Rate};
use forerun_storage::{Gguf, MergeLimits};

/// Writes what was measured, and what follows.
pub(super) fn write(out: &mut impl Write, gguf: &Gguf, report: &ProbeReport) -> io::Result<()> {
    for file in gguf.files().files() {
        writeln!(out, "{}", file.path.display())?;
    }
    let device = &report.device;
    let block = report.align_bytes.map_or("no direct reads".to_owned(), |b| format!("blocks of {b} bytes"));
    writeln!(out, "device {} {}, {block}", known(&device.id), known(&device.file_system))?;
    writeln!(
        out,
        "reads of {}, measured in {:.2} s\n",
        bytes_text(report.record_bytes),
        report.took_ms / 1e3
    )?;
    writeln!(out, "reads by  cache    at once      GB/s   ms a read    reads")?;
    for rate in report.rates.iter().chain(&report.small) {
        row(out, rate, report.record_bytes)?;
    }
    for missing in &report.missing {
        writeln!(out, "{:<8}  {:<7}  {}", missing.method, missing.access, missing.reason)?;
    }
    writeln!(out)?;
    for reason in &report.choice.reasons {
        writeln!(out, "{:<12} {:<10} {}", reason.what, reason.choice, reason.reason)?;
    }
    let MergeLimits { merged_bytes_max, .. } = report.choice.merge(report.record_bytes);
    if merged_bytes_max > report.choice.full_speed_bytes {
        writeln!(
            out,
            "reads of several records have up to {}, two records",
            bytes_text(merged_bytes_max.into())
        )?;
    }
    Ok(())
}

fn row(out: &mut impl Write, rate: &Rate, record_bytes: u64) -> io::Result<()> {
    let gigabytes = rate.bytes_per_second as f64 / 1e9;
    // As many reads as the depth are on their way at any time.
    let millis = rate.depth as f64 * rate.read_bytes as f64 * 1e3 / rate.bytes_per_second as f64;
    let (method, access, depth, n) = (rate.method, rate.access, rate.depth, rate.n_reads);
    write!(out, "{method:<8}  {access:<7}  {depth:>7}  {gigabytes:>8.2}  {millis:>10.2}  {n:>7}")?;
    if rate.read_bytes < record_bytes {
        write!(out, "  (reads of {})", bytes_text(rate.read_bytes))?;
    }
    writeln!(out)
}

fn known(text: &str) -> &str {
    if text.is_empty() { "unknown" } else { text }
}

//! `GET /metrics`: counts in Prometheus's text form.

use std::fmt::{Display, Write};
use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use forerun_decode::Process;

use crate::desk::Status;
use crate::http::App;

const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All counts.
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let process = tokio::task::spawn_blocking(Process::read).await.ok().flatten();
    let mut text = text(&app.desk.status(), app.desk.facts().plan.budget, process);
    if let Some(upstream) = &app.upstream {
        text += &of_upstream(upstream.counts().look());
    }
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response()
}

fn text(status: &Status, budget: Option<u64>, process: Option<Process>) -> String {
    let mut page = Page(String::new());
    let t = &status.totals;
    page.one("requests_active", "gauge", "Answers that are being made", status.active);
    page.one("requests_queued", "gauge", "Answers that wait", status.queued);
    page.one("slots", "gauge", "Answers that may be made at once", status.slots);
    page.one("queue_max", "gauge", "Answers that may wait", status.queue_max);
    page.head("requests_total", "counter", "Answers, by how they ended");
    let outcomes = [("done", t.done), ("given_up", t.given_up), ("failed", t.failed), ("refused", t.refused)];
    for (outcome, n) in outcomes {
        page.value(&format!("requests_total{{outcome=\"{outcome}\"}}"), n);
    }
    for (name, about, value) in [
        ("prompt_tokens_total", "Tokens of prompts", t.prompt_tokens),
        ("prompt_reused_tokens_total", "Tokens of prompts that were not read again", t.prompt_reused_tokens),
        ("decode_tokens_total", "Tokens made", t.decode_tokens),
        ("draft_tokens_total", "Tokens drafted", t.draft_tokens),
        ("accepted_tokens_total", "Drafted tokens that the model said too", t.accepted_tokens),
        ("expert_bytes_demand_total", "Bytes of experts read because a router asked", t.bytes_demand),
        ("expert_bytes_guess_total", "Bytes of experts read on a guess", t.bytes_guess),
        ("expert_bytes_wasted_total", "Bytes of guesses that no router asked for", t.bytes_wasted),
        ("expert_reads_total", "Reads handed to the system", t.reads),
    ] {
        page.one(name, "counter", about, value);
    }
    page.one("prompt_seconds_total", "counter", "Time spent on reading prompts", t.prompt_s);
    page.one("decode_seconds_total", "counter", "Time spent on making tokens", t.decode_s);
    page.one("stall_seconds_total", "counter", "Time that the token loop waited for experts", t.stall_s);
    page.prefixes(status);
    if let Some(budget) = budget {
        page.one("memory_budget_bytes", "gauge", "The memory budget", budget);
    }
    if let Some(process) = process {
        let peak = process.peak_bytes.saturating_sub(process.program_bytes);
        page.one("memory_peak_bytes", "gauge", "High-water mark of memory, without the program's text", peak);
        page.one("swap_bytes", "gauge", "Bytes of this process that are swapped out", process.swap_bytes);
    }
    page.0
}

fn of_upstream([requests, failed, bytes]: [u64; 3]) -> String {
    let mut page = Page(String::new());
    page.one("upstream_requests_total", "counter", "Requests sent to the upstream", requests);
    page.one("upstream_failed_total", "counter", "Those of them that it failed at", failed);
    page.one("upstream_bytes_total", "counter", "Bytes of its answers", bytes);
    page.0
}

struct Page(String);

impl Page {
    /// What is kept of conversations.
    fn prefixes(&mut self, status: &Status) {
        let (kept, disk) = (status.kept, status.kept.disk);
        for (name, kind, about, value) in [
            ("prefix_entries", "gauge", "Conversations kept in memory without a seat", kept.entries as u64),
            ("prefix_bytes", "gauge", "Bytes that they take", kept.bytes),
            ("prefix_hits_total", "counter", "Conversations that went on from memory", kept.hits),
            (
                "prefix_tokens_restored_total",
                "counter",
                "Tokens of prompts that were restored",
                kept.tokens_restored,
            ),
            ("prefix_disk_entries", "gauge", "Conversations kept on disk", disk.entries as u64),
            ("prefix_disk_bytes", "gauge", "Bytes of their files", disk.bytes),
            ("prefix_disk_hits_total", "counter", "Conversations that went on from disk", disk.hits),
            ("bytes_written_total", "counter", "Bytes written to disk for conversations", disk.bytes_written),
            (
                "prefix_disk_bytes_read_total",
                "counter",
                "Bytes read from disk for conversations",
                disk.bytes_read,
            ),
        ] {
            self.one(name, kind, about, value);
        }
    }

    fn one(&mut self, name: &str, kind: &str, about: &str, value: impl Display) {
        self.head(name, kind, about);
        self.value(name, value);
    }

    fn head(&mut self, name: &str, kind: &str, about: &str) {
        let _ = write!(self.0, "# HELP forerun_{name} {about}\n# TYPE forerun_{name} {kind}\n");
    }

    fn value(&mut self, name: &str, value: impl Display) {
        let _ = writeln!(self.0, "forerun_{name} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desk::Totals;

    #[test]
    fn every_line_is_help_type_or_a_value() {
        let totals = Totals { done: 3, prompt_s: 0.5, bytes_demand: 1 << 60, ..Totals::default() };
        let status = Status {
            queued: 1,
            active: 1,
            slots: 1,
            queue_max: 8,
            is_open: true,
            is_alive: true,
            totals,
            kept: Default::default(),
        };
        let text = text(&status, Some(1 << 30), None);
        assert!(text.contains("forerun_requests_total{outcome=\"done\"} 3\n"), "{text}");
        assert!(text.contains("forerun_prompt_seconds_total 0.5\n"));
        assert!(text.contains("forerun_expert_bytes_demand_total 1152921504606846976\n"));
        for line in text.lines() {
            let is_value = line.rsplit_once(' ').is_some_and(|(_, value)| value.parse::<f64>().is_ok());
            assert!(line.starts_with("# HELP ") || line.starts_with("# TYPE ") || is_value, "{line}");
        }
    }
}

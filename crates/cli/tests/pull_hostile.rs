//! `pull` against a Hub that lies, refuses or sends elsewhere.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::path::Path;
use std::time::Instant;

use serde_json::json;
use support::hub::{Ask, COMMIT, Hub, REPO, Reply, sha256};
use tempfile::tempdir;

const MODEL: &[u8] = &[7; 10_000];

/// A Hub with one model and a fault in the answers about files.
fn faulty(fault: impl Fn(&Ask, Reply) -> Reply + Send + Sync + 'static) -> Hub {
    Hub::new(&[("m.gguf", MODEL)], move |ask, reply| if ask.is_file() { fault(ask, reply) } else { reply })
}

/// A Hub whose list of files is this answer.
fn listed(reply: Reply) -> Hub {
    Hub::new(&[], move |_, _| reply.clone())
}

/// Pulls, fails, says all of `expect`, and leaves no file under a final name.
#[track_caller]
fn check(hub: &Hub, expect: &[&str]) {
    let home = tempdir().unwrap();
    let output = hub.pull(home.path(), &[REPO, "--tries", "2"]).output().unwrap();
    let words = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{words}");
    for part in expect {
        assert!(words.contains(part), "{words}\nshould hold {part:?}");
    }
    assert!(!blob(home.path()).exists() && !home.path().join("hub/models--owner--name/snapshots").exists());
}

fn blob(home: &Path) -> std::path::PathBuf {
    home.join("hub/models--owner--name/blobs").join(sha256(MODEL))
}

#[test]
fn wrong_bytes_are_removed() {
    let wrong = faulty(|_, mut reply| {
        reply.body[5000] = 8;
        reply
    });
    let home = tempdir().unwrap();
    let output = wrong.pull(home.path(), &[REPO]).output().unwrap();
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(
        words.contains("m.gguf of owner/name: its sha256 is ") && words.contains(&sha256(MODEL)),
        "{words}"
    );
    assert_eq!(std::fs::read_dir(blob(home.path()).parent().unwrap()).unwrap().count(), 0);
    let chunked = || format!("{:x}\r\n{}\r\n0\r\n\r\n", 10_001, "x".repeat(10_001));
    let endless = faulty(move |_, reply| {
        Reply { body: chunked().into(), ..reply }
            .with("Transfer-Encoding", "chunked")
            .with("Content-Length", "")
    });
    check(&endless, &["m.gguf of owner/name"]);
}

#[test]
fn bad_bytes_in_the_cache_are_replaced_and_a_users_file_is_not() {
    let hub = faulty(|_, reply| reply);
    let home = tempdir().unwrap();
    std::fs::create_dir_all(blob(home.path()).parent().unwrap()).unwrap();
    std::fs::write(blob(home.path()), [8; 10_000]).unwrap();
    let output = hub.pull(home.path(), &[REPO]).output().unwrap();
    assert!(output.status.success());
    assert_eq!(std::fs::read(blob(home.path())).unwrap(), MODEL);

    let (folder, mine) = (home.path().to_str().unwrap(), home.path().join("m.gguf"));
    std::fs::write(&mine, "mine").unwrap();
    let output = hub.pull(home.path(), &[REPO, "--dir", folder]).output().unwrap();
    assert!(String::from_utf8(output.stderr).unwrap().contains("move it away"));
    assert_eq!(std::fs::read(&mine).unwrap(), b"mine");
}

#[test]
fn statuses_say_what_would_be_right() {
    let status = |status| faulty(move |_, _| Reply::new(status, "<html>no</html>"));
    check(&status(401), &["m.gguf of owner/name: status 401", "set HF_TOKEN"]);
    check(&status(403), &["status 403", "accept the terms"]);
    check(&status(404), &["status 404", "check the names and the revision"]);
    check(&status(418), &["status 418, where 200 or 206 was expected"]);
    check(&status(500), &["given up after 2 tries", "status 500"]);
    check(&listed(Reply::new(404, "")), &["the list of files of owner/name: status 404"]);
    check(&listed(Reply::new(204, "")), &["status 204"]);
}

/// Such as the page of a proxy, with status 200.
#[test]
fn an_answer_of_another_size_is_not_used_and_costs_nothing() {
    let given_up = "given up after 2 tries";
    let shorter = faulty(|_, reply| Reply { body: vec![7; 9999], ..reply });
    check(&shorter, &[given_up, "a file of 9999 bytes", "says 10000"]);
    let longer = faulty(|_, reply| reply.with("Content-Length", (1_u64 << 60).to_string()));
    check(&longer, &[given_up, "a file of 1152921504606846976 bytes"]);
    let hub = faulty(|ask, reply| match ask.n {
        0 => reply.cut(6000),
        1 | 2 => Reply::new(200, "<!doctype html><title>Log in</title>").with("ETag", "\"page\""),
        _ => reply,
    });
    let home = tempdir().unwrap();
    let output = hub.pull(home.path(), &[REPO, "--tries", "2"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let output = hub.pull(home.path(), &[REPO]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(std::fs::read(blob(home.path())).unwrap(), MODEL);
    let asks = hub.file_asks();
    let last = asks.last().unwrap().from().unwrap();
    assert!(last >= 4096, "went on at {last}");
}

#[test]
fn a_busy_server_is_left_alone_for_as_long_as_it_asks() {
    let busy = |seconds: &'static str| {
        faulty(
            move |ask, reply| {
                if ask.n == 0 { Reply::new(429, "").with("Retry-After", seconds) } else { reply }
            },
        )
    };
    let (hub, home, start) = (busy("1"), tempdir().unwrap(), Instant::now());
    assert!(hub.pull(home.path(), &[REPO]).output().unwrap().status.success());
    assert!(start.elapsed().as_millis() >= 1000);
    check(&busy("86400"), &["status 429", "asks for 86400 s", "set HF_TOKEN for a higher limit"]);
}

#[test]
fn lists_that_are_none_are_refused() {
    let html = Reply::new(200, "<!doctype html><title>Log in</title>").with("Content-Type", "text/html");
    check(&listed(html), &["the list of files of owner/name", "no JSON", "HF_ENDPOINT"]);
    check(&listed(Reply::new(200, *b"{\"sha\": \"\xff\xfe\"}")), &["no JSON"]);
    check(&listed(Reply::new(200, vec![b' '; (32 << 20) + 1])), &["more than 33554432 bytes"]);
    let file = |file| Reply::json(&json!({ "sha": COMMIT, "siblings": [file] }));
    check(
        &listed(file(json!({ "rfilename": "../../m.gguf", "size": 1 }))),
        &["\"../../m.gguf\"", "outside of its folder"],
    );
    check(&listed(file(json!({ "rfilename": "/etc/m.gguf", "size": 1 }))), &["\"/etc/m.gguf\""]);
    check(&listed(file(json!({ "rfilename": "m.gguf", "size": 1 }))), &["names no hash"]);
    let oid =
        |oid: &str, size: u64| file(json!({ "rfilename": "m.gguf", "lfs": { "sha256": oid, "size": size } }));
    check(&listed(oid("../../../x", 1)), &["names no hash"]);
    check(&listed(oid(&sha256(MODEL), u64::MAX)), &["16.00 EiB are needed", "are missing", "--dir"]);
}

#[test]
fn a_token_goes_to_the_endpoint_alone() {
    let other = Hub::new(&[("m.gguf", MODEL)], |_, reply| reply.with("ETag", "\"the other host's\""));
    let elsewhere = other.url();
    let hub = faulty(move |ask, _| {
        let etag = format!("\"{}\"", sha256(MODEL));
        Reply::redirect(format!("{elsewhere}{}", ask.path)).with("X-Linked-Etag", etag)
    });
    let home = tempdir().unwrap();
    let mut pull = hub.pull(home.path(), &[REPO]);
    assert!(pull.env("HF_TOKEN", "hf_secret").output().unwrap().status.success());
    assert_eq!(hub.asks().len(), 2);
    assert!(hub.asks().iter().all(|ask| ask.header("authorization") == Some("Bearer hf_secret")));
    assert_eq!(other.asks().len(), 1);
    assert!(other.asks().iter().all(|ask| !format!("{ask:?}").contains("hf_secret")));
}

#[test]
fn redirects_end() {
    let hub = faulty(|ask, _| Reply::redirect(ask.path.clone()));
    check(&hub, &["m.gguf of owner/name: more than 10 redirects"]);
    assert_eq!(hub.file_asks().len(), 11);
    check(&faulty(|_, _| Reply::redirect("ftp://127.0.0.1/m.gguf")), &["neither http nor https"]);
    check(&faulty(|_, _| Reply::redirect("m.gguf")), &["no whole path"]);
    check(&faulty(|_, _| Reply::new(302, "")), &["no readable Location"]);
}

//! Upstreams that fail, clients that leave or are slow, and a server that stops, while an answer is on its way.

use std::sync::mpsc;
use std::time::Duration;

use crate::support::cluster::{self, Cluster, begin_events, end, piece, until_hung_up};
use crate::support::forwarding::{
    BEYOND, CHAT, PLAIN, chat, counts, is_answered_here, is_forwarded, prompt, server, streamed,
};
use crate::support::wire::{Request, hang_up, read_until};
use crate::support::{CONTEXT, Setup};
use forerun_server::Patience;
use serde_json::Value;

#[test]
fn what_an_upstream_cannot_answer_is_answered_here() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server_of_none = server(cluster::when(closed, BEYOND));
    is_answered_here(&server_of_none.post(PLAIN, &prompt(30)));
    assert_eq!(counts(&server_of_none), (1, 1));
    let mut encrypted = cluster::when(closed, BEYOND);
    encrypted.url = format!("https://{}/v1", Cluster::saying(200, "{}").address).parse().unwrap();
    is_answered_here(&server(encrypted).post(PLAIN, &prompt(30)));

    for (status, body) in [
        (500, "{}"),
        (503, "<html>"),
        (429, "{}"),
        (307, "{}"),
        (401, "{}"),
        (403, "{}"),
        (404, "{}"),
        (405, "{}"),
        (408, "{}"),
        (200, "<html>"),
        (200, "[]"),
        (200, ""),
    ] {
        let cluster = Cluster::saying(status, body);
        let server = server(cluster.when(BEYOND));
        is_answered_here(&server.post(CHAT, &chat()));
        // What isn't a stream of events is no answer to this either.
        is_answered_here(&server.post(PLAIN, &streamed(prompt(30))));
        assert_eq!((cluster.asked().len(), counts(&server)), (2, (2, 2)), "{status} {body}");
    }
    for cut in ["", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", "HTTP/1.1 2"] {
        let cluster = Cluster::start(move |_, stream| {
            let _ = std::io::Write::write_all(stream, cut.as_bytes());
        });
        is_answered_here(&server(cluster.when(BEYOND)).post(PLAIN, &prompt(30)));
    }
    let cluster = Cluster::streaming(&[]);
    is_answered_here(&server(cluster.when(BEYOND)).post(PLAIN, &streamed(prompt(30))));
}

#[test]
fn an_upstream_that_says_nothing_is_not_waited_for() {
    let cluster = Cluster::start(|asked, stream| {
        if asked.body["stream"] == true {
            begin_events(stream);
        }
        until_hung_up(stream);
    });
    let mut config = cluster.when(BEYOND);
    let soon = Duration::from_millis(50);
    config.patience = Patience { stream: soon, whole: soon, ..Patience::default() };
    let server = server(config);
    is_answered_here(&server.post(PLAIN, &prompt(30)));
    is_answered_here(&server.post(PLAIN, &streamed(prompt(30))));
    assert_eq!(counts(&server), (2, 2));
}

#[test]
fn what_a_client_got_wrong_there_it_is_told() {
    for (status, body) in [(400, r#"{"error": {"message": "no"}}"#), (422, r#"{"detail": [1]}"#)] {
        let cluster = Cluster::saying(status, body);
        let server = server(cluster.when(BEYOND));
        for body in [prompt(30), streamed(prompt(30))] {
            let reply = server.post(PLAIN, &body);
            assert_eq!(reply.status, status);
            is_forwarded(&reply, &cluster);
        }
        let mut expect: Value = serde_json::from_str(body).unwrap();
        expect["upstream"] = cluster.address.to_string().into();
        assert_eq!(server.post(PLAIN, &prompt(30)).json(), expect);
        assert_eq!(counts(&server), (3, 0));
    }
    let cluster = Cluster::saying(413, "<script>");
    let reply = server(cluster.when(BEYOND)).post(PLAIN, &prompt(30));
    is_forwarded(&reply, &cluster);
    assert_eq!((reply.status, reply.header("content-type")), (413, Some("application/json")));
    let words = reply.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(words.contains("413") && !words.contains("script"), "{words}");
}

#[test]
fn what_fits_nowhere_says_why() {
    let cluster = Cluster::saying(500, r#"{"error": "secret"}"#);
    let server = server(cluster.when(BEYOND));
    let (status, error) = server.refusal(PLAIN, &prompt(CONTEXT));
    assert_eq!(
        (status, error["code"].as_str(), error["type"].as_str()),
        (502, Some("upstream_failed"), Some("server_error"))
    );
    let words = error["message"].as_str().unwrap();
    let said = [cluster.address.to_string(), "500".into(), CONTEXT.to_string()];
    assert!(said.iter().all(|said| words.contains(said)) && !words.contains("secret"), "{words}");
    assert_eq!(counts(&server), (1, 1));
}

#[test]
fn a_stream_that_breaks_ends_with_an_error() {
    // Without its last event, within a line, and without the end of the response.
    for (pieces, has_end) in
        [(["data: {}\n\n", "data: {}\n\n"], true), (["data: {}\n\n", "data: {\"ch"], false)]
    {
        let cluster = Cluster::start(move |_, stream| {
            begin_events(stream);
            for text in pieces {
                piece(stream, text);
            }
            if has_end {
                end(stream);
            }
        });
        let server = server(cluster.when(BEYOND));
        let reply = server.post(CHAT, &streamed(chat()));
        is_forwarded(&reply, &cluster);
        let text = reply.text();
        let last = text.trim_end().rsplit("\n\n").next().unwrap().trim().strip_prefix("data: ").unwrap();
        let error = &serde_json::from_str::<Value>(last).unwrap()["error"];
        assert_eq!(error["code"], "upstream_failed", "{text}");
        assert!(!text.contains("\"ch") && !text.contains("[DONE]"), "{text}");
        assert_eq!(counts(&server), (1, 1));
    }
}

#[test]
fn a_silent_stream_ends_with_an_error() {
    let cluster = Cluster::start(|_, stream| {
        begin_events(stream);
        piece(stream, "data: {}\n\n");
        until_hung_up(stream);
    });
    let mut config = cluster.when(BEYOND);
    config.patience.idle = Duration::from_millis(50);
    let reply = server(config).post(CHAT, &streamed(chat()));
    assert!(reply.text().contains("fell silent"), "{}", reply.text());
}

#[test]
fn who_goes_away_hangs_up_there() {
    let (told, hung_up) = mpsc::channel();
    let cluster = Cluster::start(move |asked, stream| {
        if asked.body["stream"] == true {
            begin_events(stream);
            piece(stream, "data: {\"a\":1}\n\n");
        }
        told.send("asked").unwrap();
        until_hung_up(stream);
        told.send("hung up").unwrap();
    });
    let server = server(cluster.when(BEYOND));
    let next = || hung_up.recv_timeout(Duration::from_secs(60)).unwrap();
    for body in [prompt(30), streamed(prompt(30))] {
        let mut client = Request::post(PLAIN, &body).open(server.address);
        assert_eq!(next(), "asked");
        if body["stream"] == true {
            read_until(&mut client, "{\"a\":1}");
        }
        hang_up(&client);
        assert_eq!(next(), "hung up");
    }
    assert_eq!(counts(&server), (2, 0));
}

#[test]
fn a_slow_client_makes_the_upstream_wait() {
    const PIECES: usize = 4096;
    let (told, written) = mpsc::channel();
    let cluster = Cluster::start(move |_, stream| {
        stream.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
        begin_events(stream);
        let text = format!("data: {}\n\n", "x".repeat(64 << 10));
        let n = (0..PIECES).take_while(|_| piece(stream, &text)).count();
        told.send(n).unwrap();
    });
    let server = server(cluster.when(BEYOND));
    let client = Request::post(PLAIN, &streamed(prompt(30))).open(server.address);
    assert!(written.recv().unwrap() < PIECES, "somebody took 256 MiB that nobody read");
    hang_up(&client);
}

#[test]
fn a_server_that_stops_tells_those_who_wait_for_the_upstream() {
    let cluster = Cluster::start(|_, stream| {
        begin_events(stream);
        piece(stream, "data: {\"a\":1}\n\n");
        until_hung_up(stream);
    });
    let mut setup = Setup::of("pico-q4_k_m.gguf");
    setup.server.upstream = Some(cluster.when(BEYOND));
    setup.server.grace = Duration::from_millis(50);
    let mut server = setup.start();
    let mut client = Request::post(PLAIN, &streamed(prompt(30))).open(server.address);
    read_until(&mut client, "{\"a\":1}");
    server.ask_to_stop();
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut client, &mut rest).unwrap();
    assert!(rest.contains("shutting_down"), "{rest}");
    server.stop();
}

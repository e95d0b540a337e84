//! Who may ask, from where, how much and how often.

use std::io::{Read, Write};
use std::num::NonZeroU32;
use std::time::Duration;

use crate::support::wire::{Reply, Request};
use crate::support::{Running, Setup};
use forerun_server::{Desk, Keys, Server, ServerConfig, ServerError};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const TINY: &str = "tiny-b-q3_k_m.gguf";

fn hi() -> Value {
    json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1})
}

fn code(reply: &Reply) -> (u16, String) {
    (reply.status, reply.json()["error"]["code"].as_str().unwrap_or_default().to_owned())
}

fn with_keys() -> Running {
    let mut setup = Setup::of(TINY);
    setup.server.keys = Keys::new(["first-key", "second-key"]).unwrap();
    setup.start()
}

#[test]
fn a_key_is_needed_where_there_are_keys() {
    let server = with_keys();
    let send = |name: &str, value: &str| Request::post(CHAT, &hi()).with(name, value).send(server.address);
    for (name, value) in [
        ("Authorization", "Bearer first-key"),
        ("authorization", "bearer second-key"),
        ("x-api-key", "second-key"),
    ] {
        assert_eq!(send(name, value).status, 200, "{name}: {value}");
    }
    for (name, value) in
        [("Authorization", "Bearer first"), ("Authorization", "Bearer first-key2"), ("x-api-key", "x")]
    {
        assert_eq!(code(&send(name, value)), (401, "invalid_api_key".into()), "{name}: {value}");
    }
    for (name, value) in [("Authorization", "Basic first-key"), ("X-Nothing", "")] {
        let reply = send(name, value);
        assert_eq!(code(&reply), (401, "missing_api_key".into()));
        assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
    }
    for public in ["/", "/page/main.js", "/health"] {
        assert_eq!(server.get(public).status, 200, "{public} says nothing of anybody");
    }
    for private in ["/v1/models", "/metrics", "/nowhere"] {
        assert_eq!(server.get(private).status, 401, "{private}");
    }
}

#[test]
fn foreign_hosts_and_origins_are_refused() {
    let server = Running::shared();
    let send = |name: &str, value: &str| Request::post(CHAT, &hi()).with(name, value).send(server.address);
    assert_eq!(code(&send("Host", "evil.example")), (403, "host_not_allowed".into()));
    assert_eq!(code(&send("Origin", "http://evil.example")), (403, "origin_not_allowed".into()));
    assert_eq!(code(&send("Origin", "null")), (403, "origin_not_allowed".into()));
    let own = format!("http://{}", server.address);
    let reply = send("Origin", &own);
    assert_eq!((reply.status, reply.header("access-control-allow-origin")), (200, None));
    assert_eq!(send("Host", "localhost:1234").status, 200);
}

#[test]
fn cors_lets_named_pages_ask() {
    let mut setup = Setup::of(TINY);
    setup.server.cors = vec!["http://localhost:3000".into()];
    setup.server.keys = Keys::new(["key"]).unwrap();
    let server = setup.start();
    let preflight = |origin: &str| {
        let request = Request::raw("OPTIONS", CHAT, "").with("Origin", origin);
        let request = request.with("Access-Control-Request-Method", "POST");
        request.with("Access-Control-Request-Headers", "authorization").send(server.address)
    };
    let allowed = preflight("http://localhost:3000");
    assert_eq!(allowed.status, 200);
    assert_eq!(allowed.header("access-control-allow-origin"), Some("http://localhost:3000"));
    assert_eq!(allowed.header("access-control-allow-headers"), Some("authorization"));
    assert_eq!(preflight("http://evil.example").header("access-control-allow-origin"), None);
    let request = Request::post(CHAT, &hi()).with("Origin", "http://localhost:3000");
    let reply = request.with("x-api-key", "key").send(server.address);
    assert_eq!(
        (reply.status, reply.header("access-control-allow-origin")),
        (200, Some("http://localhost:3000"))
    );
}

#[test]
fn too_many_requests_a_minute_are_told_when_to_come_again() {
    let mut setup = Setup::of(TINY);
    setup.server.limits.per_minute = NonZeroU32::new(2);
    let server = setup.start();
    let statuses: Vec<u16> = (0..3).map(|_| server.post(CHAT, &hi()).status).collect();
    assert_eq!(statuses, [200, 200, 429]);
    let reply = server.post(CHAT, &hi());
    assert_eq!(code(&reply), (429, "rate_limit_exceeded".into()));
    assert!((1..=31).contains(&reply.header("retry-after").unwrap().parse::<u64>().unwrap()));
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn a_large_body_is_refused_announced_or_not() {
    let mut setup = Setup::of(TINY);
    setup.server.limits.body_bytes_max = 10_000;
    let server = setup.start();
    let body = json!({"messages": [{"role": "user", "content": "x".repeat(20_000)}]}).to_string();
    let reply = Request::raw("POST", CHAT, body.clone()).send(server.address);
    assert_eq!(reply.status, 413);
    assert!(reply.json()["error"]["message"].as_str().unwrap().contains("10000 bytes"));
    let mut stream = std::net::TcpStream::connect(server.address).unwrap();
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: {}\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n",
        server.address
    );
    stream.write_all(head.as_bytes()).unwrap();
    let _ = stream.write_all(format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len()).as_bytes());
    assert_eq!(crate::support::wire::read(&mut stream).status, 413);
    assert_eq!(server.post(CHAT, &hi()).status, 200);
}

/// What bodies take is bounded for all of them together, and given back.
#[test]
fn a_body_that_finds_no_room_may_come_again() {
    let mut setup = Setup::of(TINY);
    // Thrice this is the room, and a byte that came takes two.
    setup.server.limits.body_bytes_max = 10_000;
    let server = setup.start();
    let begin = format!("POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000\r\n\r\n{{");
    let body = json!({"messages": [{"role": "user", "content": "hi".repeat(1_500)}]});
    let patience = std::time::Instant::now();
    let mut pause = Duration::from_millis(10);
    let (begun, refused) = loop {
        let begun = [(); 2].map(|()| {
            let mut stream = std::net::TcpStream::connect(server.address).unwrap();
            stream.write_all((begin.clone() + &" ".repeat(7_000)).as_bytes()).unwrap();
            stream
        });
        // A body that comes before the others were read finds room, and takes it from them: then all of it once more.
        std::thread::park_timeout(pause);
        pause *= 2;
        let reply = server.post(CHAT, &body);
        if reply.status == 429 {
            break (begun, reply);
        }
        assert!(patience.elapsed() < Duration::from_secs(60), "{}", reply.text());
    };
    assert_eq!((code(&refused), refused.header("retry-after")), ((429, "no_room".into()), Some("1")));
    assert_eq!(server.get("/health").status, 200);
    drop(begun);
    while server.post(CHAT, &body).status == 429 {
        assert!(patience.elapsed() < Duration::from_secs(120), "what bodies took is given back");
    }
}

#[test]
fn what_is_no_json_object_is_refused() {
    let server = Running::shared();
    let deep = "[".repeat(100_000);
    for wrong in [
        "",
        " ",
        "{",
        "nonsense",
        "[]",
        "5",
        "null",
        "\"text\"",
        "{\"messages\": \"\\ud800\"}",
        "{\"a\": 1} x",
        &deep,
    ] {
        let reply = Request::raw("POST", CHAT, wrong).send(server.address);
        assert_eq!(reply.status, 400, "{:?}: {}", &wrong[..wrong.len().min(40)], reply.text());
        assert_eq!(reply.json()["error"]["type"], "invalid_request_error");
    }
    let reply = Request::raw("POST", CHAT, b"{\"messages\": \"\xff\"}".to_vec()).send(server.address);
    assert_eq!(reply.status, 400);
}

#[test]
fn a_head_a_body_or_an_idle_connection_that_takes_too_long_is_dropped() {
    let mut setup = Setup::of(TINY);
    setup.server.limits.head_timeout = Duration::from_millis(300);
    setup.server.limits.body_timeout = Duration::from_millis(300);
    let server = setup.start();
    let says = |words: &str| {
        let mut stream = std::net::TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(words.as_bytes()).unwrap();
        let mut heard = String::new();
        let _ = stream.read_to_string(&mut heard);
        heard
    };
    assert!(!says("GET /health HTTP/1.1\r\nHost: loc").contains("200 OK"), "half a head");
    let half = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\nConnection: close\r\n\r\n{{"
    );
    assert!(says(&half).starts_with("HTTP/1.1 408"), "half a body");
    let idle = says("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(idle.starts_with("HTTP/1.1 200"), "answered, then closed: {idle}");
}

#[test]
fn wrong_paths_and_methods_are_said_in_json() {
    let server = Running::shared();
    let nowhere = server.get("/v2/everything");
    assert_eq!((nowhere.status, nowhere.json()["error"]["type"].as_str()), (404, Some("not_found_error")));
    let reply = server.get(CHAT);
    assert_eq!((reply.status, reply.header("allow")), (405, Some("POST")));
    assert!(reply.json()["error"]["message"].as_str().unwrap().contains("GET is not possible"));
    assert_eq!(Request::raw("BREW", "/health", "").send(server.address).status, 405);
}

#[test]
fn an_open_address_needs_a_key() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let bind = |config: ServerConfig| {
        let setup = Setup::of(TINY);
        let desk = Desk::start(forerun_decode::Engine::open(&setup.engine).unwrap(), setup.desk).unwrap();
        runtime.block_on(async {
            let bound = Server::bind(desk.clone(), config).await.map(|server| server.address());
            desk.shut_down(Duration::ZERO).await;
            bound
        })
    };
    let open = || ServerConfig { host: "0.0.0.0".into(), port: 0, ..ServerConfig::default() };
    assert!(matches!(bind(open()), Err(ServerError::Open { .. })));
    assert!(bind(ServerConfig { is_insecure: true, ..open() }).is_ok());
    assert!(bind(ServerConfig { keys: Keys::new(["key"]).unwrap(), ..open() }).is_ok());
    assert!(bind(ServerConfig { host: "[::1]".into(), port: 0, ..ServerConfig::default() }).is_ok());
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = bind(ServerConfig { port, ..ServerConfig::default() }).unwrap_err();
    assert!(error.to_string().contains(&format!("port {port} of 127.0.0.1 is in use")), "{error}");
    assert!(matches!(bind(ServerConfig { host: "no host".into(), ..open() }), Err(ServerError::Host { .. })));
    let origin = ServerConfig { cors: vec!["localhost".into()], port: 0, ..ServerConfig::default() };
    assert!(matches!(bind(origin), Err(ServerError::Origin { .. })));
}

#[test]
fn health_and_metrics_count() {
    let server = Setup::of(TINY).start();
    let before = server.get("/health").json();
    assert_eq!((before["status"].as_str(), before["slots"].as_u64()), (Some("ok"), Some(1)));
    server.answer(CHAT, &hi());
    server.until_idle();
    let page = server.get("/metrics");
    assert!(page.header("content-type").unwrap().starts_with("text/plain"));
    assert!(page.text().contains("forerun_requests_total{outcome=\"done\"} 1\n"), "{}", page.text());
}

#[test]
fn the_document_lists_every_route() {
    let server = Running::shared();
    let document = server.get("/openapi.json").json();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for method in operations.as_object().unwrap().keys() {
            let real = path.replace("{id}", "pico");
            let reply = match method.as_str() {
                "get" => server.get(&real),
                _ => server.post(&real, &json!({})),
            };
            assert!(reply.status != 404 && reply.status != 405, "{method} {path}: {}", reply.text());
        }
    }
    for path in [
        CHAT,
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/api/chat",
        "/api/generate",
        "/api/tags",
        "/api/show",
        "/api/ps",
        "/api/version",
        "/v1/models",
        "/v1/models/{id}",
        "/tokenize",
        "/detokenize",
        "/health",
        "/metrics",
    ] {
        assert!(document["paths"].get(path).is_some(), "{path} is missing in the document");
    }
}

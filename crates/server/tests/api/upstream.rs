//! Requests beyond this machine: which are forwarded, and how.

use std::thread;
use std::time::Duration;

use crate::support::cluster::{self, Cluster, chat_answer, whole};
use crate::support::forwarding::{
    BEYOND, CHAT, PLAIN, chat, counts, is_answered_here, is_forwarded, prompt, server, streamed,
};
use crate::support::wire::{Request, hang_up};
use crate::support::{CONTEXT, Setup};
use forerun_server::Keys;
use serde_json::{Value, json};

#[test]
fn long_prompts_go_away_and_short_ones_stay() {
    let cluster = Cluster::saying(200, r#"{"id": "cmpl-1", "choices": []}"#);
    let server = server(cluster.when(BEYOND));
    is_answered_here(&server.post(PLAIN, &prompt(20)));
    // Also those that are too long for this machine.
    for n in [21, CONTEXT, 3 * CONTEXT] {
        is_forwarded(&server.post(PLAIN, &prompt(n)), &cluster);
    }
    let huge = "x".repeat(3 << 20);
    is_forwarded(&server.post(CHAT, &json!({"messages": [{"role": "user", "content": huge}]})), &cluster);
    assert_eq!((cluster.asked().len(), counts(&server)), (4, (4, 0)));
    assert_eq!(server.get("/health").json()["queued"], 0);
}

#[test]
fn a_number_above_the_context_leaves_prompts_between_to_nobody() {
    let cluster = Cluster::saying(200, "{}");
    let server = server(cluster.when("ctx>1000"));
    let (status, error) = server.refusal(PLAIN, &prompt(CONTEXT));
    assert_eq!((status, error["code"].as_str()), (400, Some("context_length_exceeded")));
    is_forwarded(&server.post(PLAIN, &prompt(1001)), &cluster);
}

#[test]
fn what_would_wait_behind_others_goes_away() {
    let cluster = Cluster::saying(200, r#"{"choices": []}"#);
    let mut setup = Setup::of("pico-q4_k_m.gguf");
    setup.engine.context = Some(2048);
    setup.engine.backend = forerun_decode::BackendChoice::EXACT;
    setup.server.upstream = Some(cluster.when("queue>0"));
    let server = setup.start();
    let until = |active: usize, queued: usize| {
        for _ in 0..6000 {
            let status = server.desk.status();
            if (status.active, status.queued) == (active, queued) {
                return;
            }
            thread::park_timeout(Duration::from_millis(10));
        }
        panic!("never so busy: {:?}", server.desk.status());
    };
    let long = json!({"prompt": [10, 11, 12, 13], "max_tokens": 1500, "temperature": 1, "top_k": 0, "top_p": 1, "seed": 1});
    let first = Request::post(PLAIN, &long).open(server.address);
    until(1, 0);
    let second = Request::post(PLAIN, &long).open(server.address);
    until(1, 1);
    is_forwarded(&server.post(PLAIN, &prompt(4)), &cluster);
    hang_up(&first);
    hang_up(&second);
    server.until_idle();
    is_answered_here(&server.post(PLAIN, &prompt(4)));
    assert_eq!(cluster.asked().len(), 1);
}

#[test]
fn a_request_arrives_as_it_was_sent_but_for_what_is_ours() {
    let cluster = Cluster::start(|_, stream| whole(stream, 200, "application/json", &chat_answer()));
    let mut setup = Setup::of("pico-q4_k_m.gguf");
    setup.server.keys = Keys::new(["mine"]).unwrap();
    let mut config = cluster.when(BEYOND);
    config.key = Some("theirs".parse().unwrap());
    setup.server.upstream = Some(config);
    let server = setup.start();
    let mut body = chat();
    body["model"] = "small".into();
    body["prompt_progress"] = true.into();
    body["repeat_penalty"] = json!(1.5);
    body["metadata"] = json!({"a": [1.25]});
    let request = Request::post(CHAT, &body).with("Authorization", "Bearer mine").with("X-Api-Key", "mine");
    let reply = request.with("Cookie", "a=mine").send(server.address);
    is_forwarded(&reply, &cluster);
    let answer = reply.json();
    assert_eq!(
        (answer["upstream"].as_str(), answer["model"].as_str()),
        (Some(&*cluster.address.to_string()), Some("big"))
    );
    assert_eq!(answer["choices"][0]["message"]["content"], "far");
    assert_eq!((reply.header("set-cookie"), reply.header("location")), (None, None));

    let asked = &cluster.asked()[0];
    assert_eq!(asked.what, "POST /v1/chat/completions");
    assert_eq!(
        (asked.header("authorization"), asked.header("x-forerun-upstream-hop")),
        (Some("Bearer theirs"), Some("1"))
    );
    assert_eq!((asked.header("x-api-key"), asked.header("cookie")), (None, None));
    assert_eq!(asked.header("host"), Some(&*cluster.address.to_string()));
    let mut expect = body.clone();
    expect["model"] = "big".into();
    expect.as_object_mut().unwrap().remove("prompt_progress");
    let penalty = expect.as_object_mut().unwrap().remove("repeat_penalty").unwrap();
    expect["repetition_penalty"] = penalty;
    assert_eq!(asked.body, expect);
}

#[test]
fn without_a_key_for_it_an_upstream_gets_none() {
    let cluster = Cluster::saying(200, "{}");
    let server = server(cluster.when(BEYOND));
    let request = Request::post("/completions", &prompt(30)).with("Authorization", "Bearer mine");
    is_forwarded(&request.send(server.address), &cluster);
    assert_eq!(cluster.asked()[0].header("authorization"), None);
    assert_eq!(cluster.asked()[0].what, "POST /v1/completions");
}

#[test]
fn streams_pass_through_behind_a_comment() {
    const PIECES: &[&str] = &[
        "data: {\"choices\":[{\"delta\":{\"content\":\"f\"}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"con",
        "tent\":\"ar\"}}]}\n\ndata: [DO",
        "NE]\n\n",
    ];
    let cluster = Cluster::streaming(PIECES);
    let server = server(cluster.when(BEYOND));
    for (path, body) in [(CHAT, chat()), (PLAIN, prompt(30))] {
        let reply = server.post(path, &streamed(body));
        is_forwarded(&reply, &cluster);
        assert_eq!(reply.header("content-type"), Some("text/event-stream"));
        assert_eq!(reply.text(), format!(": upstream {}\n\n{}", cluster.address, PIECES.concat()));
    }
    assert_eq!(cluster.asked()[1].body["stream"], true);
    assert_eq!(counts(&server), (2, 0));
    let text = server.get("/metrics").text();
    let bytes = 2 * PIECES.concat().len();
    assert!(text.contains(&format!("forerun_upstream_bytes_total {bytes}\n")), "{text}");
}

#[test]
fn a_wrong_request_goes_nowhere() {
    let cluster = Cluster::saying(200, "{}");
    let server = server(cluster.when("ctx>0"));
    for (field, value) in
        [("temperature", json!("hot")), ("logit_bias", json!({"1": 2})), ("prompt", json!([]))]
    {
        let mut body = prompt(30);
        body[field] = value;
        assert_eq!(server.refusal(PLAIN, &body).0, 400, "{field}");
    }
    assert_eq!(cluster.asked().len(), 0);
}

#[test]
fn a_request_that_was_forwarded_once_is_answered_here() {
    let cluster = Cluster::saying(200, "{}");
    let server = server(cluster.when(BEYOND));
    let send =
        |body: &Value| Request::post(PLAIN, body).with("X-Forerun-Upstream-Hop", "1").send(server.address);
    is_answered_here(&send(&prompt(30)));
    assert_eq!(send(&prompt(CONTEXT)).json()["error"]["code"], "context_length_exceeded");
    assert_eq!(cluster.asked().len(), 0);
}

#[test]
fn forms_that_only_this_server_knows_stay_here() {
    let cluster = Cluster::saying(200, "{}");
    let server = server(cluster.when("ctx>0"));
    let mut body = chat();
    body["regex"] = "[ab]{1,3}".into();
    is_answered_here(&server.post(CHAT, &body));
    let mut body = chat();
    let schema = json!({"type": "boolean"});
    body["response_format"] = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": schema}});
    is_forwarded(&server.post(CHAT, &body), &cluster);
    assert_eq!(cluster.asked()[0].body["response_format"], body["response_format"]);
}

#[test]
fn the_only_model_of_an_upstream_is_asked_for_once() {
    let models = |asked: &cluster::Asked, list: &str, stream: &mut std::net::TcpStream| {
        let body = if asked.what == "GET /v1/models" { list } else { "{}" };
        whole(stream, 200, "application/json", body);
    };
    let named = |cluster: &Cluster| {
        let mut config = cluster.when(BEYOND);
        config.model = None;
        let server = server(config);
        let mut body = prompt(30);
        body["model"] = "mine".into();
        for _ in 0..2 {
            is_forwarded(&server.post(PLAIN, &body), cluster);
        }
        let asked = cluster.asked();
        assert_eq!(asked.iter().filter(|asked| asked.what == "GET /v1/models").count(), 1);
        assert_eq!(asked[0].header("x-forerun-upstream-hop"), Some("1"));
        asked[2].body["model"].clone()
    };
    let one = Cluster::start(move |asked, stream| models(asked, r#"{"data": [{"id": "theirs"}]}"#, stream));
    assert_eq!(named(&one), "theirs");
    let two =
        Cluster::start(move |asked, stream| models(asked, r#"{"data": [{"id": "a"}, {"id": "b"}]}"#, stream));
    assert_eq!(named(&two), "mine");
    let none = Cluster::start(|asked, stream| {
        let status = if asked.what == "GET /v1/models" { 404 } else { 200 };
        whole(stream, status, "application/json", "{}");
    });
    assert_eq!(named(&none), "mine");
}

#[test]
fn a_model_that_is_gone_is_asked_for_again() {
    let cluster = Cluster::start(|asked, stream| match asked.what.as_str() {
        "GET /v1/models" => whole(stream, 200, "application/json", r#"{"data": [{"id": "theirs"}]}"#),
        _ => whole(stream, 404, "application/json", "{}"),
    });
    let mut config = cluster.when(BEYOND);
    config.model = None;
    let server = server(config);
    for _ in 0..2 {
        is_answered_here(&server.post(PLAIN, &prompt(30)));
    }
    let asked = cluster.asked();
    assert_eq!(asked.iter().filter(|asked| asked.what == "GET /v1/models").count(), 2);
}

#[test]
fn other_shapes_are_answered_here() {
    let cluster = Cluster::saying(200, "{}");
    let server = server(cluster.when("ctx>0"));
    let message = json!([{"role": "user", "content": "one"}]);
    is_answered_here(&server.post("/v1/responses", &json!({"input": "one", "max_output_tokens": 2})));
    is_answered_here(
        &server.post("/v1/messages", &json!({"messages": message, "max_tokens": 2, "model": "m"})),
    );
    is_answered_here(&server.post(
        "/api/chat",
        &json!({"model": "pico", "messages": message, "stream": false, "options": {"num_predict": 2}}),
    ));
    assert_eq!(cluster.asked().len(), 0);
}

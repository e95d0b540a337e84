//! Clients that come together, go away, read slowly, or ask for too much.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::support::wire::{Request, hang_up, read, read_until};
use crate::support::{CONTEXT, Running, Setup, chat_text};
use forerun_decode::config::{DraftChoice, SequenceConfig};
use serde_json::{Value, json};

const PLAIN: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// A server whose steps are slow enough to be met in the middle.
fn slow() -> Setup {
    let mut setup = Setup::of("pico-q4_k_m.gguf");
    setup.engine.context = Some(2048);
    setup.engine.backend = forerun_decode::BackendChoice::EXACT;
    setup
}

/// An answer that takes a while, for it never ends by itself.
fn long(stream: bool) -> Value {
    json!({"prompt": [10, 11, 12, 13], "max_tokens": 1500, "temperature": 1, "top_k": 0, "top_p": 1, "seed": 1, "stream": stream})
}

/// A prompt that takes a while to be read.
fn large() -> Value {
    let tokens: Vec<u32> = (0..2000).map(|i| 300 + i * 7 % 6000).collect();
    json!({"prompt": tokens, "max_tokens": 1})
}

#[track_caller]
fn until(server: &Running, what: &str, is_so: impl Fn(forerun_server::Status) -> bool) {
    for _ in 0..6000 {
        if is_so(server.desk.status()) {
            return;
        }
        thread::park_timeout(Duration::from_millis(10));
    }
    panic!("never {what}: {:?}", server.desk.status());
}

#[test]
fn prompts_around_the_context_are_answered_or_refused_with_both_numbers() {
    let server = Running::shared();
    for n in [CONTEXT - 1, CONTEXT, CONTEXT + 1, 10 * CONTEXT] {
        let body = json!({"prompt": vec![100; n], "max_tokens": 5});
        if n < CONTEXT {
            let answer = server.answer(PLAIN, &body);
            assert_eq!(answer["choices"][0]["finish_reason"], "length");
            assert!(answer["usage"]["total_tokens"].as_u64().unwrap() <= CONTEXT as u64 + 1);
        } else {
            let (status, error) = server.refusal(PLAIN, &body);
            assert_eq!((status, error["code"].as_str()), (400, Some("context_length_exceeded")));
            let words = error["message"].as_str().unwrap();
            assert!(words.contains(&n.to_string()) && words.contains(&CONTEXT.to_string()), "{words}");
        }
        assert_eq!(
            server.answer(PLAIN, &json!({"prompt": "a", "max_tokens": 1}))["usage"]["completion_tokens"],
            1
        );
    }
    let words = "word ".repeat(3000);
    let (_, error) = server.refusal(CHAT, &json!({"messages": [{"role": "user", "content": words}]}));
    assert_eq!(error["code"], "context_length_exceeded", "{error}");
    let huge = "x".repeat(3 << 20);
    let (_, error) = server.refusal(CHAT, &json!({"messages": [{"role": "user", "content": huge}]}));
    assert_eq!(error["code"], "context_length_exceeded", "{error}");
}

#[test]
fn random_tokens_do_no_harm() {
    let server = Running::shared();
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 19
    };
    for _ in 0..3 {
        let tokens: Vec<u32> = (0..200).map(|_| next()).collect();
        let answer = server.answer(PLAIN, &json!({"prompt": tokens, "max_tokens": 20}));
        assert!(answer["usage"]["completion_tokens"].as_u64().unwrap() <= 20);
    }
}

#[test]
fn a_client_that_goes_frees_its_slot_while_answered_read_or_queued() {
    let server = slow().start();
    let alone = server.answer(PLAIN, &json!({"prompt": "The sea", "max_tokens": 3}));
    for streamed in [true, false] {
        // While tokens are made.
        let client = Request::post(PLAIN, &long(streamed)).open(server.address);
        until(&server, "active", |status| status.active == 1);
        // While it waits; the one that is answered goes on.
        let queued = Request::post(PLAIN, &long(streamed)).open(server.address);
        until(&server, "queued", |status| status.queued == 1);
        hang_up(&queued);
        until(&server, "out of the queue", |status| status.queued == 0);
        assert_eq!(server.desk.status().active, 1, "another's leaving stops nobody");
        hang_up(&client);
        until(&server, "free", |status| status.active == 0);
        // While its prompt is read.
        let mut body = large();
        body["stream"] = streamed.into();
        let client = Request::post(PLAIN, &body).open(server.address);
        until(&server, "active", |status| status.active == 1);
        hang_up(&client);
        until(&server, "free", |status| status.active == 0);
    }
    let totals = server.desk.status().totals;
    assert_eq!((totals.given_up, totals.done, totals.failed), (6, 1, 0));
    let again = server.answer(PLAIN, &json!({"prompt": "The sea", "max_tokens": 3}));
    assert_eq!(again["choices"], alone["choices"]);
}

#[test]
fn a_client_that_goes_while_tokens_are_drafted_frees_its_slot_too() {
    let mut setup = slow();
    setup.engine.draft = DraftChoice::Ngram;
    setup.engine.draft_length = Some(4);
    let server = setup.start();
    // What repeats itself is drafted.
    let tokens: Vec<u32> = (0..120).map(|i| 400 + i % 6).collect();
    let body = json!({"prompt": tokens, "max_tokens": 1500, "stream": true, "repetition_penalty": 0.5});
    let mut client = Request::post(PLAIN, &body).open(server.address);
    read_until(&mut client, "\"text\"");
    hang_up(&client);
    until(&server, "free", |status| status.active == 0 && status.totals.given_up == 1);
    let answer =
        server.answer(PLAIN, &json!({"prompt": tokens, "max_tokens": 24, "repetition_penalty": 0.5}));
    assert!(answer["timings"]["draft_tokens"].as_u64().unwrap() > 0, "{}", answer["timings"]);
}

#[test]
fn a_stream_that_waits_says_that_it_is_alive() {
    let mut setup = slow();
    setup.server.limits.keep_alive = Duration::from_millis(20);
    let server = setup.start();
    let first = Request::post(PLAIN, &long(true)).open(server.address);
    until(&server, "active", |status| status.active == 1);
    let mut second = Request::post(PLAIN, &long(true)).open(server.address);
    let words = read_until(&mut second, ": keep-alive\n\n");
    assert!(words.contains("text/event-stream") && !words.contains("data:"), "{words}");
    hang_up(&second);
    hang_up(&first);
    server.until_idle();
}

#[test]
fn a_full_queue_says_when_to_come_again() {
    let mut setup = slow();
    setup.desk.queue_max = 1;
    let server = setup.start();
    let first = Request::post(PLAIN, &long(true)).open(server.address);
    until(&server, "active", |status| status.active == 1);
    let second = Request::post(PLAIN, &long(true)).open(server.address);
    until(&server, "queued", |status| status.queued == 1);
    let reply = server.post(PLAIN, &long(false));
    assert_eq!(reply.status, 429);
    assert!(reply.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    let error = &reply.json()["error"];
    assert_eq!(
        (error["code"].as_str(), error["type"].as_str()),
        (Some("queue_full"), Some("rate_limit_error"))
    );
    assert_eq!(server.desk.status().totals.refused, 1);
    hang_up(&second);
    hang_up(&first);
    server.until_idle();
    // Three answers at once are more than one seat and one place: said before any is queued.
    let (status, error) =
        server.refusal(CHAT, &json!({"messages": [{"role": "user", "content": "Hi"}], "n": 3}));
    assert_eq!((status, error["param"].as_str()), (400, Some("n")));
}

#[test]
fn a_slow_reader_holds_nobody_up() {
    let server = Running::shared();
    let body = json!({"prompt": "The sun is", "max_tokens": 200, "stream": true});
    let mut sleeper = Request::post(PLAIN, &body).open(server.address);
    let quick = server.answer(PLAIN, &json!({"prompt": "The sea", "max_tokens": 3}));
    assert_eq!(quick["usage"]["completion_tokens"], 3);
    let late = read(&mut sleeper);
    assert_eq!(late.events().last().unwrap(), "[DONE]");
}

#[test]
fn clients_that_come_together_get_what_each_gets_alone() {
    let server = Running::shared();
    let questions =
        ["What is 27 + 45?", "Spell banana.", "What is the capital of Japan?", "Count from 5 to 12."];
    let body = |q: &str| json!({"messages": [{"role": "user", "content": q}], "max_tokens": 30});
    let alone: Vec<_> = questions.iter().map(|q| server.answer(CHAT, &body(q))["choices"].clone()).collect();
    thread::scope(|scope| {
        for (index, question) in questions.iter().enumerate() {
            let (server, alone, body) = (Arc::clone(server), &alone, body(question));
            scope.spawn(move || {
                for turn in 0..2 {
                    if turn == 0 {
                        assert_eq!(server.answer(CHAT, &body)["choices"], alone[index]);
                    } else {
                        assert_eq!(
                            chat_text(&server.chunks(CHAT, &body)).1,
                            alone[index][0]["message"]["content"]
                        );
                    }
                }
            });
        }
    });
    server.until_idle();
}

/// A server that answers several at once.
fn several(n: usize) -> Running {
    let mut setup = slow();
    setup.engine.sequences = SequenceConfig { n: NonZeroUsize::new(n).unwrap(), is_asked: true };
    setup.start()
}

#[test]
fn nobody_waits_for_the_end_of_anothers_answer() {
    for n in [2, 4] {
        let server = several(n);
        let clients: Vec<_> =
            (1..n).map(|_| Request::post(PLAIN, &long(true)).open(server.address)).collect();
        until(&server, "active", |status| status.active == n - 1);
        let short = server.answer(PLAIN, &json!({"prompt": "The sea", "max_tokens": 3}));
        assert_eq!(short["usage"]["completion_tokens"], 3);
        until(&server, "as before", |status| status.active == n - 1 && status.totals.done == 1);
        clients.iter().for_each(hang_up);
        server.until_idle();
        assert_eq!(
            server.answer(PLAIN, &json!({"prompt": "The sea", "max_tokens": 3}))["choices"],
            short["choices"]
        );
    }
}

#[test]
fn answers_made_together_are_those_made_alone() {
    let server = several(3);
    let body = json!({"prompt": ["The sun is", "The sea", "Once upon a time"], "max_tokens": 12, "n": 2, "temperature": 1.1, "seed": 4});
    let together = server.answer(PLAIN, &body);
    let alone = Setup { engine: slow().engine, ..Setup::of("pico-q4_k_m.gguf") }.start();
    let choices = |answer: &Value| -> Vec<Value> {
        answer["choices"].as_array().unwrap().iter().map(|choice| choice["text"].clone()).collect()
    };
    assert_eq!(choices(&together), choices(&alone.answer(PLAIN, &body)));
}

#[test]
fn a_conversation_is_not_read_again() {
    let server = Setup::of("pico-q4_k_m.gguf").start();
    let mut messages = vec![json!({"role": "system", "content": "You answer in one short sentence."})];
    let mut before = 0;
    for question in ["What is 27 + 45?", "Spell sun.", "What is the capital of Japan?"] {
        messages.push(json!({"role": "user", "content": question}));
        let body = json!({"messages": messages, "max_tokens": 24});
        let answer = server.answer(CHAT, &body);
        let usage = &answer["usage"];
        let (prompt, reused) =
            (usage["prompt_tokens"].as_u64().unwrap(), usage["prompt_reused_tokens"].as_u64().unwrap());
        assert!(
            reused >= before,
            "{question}: {reused} of {prompt} were held, but the last prompt's {before} could be"
        );
        // All of this prompt but the few tokens that open an answer begins the next.
        before = prompt - 12;
        let fresh = Setup::of("pico-q4_k_m.gguf").start().answer(CHAT, &body);
        assert_eq!(answer["choices"], fresh["choices"], "{question}");
        assert_eq!(fresh["usage"]["prompt_reused_tokens"], 0);
        messages.push(answer["choices"][0]["message"].clone());
    }
}

#[test]
fn a_server_that_stops_lets_answers_end_within_the_grace() {
    let mut setup = Setup::of("pico-q4_k_m.gguf");
    setup.server.grace = Duration::from_secs(120);
    let mut server = setup.start();
    let body = json!({"prompt": "The sun is", "max_tokens": 100, "stream": true});
    let mut client = Request::post(PLAIN, &body).open(server.address);
    read_until(&mut client, "data:");
    server.ask_to_stop();
    let rest = read_until(&mut client, "[DONE]");
    assert!(!rest.contains("\"error\""), "{rest}");
    server.stop();
    assert!(std::net::TcpStream::connect(server.address).is_err(), "nobody listens any more");
}

#[test]
fn a_server_that_stops_gives_up_answers_after_the_grace() {
    let mut setup = slow();
    setup.server.grace = Duration::ZERO;
    let mut server = setup.start();
    let mut active = Request::post(PLAIN, &long(true)).open(server.address);
    read_until(&mut active, "data:");
    let mut queued = Request::post(PLAIN, &long(false)).open(server.address);
    until(&server, "queued", |status| status.queued == 1);
    server.ask_to_stop();
    read_until(&mut active, "shutting_down");
    let reply = read(&mut queued);
    assert_eq!((reply.status, reply.json()["error"]["code"].as_str()), (503, Some("shutting_down")));
    server.stop();
}

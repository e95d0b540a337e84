//! `forerun serve`: the model over HTTP.

use std::error::Error;
use std::fs;
use std::io::IsTerminal;
use std::num::NonZeroUsize;
use std::time::Duration;

use forerun_decode::config::SequenceConfig;
use forerun_decode::{Decision, ModelSource};
use forerun_server::{Defaults, Desk, DeskConfig, Keys, Limits, Server, ServerConfig};
use tokio::runtime;
use tracing_subscriber::filter::LevelFilter;

use crate::Outcome;
use crate::args::{NetworkArgs, ServeArgs};
use crate::embedded;
use crate::interrupt::Interrupt;
use crate::load::{Loaded, Wish, load};
use crate::probe::unix_seconds;
use crate::say::say;

/// Threads that talk; those that compute are the engine's.
const TALKING_THREADS: usize = 2;
/// Answers at once when nobody says how many, and the budget has room.
const PARALLEL_DEFAULT: u16 = 4;
/// Threads that prepare prompts.
const PREPARING_THREADS: usize = 8;

/// Serves until it is asked to stop.
pub(crate) fn serve(args: &ServeArgs) -> Result<Outcome, Box<dyn Error>> {
    log_at(&args.log)?;
    let config = server_config(args)?;
    let mut runtime = runtime::Builder::new_multi_thread();
    runtime.worker_threads(TALKING_THREADS).max_blocking_threads(PREPARING_THREADS).enable_all();
    let runtime = runtime.build()?;
    runtime.block_on(Server::check(&config))?;
    warn_of_upstream(&config);
    let interrupt = Interrupt::install()?;
    let wish = Wish {
        draft: Some(&args.draft),
        n_checkpoints: 1,
        sequences: sequences(args),
        prefix_bytes: args.prefixes.memory(),
        grammars: args.grammars.into(),
        server_bytes: config.limits.memory_bytes(),
    };
    let Some(loaded) = load(&args.model, &args.sampling, wish, &interrupt)? else {
        return Ok(Outcome::Interrupted);
    };
    let (desk_config, engine) = desk_config(args, loaded)?;
    let model = desk_config.model_id.clone();
    let desk = Desk::start(engine, desk_config)?;
    runtime.block_on(async {
        let server = Server::bind(desk, config).await?;
        say!("{model} listens on http://{}", server.address());
        server.run(asked(&interrupt)).await;
        Ok::<_, Box<dyn Error>>(())
    })?;
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(Outcome::Done)
}

/// As many answers at once as are asked for, or a few where the budget has room.
fn sequences(args: &ServeArgs) -> SequenceConfig {
    let n = args.parallel.unwrap_or(PARALLEL_DEFAULT);
    SequenceConfig {
        n: NonZeroUsize::new(n.into()).unwrap_or(NonZeroUsize::MIN),
        is_asked: args.parallel.is_some(),
    }
}

/// Ready when the user, or the system, asked the program to end.
async fn asked(interrupt: &Interrupt) {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    interrupt.on_ask(move || {
        say!("stopping; a second request ends the program at once");
        let _ = sender.send(());
    });
    let _ = receiver.await;
}

fn log_at(level: &str) -> Result<(), Box<dyn Error>> {
    let level: LevelFilter = level.parse()?;
    let log = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_max_level(level);
    log.try_init().map_err(|error| format!("can't log: {error}").into())
}

fn server_config(args: &ServeArgs) -> Result<ServerConfig, Box<dyn Error>> {
    let network = &args.network;
    let seconds = Duration::from_secs(network.timeout.into());
    Ok(ServerConfig {
        host: network.host.clone(),
        port: network.port,
        keys: keys(network)?,
        is_insecure: network.insecure,
        cors: network.cors.clone(),
        host_names: network.allow_host.clone(),
        is_strict: args.strict_model,
        limits: Limits {
            body_bytes_max: usize::try_from(network.max_body)?,
            head_timeout: seconds,
            body_timeout: seconds,
            write_timeout: seconds,
            connections_max: network.max_connections.into(),
            per_minute: network.rate,
            ..Limits::default()
        },
        grace: Duration::from_secs(args.grace.into()),
        upstream: args.beyond.config(args.queue, seconds)?,
    })
}

/// Says that prompts leave this machine, even to those who want to hear nothing else.
fn warn_of_upstream(config: &ServerConfig) {
    let Some(upstream) = &config.upstream else { return };
    let rules: Vec<_> = upstream.rules.iter().map(ToString::to_string).collect();
    let how = if upstream.url.is_plain() { ", unencrypted," } else { "" };
    say!("warning: prompts leave this machine{how} to {} when {}", upstream.url, rules.join(" or "));
}

/// Keys of the arguments and of the file; empty lines, and those that begin with `#`, are none.
fn keys(network: &NetworkArgs) -> Result<Keys, Box<dyn Error>> {
    let mut keys = network.api_key.clone();
    if let Some(path) = &network.api_key_file {
        let text = fs::read_to_string(path)
            .map_err(|source| format!("can't read the API keys of {}: {source}", path.display()))?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let before = keys.len();
        keys.extend(lines.map(str::to_owned));
        if keys.len() == before {
            return Err(format!("{} holds no API key; write one a line", path.display()).into());
        }
    }
    Ok(Keys::new(keys.iter().map(String::as_str))?)
}

fn desk_config(
    args: &ServeArgs,
    loaded: Loaded,
) -> Result<(DeskConfig, forerun_decode::Engine), Box<dyn Error>> {
    let Loaded { engine, generation, thinking, mut decisions } = loaded;
    // A seed of its own for every request, unless one was asked for.
    decisions.retain(|decision| decision.what != "seed");
    let (file_name, model_id) = names(args)?;
    if !args.model.quiet && args.sampling.seed.is_none() {
        decisions.push(Decision::new("seed", "any", "another one for each request that brings none".into()));
    }
    let defaults = Defaults {
        sampler: generation.sampler,
        seed: args.sampling.seed,
        max_tokens: generation.max_tokens,
        stops: generation.stops,
        thinking,
        system: args.sampling.system.clone(),
    };
    let config = DeskConfig {
        model_id,
        aliases: vec![file_name],
        queue_max: args.queue.into(),
        prefixes: args.prefixes.config(),
        defaults,
        decisions,
        created: unix_seconds(),
    };
    Ok((config, engine))
}

/// The file's name, and the model's.
fn names(args: &ServeArgs) -> Result<(String, String), Box<dyn Error>> {
    let (file, stem) = match embedded::source(args.model.model.as_ref())? {
        ModelSource::Embedded { .. } => ("pico".to_owned(), "pico".to_owned()),
        ModelSource::Path(path) => {
            let path = fs::canonicalize(&path).unwrap_or(path);
            let text = |part: Option<&std::ffi::OsStr>| {
                part.map_or("model".into(), |part| part.to_string_lossy().into_owned())
            };
            let is_file = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
            (text(path.file_name()), text(if is_file { path.file_stem() } else { path.file_name() }))
        }
    };
    Ok((file, args.alias.clone().unwrap_or(stem)))
}

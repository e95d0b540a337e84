//! An answer from a file, pulled piece by piece, inside a memory budget.
//!
//! `cargo run --release -p forerun-decode --example generate -- fixtures/pico-q4_k_m.gguf "Spell thunder."`

#![expect(clippy::print_stdout, reason = "an example talks")]

use std::error::Error;
use std::io::Write;

use forerun_decode::text::{Message, RenderRequest, Thinking};
use forerun_decode::{
    Engine, EngineConfig, Event, Generation, GenerationConfig, ModelSource, SamplerConfig, Session,
};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let model = args.next().unwrap_or_else(|| "fixtures/pico-q4_k_m.gguf".to_owned());
    let question = args.next().unwrap_or_else(|| "Spell thunder.".to_owned());

    let mut config = EngineConfig::new(ModelSource::Path(model.into()));
    config.budget_bytes = Some(24 << 20);
    config.context = Some(512);
    let mut engine = Engine::open(&config)?;
    println!("{}", engine.plan());

    let messages = [Message::user(question)];
    let request = RenderRequest { thinking: Thinking::Off, ..RenderRequest::new(&messages) };
    let prompt = engine.template()?.render(&request)?.encode(engine.tokenizer())?;
    let generation = GenerationConfig { sampler: SamplerConfig::greedy(), ..GenerationConfig::default() };
    let mut session = Session::new();
    let mut answer = Generation::new(&mut engine, &mut session, prompt, &generation)?;
    while let Some(event) = answer.next()? {
        if let Event::Text(piece) = event {
            print!("{}", piece.text);
            std::io::stdout().flush()?;
        }
    }
    let report = answer.finish();
    println!("\n{:?} after {} tokens", report.finish_reason, report.tokens.len());
    Ok(())
}

//! Grammars for the model's vocabulary: one is held, and one is compiled at a time.
//!
//! The memory plan has room for what compiles, for one grammar that is compiled, and for one of each seat that is followed. So
//! jobs that wait bring what their grammar is made from, which was compiled once to see whether it can be; when a job has
//! its seat, it is compiled again, unless it is the one that was compiled last.

use std::sync::{Arc, Mutex, PoisonError};

use forerun_decode::text::Vocabulary;
use forerun_decode::{Grammar, GrammarBegin, GrammarError, GrammarFactory, GrammarSpec};

/// What an answer keeps to, and from where on.
#[derive(Clone, Debug)]
pub struct Bound {
    /// What its grammar is made from.
    pub spec: Arc<GrammarSpec>,
    /// Where in the answer it begins.
    pub begin: GrammarBegin,
}

/// Compiles grammars.
#[derive(Debug, Default)]
pub(super) struct Grammars(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    /// Built by the first request that needs it: it takes a while, and most servers never do.
    factory: Option<Result<GrammarFactory, GrammarError>>,
    /// The grammar that was compiled last: clients send the same one again and again.
    last: Option<(Arc<GrammarSpec>, Grammar)>,
}

impl Grammars {
    /// Compiles a grammar, unless it is the one that is held, and lends it to `work`. Nothing else is compiled meanwhile, and no
    /// copy of it may be kept but the one that an answer follows.
    ///
    /// # Errors
    /// [`GrammarError`]: a grammar that can't be enforced, or a vocabulary that no grammar can be followed with.
    pub(super) fn with<T>(
        &self,
        vocabulary: &Vocabulary,
        spec: &Arc<GrammarSpec>,
        work: impl FnOnce(&Grammar) -> T,
    ) -> Result<T, GrammarError> {
        // What a panic left is whole: a grammar is put here when it is compiled.
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Held { factory, last } = &mut *held;
        let factory = factory.get_or_insert_with(|| GrammarFactory::new(vocabulary));
        let factory = factory.as_ref().map_err(Clone::clone)?;
        if let Some((_, grammar)) = last.as_ref().filter(|(held, _)| is_same(held, spec)) {
            return Ok(work(grammar));
        }
        // Its memory is for the next.
        *last = None;
        let grammar = factory.compile(spec)?;
        let (_, grammar) = last.insert((Arc::clone(spec), grammar));
        Ok(work(grammar))
    }
}

/// Whether both make the same grammar. Equal schemas may not: properties come in the order of the schema, which the equality of
/// JSON objects passes over.
fn is_same(a: &Arc<GrammarSpec>, b: &Arc<GrammarSpec>) -> bool {
    Arc::ptr_eq(a, b) || (a == b && format!("{a:?}") == format!("{b:?}"))
}

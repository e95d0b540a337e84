//! The trait of those who say which experts are worth their slots.

use std::fmt;

use forerun_model::{ExpertKey, LayerId, Routing};

pub mod alike;
pub mod lfu;
pub mod lru;

use alike::Alike;
use lfu::Lfu;
use lru::Lru;

/// Says how much an expert is worth keeping. Never affects a result, only which reads are needed.
///
/// The scheduler calls [`CachePolicy::observe`] once per opened layer, in the order of the token loop and before it asks
/// for any worth in that turn. An expert that was read always gets a slot: a policy chooses who goes, never who comes.
/// What may not go at all (leased, loading, still to be handed out), what goes first (empty slots) and last (the turn's
/// own experts, guesses whose layer is still to come, the few that a layer keeps whatever happens) isn't its concern.
pub trait CachePolicy: Send {
    /// How it is called in settings and reports.
    fn name(&self) -> &'static str;

    /// Learns what the real router of `layer` chose. Each row of a chunk is a token.
    fn observe(&mut self, layer: LayerId, routing: &Routing);

    /// What keeping `key` is worth: the lowest goes first, and among equals the longest unused. Any number but NaN, for
    /// any key, comparable over all layers; it depends on nothing but what was observed, and is asked for every slot
    /// in a turn that needs one, so it should take some nanoseconds. It may do on the first question what `observe` put
    /// off, since many turns need no slot.
    fn worth(&mut self, key: ExpertKey) -> f32;
}

/// What happens to an expert that was used.
pub enum Keep {
    /// It stays until its slot is needed and it is the one that is worth least.
    Worthiest(Box<dyn CachePolicy>),
    /// It is forgotten as soon as it is handed out; its slot is free when the caller's lease comes back.
    Nothing,
}

impl Keep {
    /// The name of the policy, or `none`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Worthiest(policy) => policy.name(),
            Self::Nothing => "none",
        }
    }
}

impl fmt::Debug for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What can be kept without bringing a policy of one's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyName {
    /// [`Alike`], the best on every trace that was measured.
    #[default]
    Alike,
    /// [`Lfu`].
    Lfu,
    /// [`Lru`].
    Lru,
    /// [`Keep::Nothing`].
    KeepNone,
}

impl PolicyName {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Alike, Self::Lfu, Self::Lru, Self::KeepNone];
}

impl From<PolicyName> for Keep {
    fn from(name: PolicyName) -> Self {
        match name {
            PolicyName::Alike => Self::Worthiest(Box::<Alike>::default()),
            PolicyName::Lfu => Self::Worthiest(Box::<Lfu>::default()),
            PolicyName::Lru => Self::Worthiest(Box::new(Lru)),
            PolicyName::KeepNone => Self::Nothing,
        }
    }
}

//! A plan's lines, by name, and as people read them.

use std::fmt;

use super::{MemoryPlan, bytes_text};

/// Lines that aren't shown when they are empty.
const LEFT_OUT: [&str; 8] = [
    "copies of weights",
    "mapped experts",
    "sums of inputs",
    "checkpoints",
    "prefixes",
    "grammars",
    "server",
    "drafter",
];

impl MemoryPlan {
    /// Name and bytes of every line.
    pub fn lines(&self) -> [(&'static str, u64); 19] {
        [
            ("dense weights", self.dense),
            ("copies of weights", self.copies),
            ("KV cache", self.kv),
            ("recurrent states", self.state),
            ("checkpoints", self.checkpoints),
            ("prefixes", self.prefixes),
            ("grammars", self.grammars),
            ("server", self.server),
            ("drafter", self.drafter),
            ("scratch", self.scratch),
            ("vocabulary and header", self.text),
            ("conversation", self.conversation),
            ("tables", self.tables),
            ("read buffers", self.io),
            ("sums of inputs", self.sums),
            ("compute threads", self.threads),
            ("the program itself", self.runtime),
            ("mapped experts", self.mapped),
            ("expert slots", self.slots),
        ]
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, bytes) in self.lines() {
            if bytes == 0 && LEFT_OUT.contains(&name) {
                continue;
            }
            write!(f, "  {name:<24}{:>12}", bytes_text(bytes))?;
            if name == "expert slots" && self.mapped == 0 {
                let (n, all) = (self.n_slots, self.n_experts);
                write!(f, "   {n} of {all} experts, {} each", bytes_text(self.slot_bytes))?;
            }
            writeln!(f)?;
        }
        write!(f, "  {:<24}{:>12}", "total", bytes_text(self.total()))?;
        match self.budget {
            Some(budget) => write!(f, "   of {}", bytes_text(budget)),
            None => write!(f, "   no budget was given"),
        }
    }
}

//! An answer in blocks, each of one kind: thoughts, text, a call. Some APIs number and close them.

use super::{Call, CallDelta};

/// What becomes of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Block {
    /// One begins; it is empty.
    Begins(Part),
    /// It goes on: text, or JSON of arguments.
    Grows(String),
    /// It is complete.
    Ends(Part),
}

/// A block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Thoughts.
    Thought(String),
    /// What is meant for the reader.
    Text(String),
    /// A call of a tool.
    Call(Call),
}

impl Part {
    fn content(&mut self) -> &mut String {
        match self {
            Self::Thought(text) | Self::Text(text) => text,
            Self::Call(call) => &mut call.arguments,
        }
    }
}

/// Cuts an answer into blocks.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    open: Option<Part>,
}

impl Blocks {
    /// Thoughts and text go on; one that is empty doesn't count.
    pub(crate) fn words(&mut self, thought: String, text: String, out: &mut Vec<Block>) {
        if !thought.is_empty() {
            if !matches!(self.open, Some(Part::Thought(_))) {
                self.begin(Part::Thought(String::new()), out);
            }
            self.grow(thought, out);
        }
        if !text.is_empty() {
            if !matches!(self.open, Some(Part::Text(_))) {
                self.begin(Part::Text(String::new()), out);
            }
            self.grow(text, out);
        }
    }

    /// A call goes on.
    pub(crate) fn call(&mut self, delta: CallDelta, out: &mut Vec<Block>) {
        match delta {
            CallDelta::Started { id, name, .. } => {
                self.begin(Part::Call(Call { id, name, arguments: String::new() }), out);
            }
            CallDelta::Arguments { fragment, .. } => self.grow(fragment, out),
            CallDelta::Ended => self.finish(out),
        }
    }

    /// Ends the block that is open.
    pub(crate) fn finish(&mut self, out: &mut Vec<Block>) {
        out.extend(self.open.take().map(Block::Ends));
    }

    fn begin(&mut self, part: Part, out: &mut Vec<Block>) {
        self.finish(out);
        out.push(Block::Begins(part.clone()));
        self.open = Some(part);
    }

    fn grow(&mut self, more: String, out: &mut Vec<Block>) {
        if let Some(open) = &mut self.open {
            open.content().push_str(&more);
            out.push(Block::Grows(more));
        }
    }
}

/// The blocks that are complete.
pub(super) fn parts(blocks: Vec<Block>) -> Vec<Part> {
    let ended = |block| match block {
        Block::Ends(part) => Some(part),
        Block::Begins(_) | Block::Grows(_) => None,
    };
    blocks.into_iter().filter_map(ended).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_change_with_their_kind() {
        let (mut blocks, mut out) = (Blocks::default(), Vec::new());
        blocks.words("Hm".into(), String::new(), &mut out);
        blocks.words("m.".into(), "Yes".into(), &mut out);
        let id = "1".to_owned();
        blocks.call(CallDelta::Started { index: 0, id: id.clone(), name: "add".into() }, &mut out);
        blocks.call(CallDelta::Arguments { index: 0, fragment: "{}".into() }, &mut out);
        blocks.call(CallDelta::Ended, &mut out);
        blocks.words(String::new(), ".".into(), &mut out);
        blocks.finish(&mut out);
        let begun = out.iter().filter(|block| matches!(block, Block::Begins(_))).count();
        let call = Call { id, name: "add".into(), arguments: "{}".into() };
        let expect = [
            Part::Thought("Hmm.".into()),
            Part::Text("Yes".into()),
            Part::Call(call),
            Part::Text(".".into()),
        ];
        assert_eq!((begun, parts(out)), (4, expect.to_vec()));
    }
}

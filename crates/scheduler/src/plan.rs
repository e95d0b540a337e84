//! Table + wishes → moves. Pure: nothing is read, leased or waited for here.
//!
//! Replacement is least recently used over one pool of all layers. A slot is taken only when nobody reads it, fills
//! it, or has still to get its expert in this turn; wanted experts choose before guesses.

use forerun_arena::SlotIdx;
use forerun_model::ExpertKey;

use crate::predict::Guess;
use crate::slots::{Origin, Slot, Slots};

/// What to do about one wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    /// The expert is in `slot`.
    Hit { slot: SlotIdx },
    /// The expert is being read into `slot`.
    Wait { slot: SlotIdx },
    /// Overwrite `slot` with the wanted `key`.
    Fetch { key: ExpertKey, slot: SlotIdx },
    /// Overwrite `slot` with the guessed `key`.
    Guess { key: ExpertKey, slot: SlotIdx },
    /// No slot can be taken for the wanted `key` now.
    Blocked { key: ExpertKey },
}

/// Replaces `moves` by one move per wanted expert, in order, then one per guess that finds a slot.
///
/// `wanted` is ascending. No two moves name the same slot, and none overwrites an expert that is wanted. Guesses get
/// slots only when every wanted expert has one; they spare each other and guesses that were begun in this turn.
pub(crate) fn plan(slots: &Slots, wanted: &[ExpertKey], guesses: &[Guess], moves: &mut Vec<Move>) {
    moves.clear();
    let is_wanted = |slot: &Slot| slot.resident().is_some_and(|key| wanted.binary_search(&key).is_ok());
    let mut free = slots.oldest_first().filter(|(_, slot)| slot.is_free() && !is_wanted(slot));
    let mut blocked = false;
    for &key in wanted {
        moves.push(match slots.find(key) {
            Some(slot) if slots.get(slot).is_loading() => Move::Wait { slot },
            Some(slot) => Move::Hit { slot },
            None => match free.next() {
                Some((slot, _)) => Move::Fetch { key, slot },
                None => Move::Blocked { key },
            },
        });
        blocked |= matches!(moves.last(), Some(Move::Blocked { .. }));
    }
    if blocked {
        return;
    }
    let is_guessed = |slot: &Slot| slot.resident().is_some_and(|key| guesses.iter().any(|g| g.key == key));
    let is_fresh = |slot: &Slot| slot.origin == Origin::Guess && !slot.used && slot.turn == slots.turn();
    let mut free = free.filter(|(_, slot)| !is_guessed(slot) && !is_fresh(slot));
    for (i, &Guess { key, .. }) in guesses.iter().enumerate() {
        let doubled = wanted.binary_search(&key).is_ok() || guesses[..i].iter().any(|g| g.key == key);
        if doubled || slots.find(key).is_some() {
            continue;
        }
        match free.next() {
            Some((slot, _)) => moves.push(Move::Guess { key, slot }),
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use forerun_arena::{Arena, ReadLease};
    use forerun_model::PartOffsets;
    use forerun_storage::Filled;

    use super::*;

    fn key(c: char) -> ExpertKey {
        ExpertKey::new(0, u16::try_from(u32::from(c) - u32::from('a')).unwrap())
    }

    fn name(key: ExpertKey) -> char {
        char::from(b'a' + u8::try_from(key.expert.0).unwrap())
    }

    /// Builds the table; the leases are the caller's.
    fn table(text: &str) -> (Slots, Vec<ReadLease>) {
        let words: Vec<&str> = text.split_whitespace().collect();
        let (mut slots, mut callers) = (Slots::new(words.len()), Vec::new());
        let arena = Arena::new(words.len(), 1).unwrap();
        slots.next_turn();
        for (word, i) in words.iter().zip(0..) {
            let slot = SlotIdx(i);
            if *word == "." {
                continue;
            }
            let origin = if word.contains('?') { Origin::Guess } else { Origin::Demand };
            slots.begin(slot, key(word.chars().find(char::is_ascii_lowercase).unwrap()), origin);
            if word.contains('~') {
                continue;
            }
            let lease = arena.try_write(slot).unwrap().seal();
            if word.contains('!') {
                callers.push(lease.clone());
            }
            slots.fill(slot, Filled { lease, parts: PartOffsets::default(), read_bytes: 1 });
            if word.contains('*') {
                slots.promise(slot);
            }
            if word.contains('-') {
                slots.spend(slot);
            }
        }
        (slots, callers)
    }

    fn print(slots: &Slots, moves: &[Move]) -> String {
        let mut groups: Vec<(&str, String)> = Vec::new();
        for m in moves {
            let (verb, what) = match *m {
                Move::Hit { slot } => ("hit", name(slots.get(slot).key).to_string()),
                Move::Wait { slot } => ("wait", name(slots.get(slot).key).to_string()),
                Move::Fetch { key, slot } => ("fetch", format!("{}>{}", name(key), slot.0)),
                Move::Guess { key, slot } => ("guess", format!("{}>{}", name(key), slot.0)),
                Move::Blocked { key } => ("blocked", name(key).to_string()),
            };
            match groups.iter_mut().find(|g| g.0 == verb) {
                Some(group) => group.1 += &format!(" {what}"),
                None => groups.push((verb, format!("{verb} {what}"))),
            }
        }
        groups.into_iter().map(|g| g.1).collect::<Vec<_>>().join("  ")
    }

    /// Slots, longest unused first: `.` empty, `~x` loading, `x!` leased by the caller, `x*` promised to the turn,
    /// `x-` spent, `x?` guessed in this turn and not used.
    #[track_caller]
    fn check(slots: &str, wanted: &str, guesses: &str, expect: &str) {
        let (table, _callers) = table(slots);
        let wanted: Vec<_> = wanted.chars().map(key).collect();
        let guesses: Vec<_> = guesses.chars().map(|c| Guess { key: key(c), probability: 0.5 }).collect();
        let mut moves = Vec::new();
        plan(&table, &wanted, &guesses, &mut moves);
        assert_eq!(print(&table, &moves), expect, "slots `{slots}`");
    }

    #[rustfmt::skip]
    mod cases {
        use super::check;

        #[test] fn nothing_wanted_moves_nothing()              { check("a b", "",     "",   ""); }
        #[test] fn wanted_experts_keep_their_slots()           { check("a b c", "ad", "",   "hit a  fetch d>1"); }
        #[test] fn even_when_all_others_are_taken()            { check("a b", "abcd", "",   "hit a b  blocked c d"); }
        #[test] fn the_longest_unused_goes_first()             { check("c a b", "de", "",   "fetch d>0 e>1"); }
        #[test] fn empty_slots_go_before_residents()           { check(". b", "c",    "",   "fetch c>0"); }
        #[test] fn a_leased_slot_is_never_overwritten()        { check("a! b", "cd",  "",   "fetch c>1  blocked d"); }
        #[test] fn a_leased_expert_is_handed_out_again()       { check("a! b", "a",   "",   "hit a"); }
        #[test] fn a_promised_expert_is_never_overwritten()    { check("a* b", "cd",  "",   "fetch c>1  blocked d"); }
        #[test] fn a_loading_expert_is_not_fetched_twice()     { check("~a .", "a",   "",   "wait a"); }
        #[test] fn a_loading_slot_is_never_overwritten()       { check("~a ~b", "c",  "",   "blocked c"); }
        #[test] fn a_spent_expert_is_no_hit_but_its_slot_free(){ check("a- b", "a",   "",   "fetch a>0"); }
        #[test] fn a_spent_slot_waits_for_its_reader()         { check("a-! b", "ac", "",   "fetch a>1  blocked c"); }
        #[test] fn all_leased_blocks_everything()              { check("a! b!", "cd", "",   "blocked c d"); }

        #[test] fn guesses_come_after_wanted_experts()         { check(". . b", "c",  "d",  "fetch c>0  guess d>1"); }
        #[test] fn guesses_wait_while_a_wanted_one_is_blocked(){ check("a! b", "cd",  "e",  "fetch c>1  blocked d"); }
        #[test] fn a_guess_never_takes_a_wanted_slot()         { check("a b", "ab",   "c",  "hit a b"); }
        #[test] fn a_guess_never_takes_a_leased_slot()         { check("a! ~b", "",   "c",  ""); }
        #[test] fn a_guess_may_take_the_longest_unused()       { check("a b", "b",    "c",  "hit b  guess c>0"); }
        #[test] fn a_guess_that_is_here_moves_nothing()        { check("a ~b", "",    "ab", ""); }
        #[test] fn a_guess_spares_other_guesses()              { check("a b", "",     "ca", "guess c>1"); }
        #[test] fn a_guess_spares_those_of_its_turn()          { check("a? b", "",    "cd", "guess c>1"); }
        #[test] fn a_wanted_expert_spares_no_guess()           { check("a? b", "c",   "",   "fetch c>0"); }
        #[test] fn a_wanted_guess_is_a_hit()                   { check("a? b", "a",   "",   "hit a"); }
        #[test] fn a_doubled_guess_counts_once()               { check(". .", "",     "aa", "guess a>0"); }
        #[test] fn a_wanted_expert_is_not_guessed_too()        { check(". .", "a",    "ab", "fetch a>0  guess b>1"); }
    }
}

//! Table + wishes → moves. Pure: nothing is read, leased or waited for here.
//!
//! All layers share one pool. A slot is taken only when nobody reads it, fills it, or has still to get its expert in
//! this turn; in which order is said in `rank`. Wanted experts choose before guesses.

use forerun_arena::SlotIdx;
use forerun_model::ExpertKey;

use crate::predict::Guess;
use crate::rank::Ranking;
use crate::slots::{Slot, Slots};

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

/// Replaces `moves` by one move per wanted expert, in order.
///
/// `wanted` is ascending. No two moves name the same slot, and none overwrites an expert that is wanted. One that is
/// among `guesses` is overwritten when nothing else can be.
pub(crate) fn plan(
    slots: &Slots,
    ranking: &mut Ranking,
    wanted: &[ExpertKey],
    guesses: &[Guess],
    moves: &mut Vec<Move>,
) {
    moves.clear();
    let n_missing = wanted.iter().filter(|&&key| slots.find(key).is_none()).count();
    let is_guessed = |slot: &Slot| is_guessed(slot, guesses);
    let mut victims = ranking.victims(slots, (wanted, n_missing), is_guessed, true).iter();
    for &key in wanted {
        moves.push(match slots.find(key) {
            Some(slot) if slots.get(slot).is_loading() => Move::Wait { slot },
            Some(slot) => Move::Hit { slot },
            None => match victims.next() {
                Some(&slot) => Move::Fetch { key, slot },
                None => Move::Blocked { key },
            },
        });
    }
}

/// Replaces `moves` by one move per guess that finds a slot, for a turn whose wanted experts all have theirs. Guesses
/// spare each other and those that are still awaited.
pub(crate) fn plan_guesses(slots: &Slots, ranking: &mut Ranking, guesses: &[Guess], moves: &mut Vec<Move>) {
    moves.clear();
    let missing = guesses.iter().enumerate().filter(|&(i, &Guess { key, .. })| {
        let is_doubled = guesses[..i].iter().any(|guess| guess.key == key);
        !is_doubled && slots.find(key).is_none()
    });
    let is_spared = |slot: &Slot| is_guessed(slot, guesses) || slots.is_awaited_guess(slot);
    let victims = ranking.victims(slots, (&[], missing.clone().count()), is_spared, false);
    moves.extend(missing.zip(victims).map(|((_, guess), &slot)| Move::Guess { key: guess.key, slot }));
}

fn is_guessed(slot: &Slot, guesses: &[Guess]) -> bool {
    slot.resident().is_some_and(|key| guesses.iter().any(|guess| guess.key == key))
}

#[cfg(test)]
mod tests {
    use forerun_arena::{Arena, ReadLease};
    use forerun_model::{LayerId, PartOffsets, Routing};
    use forerun_storage::Filled;

    use super::*;
    use crate::CachePolicy;
    use crate::slots::Origin;

    /// Small letters are experts of layer 0, which is open; large ones are of layer 1.
    fn key(c: char) -> ExpertKey {
        let expert = u16::try_from(u32::from(c.to_ascii_lowercase()) - u32::from('a')).unwrap();
        ExpertKey::new(u16::from(c.is_ascii_uppercase()), expert)
    }

    fn name(key: ExpertKey) -> char {
        let first = if key.layer == LayerId(0) { b'a' } else { b'A' };
        char::from(first + u8::try_from(key.expert.0).unwrap())
    }

    /// Experts are worth what is written behind them.
    struct Written(Vec<(ExpertKey, f32)>);

    impl Written {
        fn new(table: &str) -> Self {
            let worth = |word: &str| word.chars().find_map(|c| c.to_digit(10)).unwrap_or(0);
            let key = |word: &str| word.chars().find(char::is_ascii_alphabetic).map(key);
            let entry = |word: &str| Some((key(word)?, f32::from(u8::try_from(worth(word)).unwrap())));
            Self(table.split_whitespace().filter_map(entry).collect())
        }
    }

    impl CachePolicy for Written {
        fn name(&self) -> &'static str {
            "written"
        }

        fn observe(&mut self, _layer: LayerId, _routing: &Routing) {}

        fn worth(&mut self, key: ExpertKey) -> f32 {
            self.0.iter().find(|entry| entry.0 == key).unwrap().1
        }
    }

    /// Builds the table; the leases are the caller's.
    fn table(text: &str) -> (Slots, Vec<ReadLease>) {
        let words: Vec<&str> = text.split_whitespace().collect();
        let (mut slots, mut callers) = (Slots::new(words.len()), Vec::new());
        let arena = Arena::new(words.len(), 1).unwrap();
        slots.next_turn(LayerId(0));
        for (word, i) in words.iter().zip(0..) {
            let slot = SlotIdx(i);
            if *word == "." {
                continue;
            }
            let origin = if word.contains('?') { Origin::Guess } else { Origin::Demand };
            slots.begin(slot, key(word.chars().find(char::is_ascii_alphabetic).unwrap()), origin);
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

    /// Does what was planned, as far as the next plan can see it.
    fn carry_out(slots: &mut Slots, moves: &[Move]) {
        for m in moves {
            match *m {
                Move::Hit { slot } | Move::Wait { slot } => slots.promise(slot),
                Move::Fetch { key, slot } => {
                    slots.vacate(slot);
                    slots.begin(slot, key, Origin::Demand);
                }
                Move::Guess { .. } | Move::Blocked { .. } => {}
            }
        }
    }

    /// Slots, longest unused first: `.` empty, `~x` loading, `x!` leased by the caller, `x*` promised to the turn,
    /// `x-` spent, `x?` guessed in this turn and not used, `x3` worth 3 (else 0).
    #[track_caller]
    fn check(slots: &str, wanted: &str, guesses: &str, expect: &str) {
        let (mut table, _callers) = table(slots);
        let mut ranking = Ranking::new(Box::new(Written::new(slots)), table.len());
        let wanted: Vec<_> = wanted.chars().map(key).collect();
        let guesses: Vec<_> = guesses.chars().map(|c| Guess { key: key(c), probability: 0.5 }).collect();
        let mut moves = Vec::new();
        plan(&table, &mut ranking, &wanted, &guesses, &mut moves);
        let mut printed = print(&table, &moves);
        carry_out(&mut table, &moves);
        plan_guesses(&table, &mut ranking, &guesses, &mut moves);
        printed += if printed.is_empty() || moves.is_empty() { "" } else { "  " };
        printed += &print(&table, &moves);
        assert_eq!(printed, expect, "slots `{slots}`");
    }

    /// Layer 1 may be left with two.
    const SIXTEEN: &str = "A0 B0 C0 d1 e2 f2 g2 h2 i2 j2 k2 l2 m2 n2 o2 p2";

    #[rustfmt::skip]
    mod cases {
        use super::{SIXTEEN, check};

        #[test] fn nothing_wanted_moves_nothing()              { check("a b", "",     "",   ""); }
        #[test] fn wanted_experts_keep_their_slots()           { check("a b c", "ad", "",   "hit a  fetch d>1"); }
        #[test] fn even_when_all_others_are_taken()            { check("a b", "abcd", "",   "hit a b  blocked c d"); }
        #[test] fn the_longest_unused_goes_first()             { check("c a b", "de", "",   "fetch d>0 e>1"); }
        #[test] fn what_is_worth_least_goes_first()            { check("a3 b1 c2", "de", "", "fetch d>1 e>2"); }
        #[test] fn of_equals_the_longest_unused_goes()         { check("a3 b1 c1", "d", "", "fetch d>1"); }
        #[test] fn worth_is_compared_over_layers()             { check("a2 B1 c3", "d", "", "fetch d>1"); }
        #[test] fn a_hit_is_kept_whatever_it_is_worth()        { check("a1 b2", "ac", "",   "hit a  fetch c>1"); }
        #[test] fn a_guess_takes_what_is_worth_least()         { check("a2 b1", "",   "c",  "guess c>1"); }
        #[test] fn other_layers_keep_a_few()                   { check(SIXTEEN, "xy", "",   "fetch x>0 y>3"); }
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
        #[test] fn a_guess_never_takes_a_wanted_slot()         { check("a b", "ab",   "c",  "hit a b"); }
        #[test] fn a_guess_never_takes_a_leased_slot()         { check("a! ~b", "",   "c",  ""); }
        #[test] fn a_guess_may_take_the_longest_unused()       { check("a b", "b",    "c",  "hit b  guess c>0"); }
        #[test] fn a_guess_that_is_here_moves_nothing()        { check("a ~b", "",    "ab", ""); }
        #[test] fn a_guess_spares_other_guesses()              { check("a b", "",     "ca", "guess c>1"); }
        #[test] fn a_guess_spares_those_of_its_turn()          { check("a? b", "",    "cd", "guess c>1"); }
        #[test] fn a_wanted_expert_spares_awaited_guesses()    { check("a? b9", "c",  "",   "fetch c>1"); }
        #[test] fn and_what_is_guessed_anew()                  { check("a b9", "c",   "a",  "fetch c>1"); }
        #[test] fn but_takes_them_before_it_waits()            { check("a? b!", "c",  "",   "fetch c>0"); }
        #[test] fn and_those_guessed_anew()                    { check("a b!", "c",   "a",  "fetch c>0"); }
        #[test] fn a_wanted_guess_is_a_hit()                   { check("a? b", "a",   "",   "hit a"); }
        #[test] fn a_doubled_guess_counts_once()               { check(". .", "",     "aa", "guess a>0"); }
        #[test] fn a_wanted_expert_is_not_guessed_too()        { check(". .", "a",    "ab", "fetch a>0  guess b>1"); }
    }
}

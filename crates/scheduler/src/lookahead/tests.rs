//! A loop of two layers whose times are known.

use forerun_model::Stage;

use super::*;

const EARLY: View = View { stage: Stage::Early, ahead: 1 };
const CLOSED: View = View { stage: Stage::Closed, ahead: 1 };
const RECORD: u64 = 1000;

fn ms(millis: u64) -> Nanos {
    Nanos::from_millis(millis)
}

fn guess(layer: u16, expert: u16) -> Guess {
    Guess { key: ExpertKey::new(layer, expert), probability: 0.5 }
}

/// Two layers whose turns compute for 1 ms, 10 ms apart; a read takes 4 ms, and layer 1 wants expert `wanted`.
struct Loop {
    lookahead: Lookahead,
    now: Nanos,
    n_asked: usize,
    /// What a guess takes that nobody reckons with.
    hidden: Nanos,
}

impl Loop {
    fn new(config: LookaheadConfig) -> Self {
        let mut lookahead = Lookahead::new(LookaheadConfig { read: Some(ms(4)), ..config });
        lookahead.record(LayerId(1), RECORD);
        Self { lookahead, now: Nanos(0), n_asked: 0, hidden: Nanos(0) }
    }

    /// A pass in which layer 1 is guessed to want `guessed` and wants `wanted`; what was admitted is read in time. Asking
    /// takes `asking`.
    fn pass(&mut self, guessed: &[u16], wanted: u16, asking: Nanos) -> Vec<u16> {
        let Self { lookahead, .. } = self;
        lookahead.begin_pass(self.now, 1);
        lookahead.demand_landed(100 * RECORD);
        lookahead.opened(LayerId(0), &[], self.now);
        let mut admitted = Vec::new();
        if lookahead.listens(LayerId(1), self.now) {
            self.n_asked += 1;
            self.now = self.now + asking;
            lookahead.replace(EARLY, LayerId(1), self.now, self.now);
            for (rank, &expert) in guessed.iter().enumerate() {
                lookahead.add(EARLY, rank, guess(1, expert));
            }
            lookahead.admit(0, self.now, &mut admitted);
            admitted.iter().for_each(|guess| lookahead.begun(guess.key));
        }
        self.now = self.now + ms(1);
        lookahead.closed(Nanos(0), self.now);
        lookahead.replace(CLOSED, LayerId(9), self.now, self.now);
        self.now = self.now + ms(10);
        lookahead.opened(LayerId(1), &[ExpertKey::new(1, wanted)], self.now);
        self.now = self.now + ms(1);
        lookahead.closed(Nanos(0), self.now);
        self.now = self.now + if admitted.is_empty() { Nanos(0) } else { self.hidden };
        lookahead.end_pass(self.now);
        admitted.iter().map(|guess| guess.key.expert.0).collect()
    }
}

#[test]
fn nothing_is_read_before_times_are_known() {
    let mut run = Loop::new(LookaheadConfig::default());
    assert!(run.pass(&[1], 1, Nanos(0)).is_empty());
    assert!(!run.pass(&[1], 1, Nanos(0)).is_empty());
}

#[test]
fn what_proves_right_is_read_and_what_proves_wrong_is_not() {
    let mut run = Loop::new(LookaheadConfig::default());
    (0..100).for_each(|_| drop(run.pass(&[7, 8], 7, Nanos(0))));
    assert_eq!(run.pass(&[7, 8], 7, Nanos(0)), [7]);
    (0..400).for_each(|_| drop(run.pass(&[7, 8], 8, Nanos(0))));
    assert_eq!(run.pass(&[7, 8], 8, Nanos(0)), [8]);
}

#[test]
fn wrong_guesses_stay_within_their_budget() {
    let mut run = Loop::new(LookaheadConfig { extra_permille: 5, ..LookaheadConfig::default() });
    let n = 200;
    let n_read: usize = (0..n).map(|_| run.pass(&[1, 2, 3, 4], 9, Nanos(0)).len()).sum();
    // Half a per cent of a hundred records a pass.
    assert!(n_read > 0 && n_read <= n / 2, "{n_read} of {n} read in vain");
    let mut open = Loop::new(LookaheadConfig::open());
    assert_eq!(open.pass(&[1, 2, 3, 4], 9, Nanos(0)).len(), 4);
}

#[test]
fn whom_to_ask_costs_more_than_it_saves_is_asked_rarely() {
    let n_asked = |wanted, asking| {
        let mut run = Loop::new(LookaheadConfig::default());
        (0..400).for_each(|_| drop(run.pass(&[1], wanted, asking)));
        run.n_asked
    };
    assert!(n_asked(1, Nanos::from_micros(10)) > 350, "right and cheap");
    assert!(n_asked(9, Nanos::from_micros(10)) < 100, "always wrong");
    assert!(n_asked(1, ms(50)) < 100, "right and dear");
}

#[test]
fn a_later_guess_replaces_an_earlier_one() {
    let mut lookahead = Lookahead::new(LookaheadConfig::open());
    let mut admitted = Vec::new();
    lookahead.replace(EARLY, LayerId(1), Nanos(0), Nanos(0));
    lookahead.add(EARLY, 0, guess(1, 1));
    lookahead.add(EARLY, 1, guess(1, 2));
    lookahead.begun(ExpertKey::new(1, 1));
    lookahead.replace(CLOSED, LayerId(1), Nanos(0), Nanos(0));
    lookahead.add(CLOSED, 0, guess(1, 3));
    lookahead.add(CLOSED, 0, guess(1, 3));
    lookahead.admit(0, Nanos(0), &mut admitted);
    assert_eq!(admitted.iter().map(|guess| guess.key.expert.0).collect::<Vec<_>>(), [3]);
    lookahead.withdrawn(ExpertKey::new(1, 1));
    lookahead.admit(0, Nanos(0), &mut admitted);
    assert_eq!(admitted.len(), 2, "what was taken back is a guess like any other");
    lookahead.opened(LayerId(1), &[], Nanos(0));
    assert!(!lookahead.has_waiting(), "guesses expire when their layer is opened");
}

#[test]
fn a_change_of_mind_is_noted_with_its_reason() {
    let mut run = Loop::new(LookaheadConfig::default());
    run.hidden = ms(8);
    (0..600).for_each(|_| drop(run.pass(&[1], 1, Nanos(0))));
    let changes = run.lookahead.changes();
    assert!(changes.iter().any(|change| change.choice == "off"), "{changes:?}");
    assert!(changes[0].reason.contains("20.000 ms with guesses and 12.000 ms without"), "{changes:?}");
}

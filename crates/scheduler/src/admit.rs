//! Which guesses pay for their bytes. Pure: numbers in, a verdict out.
//!
//! A guess that is read while the disk would idle and that turns out right saves the wait for it. One that is wrong
//! costs the bytes that were moved until that is known, and the time by which it still holds up the demands behind it:
//! what is on the wire can't be stopped. So a guess pays while `p * saved > (1 - p) * (overrun + price * moved)`, where
//! `price` rises until the bytes of wrong guesses stay within their budget.

use forerun_model::Nanos;

/// What the next guess would meet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prospect {
    /// How likely it is wanted.
    pub(crate) probability: f32,
    /// Time that one read takes a busy disk.
    pub(crate) read: Nanos,
    /// Most time for which it holds up demands once its layer is opened without it.
    pub(crate) hold: Nanos,
    /// Time that the disk has until its layer is opened, without what it has still to do before this guess; the
    /// guess begins now.
    pub(crate) spare: Nanos,
    /// Time for which the layer is expected to wait for its reads, as far as no guess before this one saves it.
    pub(crate) stall: Nanos,
    /// What a byte read in vain costs, in the time that it takes to read it.
    pub(crate) price: f32,
}

/// Time that is saved on average if the guess is read, or `None` when it doesn't pay.
pub(crate) fn saving(prospect: &Prospect) -> Option<Nanos> {
    let Prospect { probability, read, hold, spare, stall, price } = *prospect;
    let right = probability.clamp(0.0, 1.0);
    let hidden = read.min(spare).min(stall);
    let overrun = (read - spare).min(hold).min(stall);
    let moved = read.min(spare + hold);
    let gain = hidden.times(right);
    let cost = (overrun + moved.times(price)).times(1.0 - right);
    (gain > cost).then_some(gain)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times in microseconds, shares in percent.
    #[track_caller]
    fn check(probability: u8, times: [u64; 3], price: u8, expect: Option<u64>) {
        check_held(probability, times, times[0], price, expect);
    }

    #[track_caller]
    fn check_held(
        probability: u8,
        [read, spare, stall]: [u64; 3],
        hold: u64,
        price: u8,
        expect: Option<u64>,
    ) {
        let percent = |value: u8| f32::from(value) / 100.0;
        let prospect = Prospect {
            probability: percent(probability),
            read: Nanos::from_micros(read),
            hold: Nanos::from_micros(hold),
            spare: Nanos::from_micros(spare),
            stall: Nanos::from_micros(stall),
            price: percent(price),
        };
        let found = saving(&prospect).map(|saved| (saved.0 + 500) / 1000);
        assert_eq!(found, expect, "{prospect:?}");
    }

    #[rustfmt::skip]
    mod cases {
        use super::{check, check_held};

        #[test] fn a_sure_guess_saves_its_read()              { check(100, [1000, 5000, 9000], 0, Some(1000)); }
        #[test] fn an_idle_disk_takes_doubtful_ones()         { check(20, [1000, 5000, 9000], 5, Some(200)); }
        #[test] fn bytes_have_a_price()                       { check(20, [1000, 5000, 9000], 50, None); }
        #[test] fn a_layer_that_never_waits_needs_none()      { check(90, [1000, 5000, 0], 5, None); }
        #[test] fn no_more_is_saved_than_is_waited_for()      { check(80, [1000, 5000, 300], 5, Some(240)); }
        #[test] fn a_read_that_holds_up_demands_must_be_sure() { check(60, [1000, 300, 9000], 0, None); }
        #[test] fn or_be_given_up_soon()                      { check_held(60, [1000, 300, 9000], 200, 5, Some(180)); }
        #[test] fn and_pays_if_it_is()                        { check(90, [1000, 300, 9000], 5, Some(270)); }
        #[test] fn without_time_nothing_is_saved()            { check(99, [1000, 0, 9000], 0, None); }
    }
}

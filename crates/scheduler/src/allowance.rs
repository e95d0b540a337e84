//! The budget of wrong guesses: how many bytes may be read in vain, and what they cost while it runs short.

/// Passes over which the budget holds.
const WINDOW: usize = 64;

/// Bytes of one pass.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    /// Routers asked for these, in time or on a guess that was right.
    useful: u64,
    /// No router asked for these when their layer was opened.
    wasted: u64,
    /// A router asked for these later, when they were still there, or they weren't read to their end.
    refunded: u64,
}

impl Spent {
    /// What was in vain after all.
    fn lost(self) -> u64 {
        self.wasted.saturating_sub(self.refunded)
    }
}

/// Passes that the price looks back on.
const PRICE_WINDOW: usize = 16;
/// Least price of a byte read in vain: a slot that something else was in.
const PRICE_MIN: f32 = 0.05;
/// Most: guesses must be all but certain.
const PRICE_MAX: f32 = 16.0;
/// Share of the budget from which the price rises.
const TARGET: f64 = 0.95;

/// Keeps account of guesses over the last passes.
#[derive(Debug)]
pub(crate) struct Allowance {
    permille: u32,
    passes: [Spent; WINDOW],
    at: usize,
    price: f32,
}

impl Allowance {
    /// So many thousandths of the useful bytes may be read in vain.
    pub(crate) fn new(permille: u32) -> Self {
        Self { permille, passes: [Spent::default(); WINDOW], at: 0, price: PRICE_MIN }
    }

    /// Bytes that routers asked for.
    pub(crate) fn useful(&mut self, bytes: u64) {
        self.passes[self.at].useful += bytes;
    }

    /// Bytes that were read in vain.
    pub(crate) fn wasted(&mut self, bytes: u64) {
        self.passes[self.at].wasted += bytes;
    }

    /// Bytes that seemed read in vain, and were wanted later.
    pub(crate) fn refund(&mut self, bytes: u64) {
        let pass = &mut self.passes[self.at];
        pass.useful += bytes;
        pass.refunded += bytes;
    }

    /// Bytes that were counted as wasted, and not read after all.
    pub(crate) fn unspent(&mut self, bytes: u64) {
        self.passes[self.at].refunded += bytes;
    }

    /// Bytes that may still be read in vain.
    pub(crate) fn left(&self) -> u64 {
        let sum = self.sum(WINDOW);
        (sum.useful / 1000 * u64::from(self.permille)).saturating_sub(sum.lost())
    }

    /// What a byte read in vain costs, in the time that it takes to read it.
    pub(crate) fn price(&self) -> f32 {
        self.price
    }

    /// A pass ends: the price follows what was spent of late.
    #[expect(clippy::cast_precision_loss, reason = "a share needs no more than 53 bits")]
    pub(crate) fn next_pass(&mut self) {
        let sum = self.sum(PRICE_WINDOW);
        let allowed = sum.useful as f64 * f64::from(self.permille) / 1000.0;
        if sum.lost() as f64 > allowed * TARGET {
            self.price = (self.price * 1.15).min(PRICE_MAX);
        } else {
            self.price = (self.price * 0.93).max(PRICE_MIN);
        }
        self.at = (self.at + 1) % WINDOW;
        self.passes[self.at] = Spent::default();
    }

    fn sum(&self, n_passes: usize) -> Spent {
        let last = (0..n_passes).map(|back| self.passes[(self.at + WINDOW - back) % WINDOW]);
        last.fold(Spent::default(), |sum, pass| Spent {
            useful: sum.useful + pass.useful,
            wasted: sum.wasted + pass.wasted,
            refunded: sum.refunded + pass.refunded,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_what_was_useful_may_be_wasted() {
        let mut allowance = Allowance::new(100);
        assert_eq!(allowance.left(), 0);
        allowance.useful(10_000);
        allowance.wasted(300);
        assert_eq!(allowance.left(), 700);
        allowance.wasted(900);
        assert_eq!(allowance.left(), 0);
    }

    #[test]
    fn old_passes_are_forgotten() {
        let mut allowance = Allowance::new(100);
        allowance.useful(10_000);
        (1..WINDOW).for_each(|_| allowance.next_pass());
        assert_eq!(allowance.left(), 1000);
        allowance.next_pass();
        assert_eq!(allowance.left(), 0);
    }

    #[test]
    fn the_price_rises_while_too_much_is_wasted_and_falls_again() {
        let mut allowance = Allowance::new(100);
        let mut pass = |wasted| {
            allowance.useful(1000);
            allowance.wasted(wasted);
            allowance.next_pass();
            allowance.price()
        };
        let dear = (0..40).map(|_| pass(200)).last().unwrap();
        let cheap = (0..200).map(|_| pass(10)).last().unwrap();
        assert!(dear > 1.0 && cheap == PRICE_MIN, "{dear} {cheap}");
    }
}

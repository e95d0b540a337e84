//! The threads of one threadgroup: fibers that wait for each other at barriers and shuffles.

#![expect(unsafe_code, reason = "a kernel in a foreign library waits in the middle of its own stack")]

use std::cell::Cell;
use std::io;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use crate::launch::LANES;

/// Bytes of a thread's stack; kernels keep a few hundred.
const STACK_BYTES: usize = 64 << 10;

/// In which order threads run between two points where all have waited. A kernel whose results depend on it has a race.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// First to last.
    Forward,
    /// Last to first.
    Backward,
}

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Wait {
    /// All threads of the threadgroup.
    Barrier,
    /// The value of another lane of its simdgroup.
    Shuffle { value: f32, mask: u32 },
}

type Fiber = Coroutine<f32, Wait, ()>;

thread_local! {
    /// How the fiber that runs on this thread gives up control; null while none runs.
    static CURRENT: Cell<*const Yielder<f32, Wait>> = const { Cell::new(std::ptr::null()) };
}

/// A kernel waits for its threadgroup.
pub(crate) extern "C" fn barrier() {
    wait(Wait::Barrier);
}

/// A kernel wants the value of the lane whose number differs from its own by `mask`.
pub(crate) extern "C" fn shuffle_xor(value: f32, mask: u32) -> f32 {
    wait(Wait::Shuffle { value, mask })
}

fn wait(what: Wait) -> f32 {
    let yielder = CURRENT.get();
    assert!(!yielder.is_null(), "kernels run in fibers");
    // SAFETY: the fiber that runs has put its own yielder here, which lives on its stack until it ends; it is what called this
    // function, so it hasn't ended.
    let answer = unsafe { (*yielder).suspend(what) };
    // Others ran meanwhile.
    CURRENT.set(yielder);
    answer
}

/// Stacks that are used again, since a system takes longer to make one than a thread to run.
#[derive(Default)]
pub(crate) struct Threads {
    stacks: Vec<DefaultStack>,
}

/// Why a threadgroup didn't end.
pub(crate) enum Stop {
    /// No stack.
    Stack(io::Error),
    /// Threads wait in vain; says how.
    Divergence(String),
}

impl Threads {
    /// Runs `body(thread)` as so many simdgroups until all threads have ended.
    pub(crate) fn run(
        &mut self,
        n_simdgroups: usize,
        order: Order,
        body: impl Fn(usize) + Copy + 'static,
    ) -> Result<(), Stop> {
        let n = n_simdgroups * LANES;
        while self.stacks.len() < n {
            self.stacks.push(DefaultStack::new(STACK_BYTES).map_err(Stop::Stack)?);
        }
        let stacks = self.stacks.drain(self.stacks.len() - n..);
        let fiber = |(thread, stack)| {
            Fiber::with_stack(stack, move |yielder, _| {
                CURRENT.set(yielder);
                body(thread);
            })
        };
        let mut group =
            Group { fibers: stacks.enumerate().map(fiber).collect(), states: vec![State::Ready(0.0); n] };
        let result = loop {
            group.run_ready(order);
            if group.states.iter().all(|state| *state == State::Ended) {
                break Ok(());
            }
            if let Err(how) = group.answer() {
                break Err(Stop::Divergence(how));
            }
        };
        for mut fiber in group.fibers {
            if !fiber.done() {
                // SAFETY: what is given up are frames of a kernel and of `wait`, which own nothing.
                unsafe { fiber.force_reset() };
            }
            self.stacks.push(fiber.into_stack());
        }
        result
    }
}

/// Where a thread is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// May go on, with the answer to what it waited for.
    Ready(f32),
    Waits(Wait),
    Ended,
}

struct Group {
    fibers: Vec<Fiber>,
    states: Vec<State>,
}

impl Group {
    /// Lets every thread that may go on run until it waits or ends.
    fn run_ready(&mut self, order: Order) {
        let n = self.fibers.len();
        for i in 0..n {
            let i = if order == Order::Forward { i } else { n - 1 - i };
            if let State::Ready(answer) = self.states[i] {
                self.states[i] = match self.fibers[i].resume(answer) {
                    CoroutineResult::Yield(wait) => State::Waits(wait),
                    CoroutineResult::Return(()) => State::Ended,
                };
                CURRENT.set(std::ptr::null());
            }
        }
    }

    /// Answers whoever has nobody left to wait for.
    ///
    /// # Errors
    /// Who waits for what, when that is nobody.
    fn answer(&mut self) -> Result<(), String> {
        let mut answered = false;
        for lanes in self.states.chunks_exact_mut(LANES) {
            answered |= shuffle(lanes)?;
        }
        let at_barrier = |state: &State| *state == State::Waits(Wait::Barrier);
        if self.states.iter().all(at_barrier) {
            self.states.fill(State::Ready(0.0));
            answered = true;
        }
        if answered {
            return Ok(());
        }
        let count = |wanted: fn(&State) -> bool| self.states.iter().filter(|state| wanted(state)).count();
        let (ended, barrier) = (count(|s| *s == State::Ended), count(|s| *s == State::Waits(Wait::Barrier)));
        Err(format!("of {} threads, {ended} have ended and {barrier} are at a barrier", self.states.len()))
    }
}

/// Exchanges the values of a simdgroup, if all of its lanes are at one shuffle.
///
/// # Errors
/// When its lanes are at different ones, or some have ended: what they would read is undefined.
fn shuffle(lanes: &mut [State]) -> Result<bool, String> {
    let waits = |state: &State| match *state {
        State::Waits(Wait::Shuffle { value, mask }) => Some((value, mask)),
        _ => None,
    };
    let Some((_, first)) = lanes.iter().find_map(waits) else { return Ok(false) };
    let values: Vec<_> = lanes.iter().filter_map(waits).collect();
    if values.len() < lanes.len() {
        return Err(format!("{} of {} lanes are at a shuffle", values.len(), lanes.len()));
    }
    if values.iter().any(|&(_, mask)| mask != first) {
        return Err("the lanes of a simdgroup are at different shuffles".to_owned());
    }
    for (lane, state) in lanes.iter_mut().enumerate() {
        let other = values.get(lane ^ first as usize);
        let Some((value, _)) = other else { return Err(format!("lane {lane} asks for no lane: {first}")) };
        *state = State::Ready(*value);
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static SEEN: Cell<[f32; 2 * LANES]> = const { Cell::new([0.0; 2 * LANES]) };
    }

    fn note(thread: usize, value: f32) {
        let mut seen = SEEN.get();
        seen[thread] = value;
        SEEN.set(seen);
    }

    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    fn fold(thread: usize) {
        let mut sum = thread as f32;
        for mask in [16, 8, 4, 2, 1] {
            sum += shuffle_xor(sum, mask);
        }
        note(thread, sum);
    }

    #[test]
    fn simdgroups_shuffle_apart() {
        for order in [Order::Forward, Order::Backward] {
            assert!(Threads::default().run(2, order, fold).is_ok());
            let seen = SEEN.get();
            assert!(seen[..LANES].iter().all(|&sum| sum == 496.0), "{seen:?}");
            assert!(seen[LANES..].iter().all(|&sum| sum == 1520.0), "{seen:?}");
        }
    }

    #[test]
    fn what_was_written_before_a_barrier_is_read_after_it() {
        fn turn(thread: usize) {
            note(thread, if thread == 0 { 7.0 } else { 0.0 });
            barrier();
            let first = SEEN.get()[0];
            barrier();
            note(thread, first);
        }
        for order in [Order::Forward, Order::Backward] {
            assert!(Threads::default().run(2, order, turn).is_ok());
            assert_eq!(SEEN.get(), [7.0; 2 * LANES]);
        }
    }

    #[test]
    fn a_barrier_that_some_never_reach_is_an_error() {
        let mut threads = Threads::default();
        let half = |thread: usize| {
            if thread < LANES {
                barrier();
            }
        };
        let Err(Stop::Divergence(how)) = threads.run(2, Order::Forward, half) else { panic!("it ended") };
        assert_eq!(how, "of 64 threads, 32 have ended and 32 are at a barrier");
        assert!(threads.run(1, Order::Forward, fold).is_ok(), "its stacks are usable again");
    }

    #[test]
    fn a_shuffle_that_some_lanes_miss_is_an_error() {
        let some = |thread: usize| {
            if thread.is_multiple_of(2) {
                shuffle_xor(0.0, 2);
            }
        };
        let Err(Stop::Divergence(how)) = Threads::default().run(1, Order::Forward, some) else {
            panic!("it ended")
        };
        assert_eq!(how, "16 of 32 lanes are at a shuffle");
    }
}

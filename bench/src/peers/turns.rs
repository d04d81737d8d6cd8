//! Whose turn it is, and when it is over: everyone has a first look before anyone has a second.

use std::time::Duration;

/// So many ways, each so many times, for so long.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turns {
    pub(super) ways: usize,
    pub(super) turns: usize,
    /// After this time nobody has another turn but the first.
    pub(super) share: Duration,
    /// After this time nobody has any.
    pub(super) end: Duration,
}

impl Turns {
    /// Each does it once, then each once more, and another one begins each time. `act` is told who, and for which time.
    /// Gives back who had none.
    pub(super) fn take(
        &self,
        elapsed: impl Fn() -> Duration,
        mut act: impl FnMut(usize, usize),
    ) -> Vec<usize> {
        let mut left_out = Vec::new();
        for turn in 0..self.turns {
            for step in 0..self.ways {
                let way = self.at(turn, step);
                let is_late = match turn {
                    0 => elapsed() >= self.end,
                    _ => elapsed() >= self.share.min(self.end),
                };
                match is_late {
                    false => act(way, turn),
                    true if turn == 0 => left_out.push(way),
                    true => return left_out,
                }
            }
        }
        left_out
    }

    /// Backwards every other time: else one always comes after the same neighbour, who is busy with its end.
    fn at(&self, turn: usize, step: usize) -> usize {
        let step = match turn % 2 {
            0 => step,
            _ => self.ways - 1 - step,
        };
        (turn / 2 + step) % self.ways
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// How often each way had its turn, where one takes so many seconds.
    fn looks(turns: &Turns, seconds: impl Fn(usize, usize) -> u64) -> (Vec<usize>, Vec<usize>) {
        let now = Cell::new(Duration::ZERO);
        let mut looks = vec![0; turns.ways];
        let left_out = turns.take(
            || now.get(),
            |way, turn| {
                looks[way] += 1;
                now.set(now.get() + Duration::from_secs(seconds(way, turn)));
            },
        );
        (looks, left_out)
    }

    const TURNS: Turns = Turns {
        ways: 4,
        turns: 5,
        share: Duration::from_secs(20),
        end: Duration::from_secs(100),
    };

    #[test]
    fn whoever_takes_long_takes_nobodys_first_look() {
        let (counts, left_out) = looks(&TURNS, |way, _| if way == 0 { 1 } else { 10 });
        assert_eq!(counts, [1, 1, 1, 1]);
        assert!(left_out.is_empty());
    }

    #[test]
    fn what_is_quick_is_done_as_often_as_was_asked_for() {
        // The last one waits in vain, once.
        let slow_once = |way, turn| u64::from(way == 3 && turn == 0) * 19;
        assert_eq!(looks(&TURNS, slow_once).0, [5, 5, 5, 5]);
    }

    #[test]
    fn who_had_no_look_before_the_end_is_named() {
        let (counts, left_out) = looks(&TURNS, |_, _| 50);
        assert_eq!(counts, [1, 1, 0, 0]);
        assert_eq!(left_out, [2, 3]);
    }

    #[test]
    fn nobody_always_follows_the_same_neighbour() {
        let row = |turn| (0..4).map(|step| TURNS.at(turn, step)).collect::<Vec<_>>();
        assert_eq!([row(0), row(1)], [[0, 1, 2, 3], [3, 2, 1, 0]]);
        assert_eq!([row(2), row(3)], [[1, 2, 3, 0], [0, 3, 2, 1]]);
    }
}

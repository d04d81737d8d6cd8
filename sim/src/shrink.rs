//! Shortens a schedule that breaks a rule, as far as it still breaks one.

use std::time::Duration;

use crate::plan::{Act, Schedule};

/// Removes and reduces acts that are not needed.
pub fn shrink(schedule: &Schedule, breaks: impl Fn(&Schedule) -> bool) -> Schedule {
    let mut best = schedule.clone();
    loop {
        let before = best.acts.clone();
        leave_out(&mut best, &breaks);
        make_smaller(&mut best, &breaks);
        if best.acts == before {
            return best;
        }
    }
}

fn leave_out(best: &mut Schedule, breaks: &impl Fn(&Schedule) -> bool) {
    let mut chunk = best.acts.len().div_ceil(2).max(1);
    loop {
        let mut start = 0;
        while start < best.acts.len() {
            let mut less = best.clone();
            let end = (start + chunk).min(less.acts.len());
            less.acts.drain(start..end);
            match breaks(&less) {
                true => *best = less,
                false => start += chunk,
            }
        }
        if chunk == 1 {
            return;
        }
        chunk /= 2;
    }
}

fn make_smaller(best: &mut Schedule, breaks: &impl Fn(&Schedule) -> bool) {
    for place in 0..best.acts.len() {
        while let Some(smaller) = smaller(&best.acts[place]) {
            let mut less = best.clone();
            less.acts[place] = smaller;
            if !breaks(&less) {
                break;
            }
            *best = less;
        }
    }
}

fn smaller(act: &Act) -> Option<Act> {
    match act {
        Act::Turns(turns, salt) if *turns > 1 => Some(Act::Turns(turns / 2, *salt)),
        Act::Pass(length, salt) if *length > Duration::from_millis(1) => {
            Some(Act::Pass(*length / 2, *salt))
        }
        Act::Starve(nth, length, salt) if *length > Duration::from_millis(1) => {
            Some(Act::Starve(*nth, *length / 2, *salt))
        }
        Act::Request(nth, tool, millis) if *millis > 0 => {
            Some(Act::Request(*nth, *tool, millis / 2))
        }
        _ => None,
    }
}

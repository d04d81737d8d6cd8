//! Shortens a schedule that breaks a rule, as far as it still breaks one.

use std::time::Duration;

use crate::plan::{Act, Schedule};

/// Removes and reduces acts that are not needed.
pub fn shrink(schedule: &Schedule, breaks: impl Fn(&Schedule) -> bool) -> Schedule {
    let mut best = schedule.clone();
    loop {
        let before = best.acts.clone();
        remove_acts(&mut best, &breaks);
        reduce_acts(&mut best, &breaks);
        if best.acts == before {
            return best;
        }
    }
}

fn remove_acts(best: &mut Schedule, breaks: &impl Fn(&Schedule) -> bool) {
    let mut chunk = best.acts.len().div_ceil(2).max(1);
    loop {
        let mut start = 0;
        while start < best.acts.len() {
            let mut shorter = best.clone();
            let end = (start + chunk).min(shorter.acts.len());
            shorter.acts.drain(start..end);
            match breaks(&shorter) {
                true => *best = shorter,
                false => start += chunk,
            }
        }
        if chunk == 1 {
            return;
        }
        chunk /= 2;
    }
}

fn reduce_acts(best: &mut Schedule, breaks: &impl Fn(&Schedule) -> bool) {
    for index in 0..best.acts.len() {
        while let Some(smaller) = reduced(&best.acts[index]) {
            let mut shorter = best.clone();
            shorter.acts[index] = smaller;
            if !breaks(&shorter) {
                break;
            }
            *best = shorter;
        }
    }
}

fn reduced(act: &Act) -> Option<Act> {
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

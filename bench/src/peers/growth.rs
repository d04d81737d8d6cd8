//! Ever more clients of one way: what all of it holds, and how many calls it answers.

use std::io;
use std::time::{Duration, Instant};

use super::measure::Measure;
use super::team::Team;

/// How many clients there are, and what is measured then.
const STEPS: [(usize, Measure, Measure); 4] = [
    (1, Measure::Pss1, Measure::Calls1),
    (10, Measure::Pss10, Measure::Calls10),
    (50, Measure::Pss50, Measure::Calls50),
    (100, Measure::Pss100, Measure::Calls100),
];

/// How many come at once, but for the first.
const AT_ONCE: usize = 2;

/// Until there are `most` or the time is over: some need more than a second for each client.
pub(super) fn grow(
    team: &mut Team<'_>,
    turns: usize,
    most: usize,
    time: Duration,
) -> io::Result<()> {
    team.close();
    let begun = Instant::now();
    let steps = STEPS.into_iter().filter(|&(clients, ..)| clients <= most);
    for (clients, pss, calls) in steps {
        while team.clients.len() < clients {
            let present = team.clients.len();
            if present > 0 && begun.elapsed() > time {
                team.close();
                return Ok(());
            }
            team.gather((clients - present).min(AT_ONCE))?;
        }
        for _ in 0..turns {
            team.all_call(calls)?;
        }
        let weight = team.people()?.weight();
        team.note(pss, weight);
    }
    team.close();
    Ok(())
}

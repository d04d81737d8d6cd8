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

/// Until all steps are done or the time is over: some need more than a second for each client.
pub(super) fn grow(team: &mut Team<'_>, turns: usize, time: Duration) -> io::Result<()> {
    team.close();
    let begun = Instant::now();
    for (clients, pss, calls) in STEPS {
        while team.clients.len() < clients {
            if begun.elapsed() > time {
                team.close();
                return Ok(());
            }
            let (mut client, _) = team.client(team.clients.len())?;
            client.call()?;
            team.clients.push(client);
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

//! Who is killed.

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_testkit::{Rng, Scope};

use crate::world::Mode;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Server,
    Warden,
    Daemon,
    Shim,
}

/// Those who die together.
const SHARED: [&[Role]; 6] = [
    &[Role::Server],
    &[Role::Server],
    &[Role::Daemon],
    &[Role::Daemon, Role::Server],
    &[Role::Daemon, Role::Warden],
    &[Role::Daemon, Role::Server, Role::Shim],
];
const SOLO: [&[Role]; 3] = [
    &[Role::Server],
    &[Role::Warden],
    &[Role::Server, Role::Warden],
];

/// Kills somebody. Of shims one at most: its app starts another.
pub(crate) fn somebody(scope: &Scope, mode: Mode, chance: &mut Rng) {
    let together = match mode {
        Mode::Shared => SHARED[chance.below(SHARED.len() as u64) as usize],
        Mode::Solo => SOLO[chance.below(SOLO.len() as u64) as usize],
    };
    let alive: Vec<(ProcessRef, Role)> = scope
        .survivors()
        .into_iter()
        .filter_map(|process| role(&process).map(|role| (process, role)))
        .collect();
    for &doomed in together {
        let mut those = alive.iter().filter(|(_, role)| *role == doomed);
        // Of a session's own servers, one; of a daemon's, all.
        let one = doomed == Role::Shim || mode == Mode::Solo;
        let which = chance.below(alive.len() as u64) as usize;
        let doomed: Vec<_> = match one {
            true => {
                let those: Vec<_> = those.collect();
                let place = which.checked_rem(those.len());
                place.map(|place| those[place]).into_iter().collect()
            }
            false => those.by_ref().collect(),
        };
        for (process, _) in doomed {
            // One that is gone already is as good.
            let _ = process.signal(Signal::KILL);
        }
    }
}

fn role(process: &ProcessRef) -> Option<Role> {
    let line = std::fs::read(format!("/proc/{}/cmdline", process.pid())).ok()?;
    let mut words = line.split(|&byte| byte == 0);
    let program = words.next()?;
    match words.next()? {
        b"daemon" => Some(Role::Daemon),
        b"warden" => Some(Role::Warden),
        b"run" => Some(Role::Shim),
        b"serve" if program.ends_with(b"notes") => Some(Role::Server),
        _ => None,
    }
}

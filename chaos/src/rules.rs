//! What must hold after every step, seen from outside. What needs a moment to become true again has it: a rule is
//! broken when the same thing is wrong for longer than its patience.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::cast::{Cast, Member, Role, files_of};
use crate::intruders;
use crate::jobs;
use crate::services;
use crate::world::World;

/// A rule that was broken, and how.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) rule: &'static str,
    pub(crate) why: String,
}

/// A rule, and how it is seen to hold.
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    /// How long it may take on a busy machine until all is well again.
    patience: Duration,
    /// What is wrong: the same words for the same thing.
    look: fn(&mut World, &Cast) -> Vec<String>,
}

const AT_ONCE: Duration = Duration::ZERO;
/// The ladder of these worlds takes a second, an election begins again for twenty.
const SOON: Duration = Duration::from_secs(60);
/// A command waits for what it stops.
const LATE: Duration = Duration::from_secs(150);

const RULES: &[Rule] = &[
    Rule {
        name: "1 one daemon per key",
        patience: SOON,
        look: one_daemon_per_key,
    },
    Rule {
        name: "2 no orphan: a session ends with its app",
        patience: SOON,
        look: no_session_without_app,
    },
    Rule {
        name: "2 no orphan: a server has somebody it serves",
        patience: SOON,
        look: no_server_without_served,
    },
    Rule {
        name: "2 no orphan: a guarded server ends with its owner",
        patience: SOON,
        look: no_guard_without_reason,
    },
    Rule {
        name: "2 no orphan: reap --foreign ends what nobody can reach",
        patience: AT_ONCE,
        look: no_orphan_spared,
    },
    Rule {
        name: "3 no false reap: a session goes on",
        patience: AT_ONCE,
        look: no_session_cut,
    },
    Rule {
        name: "3 no false reap: a guarded server goes on",
        patience: AT_ONCE,
        look: no_guard_cut,
    },
    Rule {
        name: "3 no false reap: a service that others use goes on",
        patience: AT_ONCE,
        look: no_service_cut,
    },
    Rule {
        name: "3 no false reap: a background job goes on",
        patience: AT_ONCE,
        look: no_job_cut,
    },
    Rule {
        name: "5 nothing acknowledged is lost, nothing unknown is repeated",
        patience: AT_ONCE,
        look: once_at_most,
    },
    Rule {
        name: "6 identity is not a number: nobody else is signalled",
        patience: AT_ONCE,
        look: no_bystander_touched,
    },
    Rule {
        name: "a confined process has nothing run outside its confinement",
        patience: AT_ONCE,
        look: no_intruder_served,
    },
    Rule {
        name: "7 decide, then write: a lock's file stays",
        patience: AT_ONCE,
        look: no_lock_replaced,
    },
    Rule {
        name: "8 the meeting place does not depend on the environment",
        patience: AT_ONCE,
        look: no_second_place,
    },
    Rule {
        name: "9 only this user",
        patience: AT_ONCE,
        look: nothing_open_to_others,
    },
    Rule {
        name: "a command ends",
        patience: LATE,
        look: no_command_hangs,
    },
    Rule {
        name: "nothing outside the world is written",
        patience: AT_ONCE,
        look: nothing_outside,
    },
];

/// What is wrong at present, and since when.
#[derive(Debug, Default)]
pub(crate) struct Judge {
    since: BTreeMap<(&'static str, String), Instant>,
}

impl Judge {
    /// Checks every rule.
    pub(crate) fn look(&mut self, world: &mut World, cast: &Cast) -> Result<(), Broken> {
        let now = Instant::now();
        let mut since = BTreeMap::new();
        for (rule, wrong) in wrong(world, cast) {
            let began = self.since.get(&(rule.name, wrong.clone()));
            let began = began.copied().unwrap_or(now);
            if now - began >= rule.patience {
                let lasted = (now - began).as_secs_f32();
                return Err(Broken {
                    rule: rule.name,
                    why: format!("{wrong} (for {lasted:.1} s)"),
                });
            }
            since.insert((rule.name, wrong), began);
        }
        self.since = since;
        Ok(())
    }
}

/// All that is wrong at this moment.
pub(crate) fn wrong(world: &mut World, cast: &Cast) -> Vec<(&'static Rule, String)> {
    let mut all = Vec::new();
    for rule in RULES {
        let wrong = (rule.look)(world, cast).into_iter();
        all.extend(wrong.map(|wrong| (rule, wrong)));
    }
    all
}

fn one_daemon_per_key(_: &mut World, cast: &Cast) -> Vec<String> {
    let mut keys: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for daemon in cast.of(Role::Daemon) {
        let files = files_of(daemon.process.pid());
        // One whose directory was removed under it is on its way out, as its clients turn elsewhere.
        let lock = files.iter().find(|file| file.ends_with("daemon.lock"));
        if let Some(key) = lock.and_then(|lock| lock.parent()) {
            let key = key.display().to_string();
            keys.entry(key).or_default().push(daemon.process.pid());
        }
    }
    let several = keys.into_iter().filter(|(_, daemons)| daemons.len() > 1);
    several
        .map(|(key, daemons)| format!("{key} has {daemons:?}"))
        .collect()
}

fn no_session_without_app(world: &mut World, cast: &Cast) -> Vec<String> {
    let mut wrong = Vec::new();
    for app in &mut world.apps {
        if app.may_end.is_none() {
            continue;
        }
        let left = app.has_left() || !app.starter.is_alive();
        let number = app.number;
        let why = app.may_end.clone().unwrap_or_default();
        // What is answered after the last word may take as long as it was asked to.
        if let Some(shim) = app.shim()
            && let Some(member) = cast.find(shim.pid())
            && shim.is_alive()
            && left
            && !held_up(cast, member)
        {
            wrong.push(format!("app {number}'s session {} ({why})", shim.pid()));
        }
    }
    wrong
}

/// Whether somebody it may be waiting for is stopped.
fn held_up(cast: &Cast, member: &Member) -> bool {
    let stopped = |role| cast.of(role).any(|member| member.stopped);
    member.stopped || stopped(Role::Warden) || stopped(Role::Server) || stopped(Role::Daemon)
}

fn no_server_without_served(world: &mut World, cast: &Cast) -> Vec<String> {
    let mut wrong = Vec::new();
    for server in cast.of(Role::Server) {
        let above: Vec<&Member> = cast.above(server).collect();
        let warden = above.iter().find(|member| member.role == Role::Warden);
        let served = above
            .iter()
            .find(|member| matches!(member.role, Role::Shim | Role::Daemon | Role::Guard));
        match (warden, served) {
            (Some(warden), Some(served)) => {
                let chain = (*warden.process.identity(), *served.process.identity());
                world.chains.insert(server.process.pid(), chain);
            }
            _ if server.stopped || above.iter().any(|member| member.stopped) => {}
            _ if world.is_excused(server) => {}
            _ => wrong.push(format!("{} {}", server.process.pid(), server.line)),
        }
    }
    wrong
}

fn no_guard_without_reason(world: &mut World, cast: &Cast) -> Vec<String> {
    let guards = world.guards.iter().filter(|guard| !guard.has_ended());
    let wrong = guards.filter_map(|guard| {
        let member = cast.find(guard.pid())?;
        let needed = guard.is_needed() || held_up(cast, member);
        (!needed).then(|| format!("guard {} has neither owner nor visitor", guard.pid()))
    });
    wrong.collect()
}

fn no_session_cut(world: &mut World, _: &Cast) -> Vec<String> {
    let mut wrong = Vec::new();
    for app in &mut world.apps {
        if app.may_end.is_some() {
            continue;
        }
        let number = app.number;
        let ended = app.over || app.shim().is_some_and(|shim| !shim.is_alive());
        if ended {
            wrong.push(format!(
                "app {number}'s session has ended; it said: {}",
                app.said()
            ));
        }
    }
    wrong
}

fn no_guard_cut(world: &mut World, _: &Cast) -> Vec<String> {
    let cut = world.guards.iter().filter(|guard| guard.was_cut());
    cut.map(|guard| format!("guard {} has ended; it said: {}", guard.pid(), guard.said()))
        .collect()
}

fn no_service_cut(world: &mut World, _: &Cast) -> Vec<String> {
    services::lost(world)
}

fn no_job_cut(world: &mut World, _: &Cast) -> Vec<String> {
    jobs::ended_innocents(world)
}

fn no_orphan_spared(world: &mut World, _: &Cast) -> Vec<String> {
    jobs::spared_orphans(world)
}

fn once_at_most(world: &mut World, _: &Cast) -> Vec<String> {
    let tally = world.tally();
    let mut wrong = Vec::new();
    for app in &world.apps {
        for (tag, &acknowledged) in &app.effects {
            match tally.get(tag).copied().unwrap_or(0) {
                0 if acknowledged => wrong.push(format!("{tag} was acknowledged, and not done")),
                0 | 1 => {}
                times => wrong.push(format!("{tag} was done {times} times")),
            }
        }
    }
    wrong
}

fn no_bystander_touched(world: &mut World, _: &Cast) -> Vec<String> {
    let mut wrong = Vec::new();
    for bystander in &mut world.bystanders {
        if let Ok(Some(status)) = bystander.try_wait() {
            wrong.push(format!("{}: {status}", bystander.id()));
        }
    }
    wrong
}

fn no_intruder_served(world: &mut World, _: &Cast) -> Vec<String> {
    world
        .intruders
        .retain_mut(|it| !matches!(it.try_wait(), Ok(Some(_))));
    let mark = intruders::mark(world);
    let status = std::fs::read_to_string(mark).ok();
    status
        .map(|status| format!("its command ran: {status}"))
        .into_iter()
        .collect()
}

fn no_lock_replaced(world: &mut World, _: &Cast) -> Vec<String> {
    // `purge` may, while it holds them.
    if world.commands.iter().any(|command| command.removes) {
        world.locks.clear();
        return Vec::new();
    }
    let mut wrong = Vec::new();
    for key in entries(&world.scope.runtime_dir().join("daemons")) {
        for lock in ["daemon.lock", "spawn.lock"] {
            let path = key.join(lock);
            let Ok(meta) = path.symlink_metadata() else {
                continue;
            };
            let before = *world.locks.entry(path.clone()).or_insert(meta.ino());
            if before != meta.ino() {
                wrong.push(format!(
                    "{} was {before}, is {}",
                    path.display(),
                    meta.ino()
                ));
            }
            world.locks.insert(path, meta.ino());
        }
    }
    wrong
}

fn no_second_place(world: &mut World, _: &Cast) -> Vec<String> {
    let keys = entries(&world.scope.runtime_dir().join("daemons"));
    let most = world.keys_wanted();
    match keys.len() > most {
        true => vec![format!(
            "{} keys, but {most} servers are wanted",
            keys.len()
        )],
        false => Vec::new(),
    }
}

fn nothing_open_to_others(world: &mut World, _: &Cast) -> Vec<String> {
    if world.dir_is_loose {
        return Vec::new();
    }
    let uid = rustix::process::geteuid().as_raw();
    let mut wrong = Vec::new();
    walk(&world.scope.runtime_dir(), &mut |path| {
        let Ok(meta) = path.symlink_metadata() else {
            return;
        };
        if meta.uid() != uid || meta.permissions().mode() & 0o077 != 0 {
            let mode = meta.permissions().mode() & 0o7777;
            wrong.push(format!(
                "{}: uid {}, mode {mode:o}",
                path.display(),
                meta.uid()
            ));
        }
    });
    wrong
}

fn no_command_hangs(world: &mut World, cast: &Cast) -> Vec<String> {
    world.commands.retain_mut(|command| !command.has_ended());
    // What it asks or stops may be stopped itself.
    if cast.any_stopped() {
        return Vec::new();
    }
    let commands = world.commands.iter();
    commands.map(|command| command.name.clone()).collect()
}

fn nothing_outside(world: &mut World, _: &Cast) -> Vec<String> {
    let changed = world
        .outside
        .iter()
        .filter(|(path, before)| stamp(path) != **before);
    changed
        .map(|(path, _)| format!("{} has changed", path.display()))
        .collect()
}

/// What tells whether a directory has been touched.
pub(crate) fn stamp(path: &Path) -> Option<(u64, i64, i64)> {
    let meta = path.symlink_metadata().ok()?;
    Some((meta.ino(), meta.mtime(), meta.mtime_nsec()))
}

pub(crate) fn entries(dir: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

pub(crate) fn walk(dir: &Path, see: &mut impl FnMut(&Path)) {
    see(dir);
    for path in entries(dir) {
        match path.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
            true => walk(&path, see),
            false => see(&path),
        }
    }
}

//! Before a start: who is in the way, and whether it may be replaced. Nothing is started here.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use kennel_guard::Held;
use kennel_sys::lock::{Lock, LockError, Mode, legacy};
use kennel_sys::process::ProcessRef;
use kennel_sys::runtime_dir::{DirError, Hold, RuntimeDir};
use kennel_sys::{Signal, events, tree};

use super::Args;
use super::answer::{Answer, Status};
use super::launch::Ready;
use super::port::{self, Decision, Holder, Who};
use super::record::{self, Record};
use super::startable;

/// What is left of a tree that lost both its guardians gets this long after SIGTERM.
const LEFTOVER_TERM: Duration = Duration::from_secs(1);
/// A warden whose guard was killed takes no longer to end its tree.
const WARDENS: Duration = Duration::from_secs(3);
/// How long an incumbent may take to end, beyond what it may itself.
const INCUMBENT: Duration = Duration::from_secs(60);
/// Between two tries for something that offers no event (rule 10 names a contended lock).
const NAP: Duration = Duration::from_millis(20);

/// How often the place may be removed under a start before something is wrong.
const REMOVED: usize = 3;

/// The user's place, if it can be had.
pub(super) struct Home {
    pub(super) user: RuntimeDir,
    pub(super) trees: RuntimeDir,
    _hold: Hold,
}

impl Home {
    /// Where the place is removed meanwhile, the next one is opened.
    fn open() -> Result<Home, DirError> {
        let mut tries = REMOVED;
        loop {
            let user = RuntimeDir::of_user()?;
            tries -= 1;
            match (user.subdir("trees"), user.hold()) {
                (Ok(trees), Ok(_hold)) => return Ok(Home { user, trees, _hold }),
                (Err(error), _) | (_, Err(error)) if tries == 0 || user.is_at_its_path() => {
                    return Err(error);
                }
                _ => {}
            }
        }
    }

    /// Ends what an earlier start left behind, and waits for what is ending itself: it may hold our port.
    fn clean_up(&self) {
        let _ = tree::end_leftovers(&self.trees, LEFTOVER_TERM);
        let _ = tree::await_orphaned_wardens(&self.trees, WARDENS);
    }
}

/// The place of a start. Without one, nothing tells people that the server runs, and nothing has its log.
fn home_for(args: &Args) -> Result<Option<Home>, Answer> {
    match Home::open() {
        Ok(home) => Ok(Some(home)),
        Err(error) if args.detach => Err(Answer::failed(1, error.to_string())),
        Err(error) => {
            crate::warn(&format!("without a runtime directory: {error}"));
            Ok(None)
        }
    }
}

/// A start that is being prepared.
pub(super) struct Start<'a> {
    args: &'a Args,
    home: Option<Home>,
    name: String,
    cwd: PathBuf,
    sameness: String,
}

impl<'a> Start<'a> {
    pub(super) fn new(args: &'a Args) -> Result<Start<'a>, Answer> {
        let cwd = std::env::current_dir()
            .map_err(|error| Answer::failed(1, format!("no working directory: {error}")))?;
        let home = home_for(args)?;
        let text = |word: &OsString| word.to_string_lossy().into_owned();
        let words: Vec<String> = args.command.iter().map(text).collect();
        let name = args.name.clone();
        Ok(Start {
            home,
            name: name.unwrap_or_else(|| crate::sharing::launcher::name_of(&words)),
            sameness: record::sameness(&args.command, &cwd),
            cwd,
            args,
        })
    }

    /// Makes sure that ports and state are ours to use.
    pub(super) fn prepare(mut self) -> Result<Ready, Answer> {
        if let Some(home) = &self.home {
            home.clean_up();
        }
        let starting = self.take_turns()?;
        let replaced = self.settle_ports()?;
        let (held, legacy) = self.hold_state()?;
        Ok(Ready {
            home: self.home,
            name: self.name,
            cwd: self.cwd,
            sameness: self.sameness,
            starting,
            held,
            legacy,
            replaced,
        })
    }

    /// Of several that want the same port at once, one starts, and the others see it. Where the place is removed
    /// meanwhile, they meet in the next one.
    fn take_turns(&mut self) -> Result<Vec<Lock>, Answer> {
        for _ in 0..REMOVED {
            match self.turns() {
                Err(_) if !self.has_place() => self.home = home_for(self.args)?,
                turns => return turns,
            }
        }
        self.turns()
    }

    fn has_place(&self) -> bool {
        let home = self.home.as_ref();
        home.is_none_or(|home| home.user.is_at_its_path())
    }

    fn turns(&self) -> Result<Vec<Lock>, Answer> {
        let Some(home) = &self.home else {
            return Ok(Vec::new());
        };
        let dir = home.user.subdir("starting");
        let dir = dir.map_err(|error| Answer::failed(1, error.to_string()))?;
        let mut ports = self.args.ports.clone();
        // In one order, or two would wait for each other.
        ports.sort_unstable();
        ports.dedup();
        let deadline = Instant::now() + self.args.ready_timeout;
        let mut locks = Vec::new();
        for port in ports {
            loop {
                match Lock::acquire(&dir, format!("port-{port}"), Mode::Exclusive) {
                    Ok(lock) => break locks.push(lock),
                    Err(LockError::Held { .. }) if Instant::now() < deadline => {
                        let _ = events::sleep(&[], &[], Some(NAP));
                    }
                    Err(error) => {
                        let words =
                            format!("another server is being started for port {port}: {error}");
                        return Err(Answer::failed(1, words));
                    }
                }
            }
        }
        Ok(locks)
    }

    /// Looks who has the ports, and takes the place of whoever may be replaced.
    fn settle_ports(&self) -> Result<Option<u32>, Answer> {
        let json = self.args.json;
        let holders = self.look()?;
        let decided = |holder: &Holder| port::decide(holder.standing, self.args.takeover);
        let Some(gravest) = holders.iter().max_by_key(|holder| decided(holder)) else {
            return Ok(None);
        };
        match (decided(gravest), &gravest.who) {
            (Decision::AlreadyRunning, Who::Guarded { entry, .. }) => {
                Err(Answer::running(entry, Status::AlreadyRunning, json))
            }
            (Decision::TakeOver, Who::Guarded { .. }) => {
                let incumbents = holders.iter().filter_map(|holder| match &holder.who {
                    Who::Guarded { record, .. } => Some(&**record),
                    Who::Foreign(_) => None,
                });
                let incumbents: Vec<&Record> = incumbents.collect();
                self.check_successor(&incumbents)?;
                // That took its time: whoever came meanwhile is somebody (lesson 13).
                let now = self.look()?;
                if let Some(holder) = now.iter().find(|it| decided(it) != Decision::TakeOver) {
                    return Err(Answer::held(holder, json));
                }
                self.replace(&incumbents).map(Some)
            }
            _ => Err(Answer::held(gravest, json)),
        }
    }

    fn look(&self) -> Result<Vec<Holder>, Answer> {
        let living = match &self.home {
            Some(home) => record::living(&home.user),
            None => Vec::new(),
        };
        port::look(&self.args.ports, &living, &self.sameness)
            .map_err(|error| Answer::failed(1, format!("cannot tell who has the port: {error}")))
    }

    /// Nobody is stopped for a successor that cannot start, or that would find its state in use (lesson 34).
    fn check_successor(&self, incumbents: &[&Record]) -> Result<(), Answer> {
        let serves_on = |words: &str| format!("{words}; what runs now is left serving");
        startable::check(&self.args.command)
            .map_err(|error| Answer::failed(error.code, serves_on(&error.words)))?;
        let of_incumbent = |process: &ProcessRef| {
            let mut theirs = incumbents.iter().filter_map(|record| record.process());
            theirs.any(|incumbent| incumbent.identity().same_process(process.identity()))
        };
        for path in &self.args.state {
            let held = kennel_guard::probe_store(path)
                .map_err(|error| Answer::failed(1, serves_on(&error.to_string())))?;
            let by_others = held.iter().find(|held| {
                let holder = held.holder.as_ref();
                !holder.is_some_and(|holder| of_incumbent(&holder.process))
            });
            if let Some(held) = by_others {
                return Err(Answer::failed(1, serves_on(&format!("in use: {held}"))));
            }
        }
        Ok(())
    }

    /// Stops the incumbents, and waits until their ports are free. The pid of the first.
    fn replace(&self, incumbents: &[&Record]) -> Result<u32, Answer> {
        let mut asked = Vec::new();
        for record in incumbents {
            // Gone since we looked: what was wanted.
            let Some(guard) = record.process() else {
                continue;
            };
            let heard = guard.signal(Signal::TERM);
            // One that somebody stopped (SIGSTOP) would not hear that.
            let _ = guard.signal(Signal::CONT);
            asked.push((record, guard, heard));
        }
        let replaced = asked.first().map(|(_, guard, _)| guard.pid());
        let deadline = Instant::now() + INCUMBENT;
        for (record, guard, heard) in asked {
            let left = deadline.saturating_duration_since(Instant::now());
            let ended = heard.and_then(|_| guard.wait(Some(left)));
            if !ended.unwrap_or(false) {
                let key = &record.entry.key;
                let words = format!(
                    "{} ({key}) does not end; see `kennel ps`",
                    record.entry.name
                );
                return Err(Answer::failed(1, words));
            }
        }
        match self.look()?.into_iter().next() {
            Some(holder) => Err(Answer::held(&holder, self.args.json)),
            None => Ok(replaced.unwrap_or_default()),
        }
    }

    fn hold_state(&self) -> Result<(Vec<Held>, Vec<Lock>), Answer> {
        let mut held = Vec::new();
        for path in &self.args.state {
            let store = kennel_guard::hold_store(path, &self.name)
                .map_err(|error| Answer::failed(1, error.to_string()))?;
            match crate::purge::more_than_state(store.path()) {
                // For `kennel purge`, which leaves alone what it does not know: nothing to fail for.
                None => drop(store.declare(&self.name)),
                Some(why) => crate::warn(&format!(
                    "--state {} is held, but is not taken for the server's state, and `kennel purge` will keep it: \
                     {why}; name a directory that holds nothing else",
                    path.display()
                )),
            }
            held.push(store);
        }
        let mut locks = Vec::new();
        for path in &self.args.legacy_lock {
            let lock = legacy::hold(path).map_err(|error| match error {
                LockError::Held { .. } => Answer::failed(
                    1,
                    format!("an earlier release of the server runs: {error}; stop that one first"),
                ),
                other => Answer::failed(1, other.to_string()),
            });
            locks.extend(lock?);
        }
        Ok((held, locks))
    }
}

//! `kennel guard`: a server with ports, bound to its owner, without its help.
//!
//! ```text
//! kennel guard ── warden ── server ── whatever it starts
//!      └─ watches: its owner; once that is gone, connections to its ports
//! ```
//!
//! The server's stdio is ours, handed through. With `--detach` the same is done by a guardian that is nobody's
//! child, and what the server says goes into a log.

mod answer;
mod detach;
mod output;
mod owner;
mod port;
pub(crate) mod record;
mod sessions;
mod startable;
mod watch;

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use kennel_guard::{Held, Owner};
use kennel_sys::lock::{Lock, LockError, Mode, legacy};
use kennel_sys::process::ProcessRef;
use kennel_sys::runtime_dir::{Hold, RuntimeDir};
use kennel_sys::signals::Signals;
use kennel_sys::tree::{self, Ladder, Launch, Tree};
use kennel_sys::{Signal, events};

use answer::{Answer, Status, Voice};
pub(crate) use detach::guardian;
use output::Output;
use port::{Decision, Holder, Takeover, Who};
use record::{Kept, Record};
use sessions::Sessions;
use watch::{Await, Life, PASSED_ON, Stage, Watch};

/// What is left of a tree that lost both its guardians gets this long after SIGTERM.
const LEFTOVER_TERM: Duration = Duration::from_secs(1);
/// A warden whose guard was killed takes no longer to end its tree.
const WARDENS: Duration = Duration::from_secs(3);
/// How long an incumbent may take to end, beyond what it may itself.
const INCUMBENT: Duration = Duration::from_secs(60);
/// Between two tries for something that offers no event (rule 10 names a contended lock).
const NAP: Duration = Duration::from_millis(20);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The process the server is bound to: when it is gone and nobody is connected, the server ends
    /// [default: KENNEL_OWNER_PID, else nobody]
    #[arg(long, value_name = "PID", allow_hyphen_values = true)]
    owner_pid: Option<String>,

    /// A port of the server: who holds it is checked before the start, and only its connections count
    /// [default: every port it listens on]
    #[arg(long = "port", value_name = "P", value_parser = clap::value_parser!(u16).range(1..))]
    ports: Vec<u16>,

    /// How long the owner must be gone, with nobody connected, before the server ends
    #[arg(long, value_name = "D", default_value = "5s", value_parser = crate::duration::parse)]
    grace: Duration,

    /// What `kennel ps` calls it [default: after its command]
    #[arg(long, value_name = "N")]
    name: Option<String>,

    /// Whose place at a port may be taken
    #[arg(long, value_enum, value_name = "WHOSE", default_value = "orphan")]
    takeover: Takeover,

    /// Return when the server listens, and let it go on without us; what it says goes to `kennel logs`
    #[arg(long)]
    detach: bool,

    /// How long the server may take until it listens
    #[arg(long, value_name = "D", default_value = "30s", value_parser = crate::duration::parse)]
    ready_timeout: Duration,

    /// How long the server has to end by itself once it was asked to
    #[arg(long, value_name = "D", default_value = "2s", value_parser = crate::duration::parse)]
    stop_after: Duration,

    /// For programs rather than people
    #[arg(long)]
    json: bool,

    /// A directory or file that only one server may use at a time; held for the server's life
    #[arg(long, value_name = "DIR")]
    state: Vec<PathBuf>,

    /// Where earlier releases of this server kept their lock; held for the server's life if it is there
    #[arg(long, value_name = "FILE")]
    legacy_lock: Vec<PathBuf>,

    /// The server and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn run(args: Args) -> ExitCode {
    if std::env::var_os("KENNEL_OFF").is_some_and(|value| value == "1") {
        return become_the_server(&args.command);
    }
    let owner = match owner::find(args.owner_pid.as_deref()) {
        Ok(owner) => owner,
        Err(error) => {
            crate::fail(&error);
            return ExitCode::from(2);
        }
    };
    match args.detach {
        true => detach::run(owner.as_ref()),
        false => ExitCode::from(serve(args, owner, Voice::Here)),
    }
}

/// Starts the server and guards it, or says why there is nothing to guard. Returns the exit code.
fn serve(args: Args, owner: Option<Owner>, mut voice: Voice) -> u8 {
    match Start::new(&args).and_then(|start| start.prepare()) {
        Ok(ready) => match ready.launch(args, owner, &mut voice) {
            Ok(watch) => watch.run(),
            Err(answer) => tell(&mut voice, &answer),
        },
        Err(answer) => tell(&mut voice, &answer),
    }
}

fn tell(voice: &mut Voice, answer: &Answer) -> u8 {
    voice.tell(answer);
    answer.code
}

/// The user's place, if it can be had.
struct Home {
    user: RuntimeDir,
    trees: RuntimeDir,
    _hold: Hold,
}

impl Home {
    fn open() -> Option<Home> {
        let open = || {
            let user = RuntimeDir::of_user()?;
            let (trees, _hold) = (user.subdir("trees")?, user.hold()?);
            Ok(Home { user, trees, _hold })
        };
        open()
            .map_err(|error: kennel_sys::runtime_dir::DirError| {
                crate::warn(&format!("without a runtime directory: {error}"));
            })
            .ok()
    }

    /// Ends what an earlier start left behind, and waits for what is ending itself: it may hold our port.
    fn clean_up(&self) {
        let _ = tree::end_leftovers(self.trees.as_fd(), LEFTOVER_TERM);
        let deadline = Instant::now() + WARDENS;
        for warden in tree::orphaned_wardens(self.trees.as_fd()).unwrap_or_default() {
            let _ = warden.wait(Some(deadline.saturating_duration_since(Instant::now())));
        }
    }
}

/// A start that is being prepared.
struct Start<'a> {
    args: &'a Args,
    home: Option<Home>,
    name: String,
    cwd: PathBuf,
    sameness: String,
}

/// Nobody is in the way, and nobody will be until the server listens.
struct Ready {
    home: Option<Home>,
    name: String,
    cwd: PathBuf,
    sameness: String,
    starting: Vec<Lock>,
    held: Vec<Held>,
    legacy: Vec<Lock>,
    replaced: Option<u32>,
}

impl<'a> Start<'a> {
    fn new(args: &'a Args) -> Result<Start<'a>, Answer> {
        let cwd = std::env::current_dir()
            .map_err(|error| Answer::failed(1, format!("no working directory: {error}")))?;
        let text = |word: &OsString| word.to_string_lossy().into_owned();
        let words: Vec<String> = args.command.iter().map(text).collect();
        let name = args.name.clone();
        Ok(Start {
            home: Home::open(),
            name: name.unwrap_or_else(|| crate::sharing::launcher::name_of(&words)),
            sameness: record::sameness(&args.command, &cwd),
            cwd,
            args,
        })
    }

    /// Makes sure that ports and state are ours to use.
    fn prepare(self) -> Result<Ready, Answer> {
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

    /// Of several that want the same port at once, one starts, and the others see it.
    fn take_turns(&self) -> Result<Vec<Lock>, Answer> {
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
        let mut replaced = None;
        for record in incumbents {
            // Gone since we looked: what was wanted.
            let Some(guard) = record.process() else {
                continue;
            };
            replaced.get_or_insert(guard.pid());
            let ended = guard
                .signal(Signal::TERM)
                .and_then(|_| guard.wait(Some(INCUMBENT)));
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
            let store = kennel_guard::hold_store(path, &self.name);
            held.push(store.map_err(|error| Answer::failed(1, error.to_string()))?);
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

impl Ready {
    /// Starts the server under its warden.
    fn launch(self, args: Args, owner: Option<Owner>, voice: &mut Voice) -> Result<Watch, Answer> {
        let failed = |what: &str, error: io::Error| Answer::failed(1, format!("{what}: {error}"));
        let detached = matches!(voice, Voice::Away(_));
        let record = self.record(&args, owner.as_ref(), detached);
        let (output, stdio) = self.stdio(detached)?;
        let kept = self.home.as_ref().and_then(|home| {
            let kept = Kept::keep(&home.user, record);
            kept.map_err(|error| crate::warn(&format!("`kennel ps` will not show it: {error}")))
                .ok()
        });
        tree::become_subreaper()
            .map_err(|error| failed("cannot hold a tree of processes", error))?;
        let signals =
            Signals::catch(&PASSED_ON).map_err(|error| failed("cannot catch signals", error))?;
        let life = Life::new(owner, args.grace);
        let tree = self.start(&args, stdio);
        let tree = tree.map_err(|error| failed("the server cannot be started", error))?;
        let awaited = (detached || !args.ports.is_empty()).then(Await::begin);
        Ok(Watch {
            tree,
            signals,
            voice: std::mem::replace(voice, Voice::Here),
            output,
            kept,
            json: args.json,
            name: self.name,
            sessions: Sessions::on(&args.ports),
            named: args.ports,
            stop_after: args.stop_after,
            ready_timeout: args.ready_timeout,
            replaced: self.replaced,
            starting: self.starting,
            _held: self.held,
            _legacy: self.legacy,
            life,
            server: None,
            early: Some(Vec::new()),
            exit: None,
            stage: Stage::Serving,
            awaited,
            listened: false,
        })
    }

    fn start(&self, args: &Args, stdio: [OwnedFd; 3]) -> io::Result<Tree> {
        Launch {
            server: args.command.clone(),
            warden: vec!["/proc/self/exe".into(), "warden".into()],
            stdio,
            env: None,
            cwd: None,
            // Its stdin is not ours to close: the first thing that asks it to end is SIGTERM.
            ladder: Ladder {
                after_eof: Duration::ZERO,
                after_term: args.stop_after,
            },
            records: self.home.as_ref().map(|home| home.trees.as_fd()),
        }
        .start()
    }

    fn record(&self, args: &Args, owner: Option<&Owner>, detached: bool) -> Record {
        let (identity, gone) = match owner {
            Some(Owner::Alive(process)) => (Some(*process.identity()), false),
            Some(Owner::Gone) => (None, true),
            None => (None, false),
        };
        let pid = identity.map(|identity| identity.pid());
        Record {
            entry: record::entry(&self.name, &args.command, &self.cwd, pid),
            sameness: self.sameness.clone(),
            owner: identity.map(|identity| identity.to_string()),
            owner_was_gone: gone,
            ports: args.ports.clone(),
            grace_ms: u64::try_from(args.grace.as_millis()).unwrap_or(u64::MAX),
            program: startable::stamps(&args.command),
            detached,
            ended: None,
        }
    }

    /// Our own stdio, or nothing and a log.
    fn stdio(&self, detached: bool) -> Result<(Option<Output>, [OwnedFd; 3]), Answer> {
        let failed =
            |error: io::Error| Answer::failed(1, format!("no stdio for the server: {error}"));
        if !detached {
            let stdio = [
                ours(io::stdin().as_fd()),
                ours(io::stdout().as_fd()),
                ours(io::stderr().as_fd()),
            ];
            let [stdin, stdout, stderr] = stdio;
            let all = stdin.and_then(|stdin| Ok([stdin, stdout?, stderr?]));
            return Ok((None, all.map_err(failed)?));
        }
        let home = self.home.as_ref().ok_or_else(|| {
            Answer::failed(1, "--detach needs a runtime directory for the server's log")
        })?;
        let dir =
            record::place(&home.user).map_err(|error| Answer::failed(1, error.to_string()))?;
        record::clear(&dir);
        let (output, [stdout, stderr]) =
            Output::new(&dir).map_err(|words| Answer::failed(1, words))?;
        let stdin = null().map_err(failed)?;
        Ok((Some(output), [stdin, stdout, stderr]))
    }
}

fn ours(fd: std::os::fd::BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // One that we were started without is nothing to the server, too.
    fd.try_clone_to_owned().or_else(|_| null())
}

fn null() -> io::Result<OwnedFd> {
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null");
    file.map(OwnedFd::from)
}

/// As if Kennel were not there.
fn become_the_server(command: &[OsString]) -> ExitCode {
    let error = Command::new(&command[0]).args(&command[1..]).exec();
    let not_found = error.kind() == io::ErrorKind::NotFound;
    crate::fail(&format!("{}: {error}", Path::new(&command[0]).display()));
    ExitCode::from(if not_found { 127 } else { 126 })
}

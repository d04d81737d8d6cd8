//! A newer build of Kennel is there: the daemon becomes it, and stays the process that it is.
//!
//! Its clients say which build they are. If one is newer than we are (never the same, never older: two versions do not
//! fight), and it is as unconfined as we are, its program is looked at and asked whether it can go on with our state; then, at a quiet moment, we
//! become it by an exec, with all descriptors and [all state](super::carried). Nobody's connection, server or lock
//! ends by that. A program that is not fit is not asked again until it has changed, and the log says why.
//!
//! Quiet means that nobody waits for anything. That is preferred, for whoever waits would lose most if the new
//! program failed; but a call in flight is carried like everything else, so a moment that never comes is not
//! waited for. While long lines are held, it is: all that is held is written down and read back, which takes several times
//! its memory, and nobody is served meanwhile.

use std::cell::{Cell, RefCell};
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::rc::Rc;
use std::time::Duration;

use kennel_core::engine::daemon::HandoverWait;
use kennel_core::hello::{Build, ClientHello};
use kennel_core::time::Moment;
use kennel_sys::handover;
use kennel_sys::process::ProcessRef;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use super::carried::{Carried, FORMAT, READS};
use super::daemon_state::DaemonState;
use super::tasks::{Descriptor, Notify, first_of, moments, others_first};
use super::watch;
use crate::shim::lines::max_line;
use crate::this_build;

/// How long a program may take to say whether it is fit.
const CHECK: Duration = Duration::from_secs(10);
/// No answer of a check is longer.
const LONGEST_ANSWER: usize = 4096;

/// What `kennel daemon --check` answers.
#[derive(Debug, Serialize, Deserialize)]
struct Fitness {
    /// The text of a [`Build`].
    build: String,
    /// The formats it can go on with.
    reads: Vec<u32>,
}

/// Where the daemon stands with newer builds.
#[derive(Debug, Default)]
pub(super) struct Upgrade {
    /// The newest that a client came with.
    wish: RefCell<Option<(Build, PathBuf)>>,
    wished: Notify,
    /// A program is fit, and a moment is waited for.
    waiting: Cell<bool>,
    moment: Notify,
    /// Programs that were not fit.
    refused: RefCell<Vec<Program>>,
    /// The process that is asked whether it is fit: no stray.
    pub(super) asked: Cell<Option<u32>>,
}

/// A program's file, as it was when it was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Program {
    dev: u64,
    ino: u64,
    size: u64,
    changed: (i64, i64),
}

impl Upgrade {
    /// A client is there: is its build newer than ours? `may_lend` tells whether the client's program may be opened and
    /// run; it is asked last, for it costs most.
    pub(super) fn consider(&self, hello: &ClientHello, may_lend: impl FnOnce() -> bool) {
        let (Some(ours), Ok(theirs)) = (this_build::this(), hello.build.parse::<Build>()) else {
            return;
        };
        let program = PathBuf::from(OsStr::from_bytes(hello.program.as_bytes()));
        let mut wish = self.wish.borrow_mut();
        let is_newest = wish.as_ref().is_none_or(|(newest, _)| theirs > *newest);
        if theirs > ours && is_newest && program.is_absolute() && may_lend() {
            *wish = Some((theirs, program));
            self.wished.notify_one();
        }
    }

    /// Something happened: it may be a good moment.
    pub(super) fn stir(&self) {
        if self.waiting.get() {
            self.moment.notify_one();
        }
    }

    /// Waits until something happens.
    async fn news(&self) {
        self.waiting.set(true);
        self.moment.notified().await;
    }

    async fn wished(&self) -> PathBuf {
        loop {
            if let Some((_, program)) = self.wish.take() {
                return program;
            }
            self.wished.notified().await;
        }
    }
}

/// Becomes what newer clients come with.
pub(super) async fn attend(daemon: Rc<DaemonState>) {
    loop {
        let path = daemon.upgrade.wished().await;
        let looked = Candidate::open(&path);
        let Some(why) = (match looked {
            Ok(candidate) => candidate.take_over(&daemon).await,
            Err(why) => Some(why),
        }) else {
            continue;
        };
        daemon.log.line(format_args!(
            "stays {}, not {}: {why}",
            this_build::text(),
            path.display()
        ));
    }
}

/// A program that may be fit.
struct Candidate {
    file: File,
    meta: Metadata,
    mark: Program,
}

impl Candidate {
    fn open(path: &Path) -> Result<Candidate, String> {
        let opened = File::options()
            .read(true)
            .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
            .open(path);
        let file = opened.map_err(|error| format!("it cannot be opened: {error}"))?;
        let meta = file.metadata();
        let meta = meta.map_err(|error| format!("it cannot be looked at: {error}"))?;
        let mark = Program {
            dev: meta.dev(),
            ino: meta.ino(),
            size: meta.size(),
            changed: (meta.ctime(), meta.ctime_nsec()),
        };
        Ok(Candidate { file, meta, mark })
    }

    /// Whether anybody else could have made it what it is (rule 9).
    fn is_trusted(&self) -> Result<(), String> {
        let (mode, uid) = (self.meta.mode() & 0o7777, self.meta.uid());
        let me = rustix::process::geteuid().as_raw();
        if !self.meta.is_file() {
            Err("it is no file".into())
        } else if uid != me && uid != 0 {
            Err(format!(
                "it belongs to uid {uid}, neither to us ({me}) nor to root"
            ))
        } else if mode & 0o022 != 0 {
            Err(format!(
                "others can write to it (mode {mode:o}); `chmod go-w` it"
            ))
        } else {
            Ok(())
        }
    }

    /// Becomes it, and returns only if that is not to be; why, unless it was said before.
    async fn take_over(self, daemon: &Rc<DaemonState>) -> Option<String> {
        if daemon.upgrade.refused.borrow().contains(&self.mark) {
            return None;
        }
        wait_for(daemon, HandoverWait::new(daemon.now()), |_| true).await;
        let why = match self.is_fit(daemon).await {
            Ok(build) => {
                daemon.log.line(format_args!(
                    "{build} is there: becomes it at a quiet moment"
                ));
                loop {
                    moment(daemon).await;
                    match self.become_it(daemon, &build) {
                        Attempt::NotNow => daemon.upgrade.news().await,
                        Attempt::Failed(error) => break format!("it cannot be run: {error}"),
                    }
                }
            }
            Err(why) => why,
        };
        daemon.upgrade.refused.borrow_mut().push(self.mark);
        Some(why)
    }

    /// Asks it whether it can go on with what we know now.
    async fn is_fit(&self, daemon: &DaemonState) -> Result<Build, String> {
        self.is_trusted()?;
        let state = Carried::pack(daemon)
            .map(|carried| carried.written())
            .transpose();
        let state = state.map_err(|error| format!("the state cannot be written down: {error}"))?;
        let (heard, answer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(|error| format!("it cannot be asked: {error}"))?;
        let mut command = Command::new(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        command
            .arg0("kennel")
            .args(["daemon", "--check"])
            .stdin(state.map_or_else(Stdio::null, Stdio::from))
            .stdout(answer)
            .stderr(Stdio::null());
        let child = command.spawn();
        let mut child = child.map_err(|error| format!("it cannot be run: {error}"))?;
        // Its end of the pipe.
        drop(command);
        daemon.upgrade.asked.set(Some(child.id()));
        let process = ProcessRef::open(child.id());
        let heard = moments::within(CHECK, all_of(heard)).await;
        // One that has closed its stdout is about to end; one that has not is not waited for.
        let in_time = match (&heard, &process) {
            (None, _) => false,
            (Some(_), Err(_)) => true,
            (Some(_), Ok(process)) => {
                let end = watch::end_of(process, daemon.sweep);
                moments::within(CHECK, end).await.is_some()
            }
        };
        if !in_time {
            let _ = child.kill();
        }
        let status = child.wait();
        daemon.upgrade.asked.set(None);
        let heard = heard.ok_or_else(|| format!("it did not answer within {CHECK:?}"))?;
        let heard = heard.map_err(|error| format!("it cannot be heard: {error}"))?;
        let said = String::from_utf8_lossy(&heard);
        if !status.is_ok_and(|status| status.success()) {
            return Err(format!("its check failed: {}", said.trim_end()));
        }
        let fitness: Fitness = serde_json::from_slice(&heard)
            .map_err(|_| format!("its check says {:?}", said.trim_end()))?;
        if !fitness.reads.contains(&FORMAT) {
            let reads = fitness.reads;
            return Err(format!(
                "it reads states of format {reads:?}, and ours is {FORMAT}"
            ));
        }
        match (fitness.build.parse::<Build>(), this_build::this()) {
            (Ok(build), Some(ours)) if build > ours => Ok(build),
            _ => Err(format!("it is {}, which is not newer", fitness.build)),
        }
    }

    /// Returns only if it did not work: then all is as before.
    fn become_it(&self, daemon: &DaemonState, build: &Build) -> Attempt {
        handover::hold_signals();
        let attempt = self.try_become_it(daemon, build);
        handover::hear_signals();
        attempt
    }

    fn try_become_it(&self, daemon: &DaemonState, build: &Build) -> Attempt {
        // Somebody asks for the end: it would be forgotten.
        if is_readable(&daemon.signals) {
            return Attempt::NotNow;
        }
        let Some(carried) = Carried::pack(daemon) else {
            return Attempt::NotNow;
        };
        let state = match carried.written() {
            Ok(state) => state,
            Err(error) => return Attempt::Failed(error),
        };
        daemon.log.line(format_args!(
            "becomes {build}, with {} clients and {} servers",
            carried.clients.len(),
            carried.stations.len()
        ));
        let number = state.as_raw_fd();
        let mut handed = carried.descriptors();
        handed.push(number);
        let (number, key) = (number.to_string(), format!("key={}", carried.key));
        let words = ["kennel", "daemon", "--resume", &number, &key];
        let words: Vec<&OsStr> = words.iter().map(OsStr::new).collect();
        Attempt::Failed(handover::exec(self.file.as_fd(), &words, &handed))
    }
}

enum Attempt {
    /// Something is in the way that passes.
    NotNow,
    Failed(io::Error),
}

/// Waits for a moment that is good enough.
async fn moment(daemon: &DaemonState) {
    let wait = HandoverWait::new(daemon.now());
    wait_for(daemon, wait, |now| {
        daemon.may_hand_over() && wait.is_quiet(&daemon.engine.borrow(), now)
    })
    .await;
}

/// Waits for a moment at which little is held, and that is good.
async fn wait_for(daemon: &DaemonState, wait: HandoverWait, is_good: impl Fn(Moment) -> bool) {
    let upgrade = &daemon.upgrade;
    loop {
        let now = daemon.now();
        if is_good(now) && wait.is_light(daemon.carried_bytes(), max_line(), now) {
            break;
        }
        let timeout = wait.next_timeout(now);
        first_of! {
            () = upgrade.news() => {},
            () = moments::until(timeout.map(|at| daemon.instant(at))) => {},
        }
        // What led here is followed by more of the same, often at once: it is done first.
        others_first().await;
    }
    upgrade.waiting.set(false);
}

fn is_readable(fd: impl AsFd) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

async fn all_of(pipe: OwnedFd) -> io::Result<Vec<u8>> {
    rustix::io::ioctl_fionbio(&pipe, true)?;
    let pipe = Descriptor::of_input(pipe)?;
    let mut answer = Vec::with_capacity(LONGEST_ANSWER);
    while answer.len() < LONGEST_ANSWER {
        let room = LONGEST_ANSWER - answer.len();
        let mut part = vec![0; room];
        let count = pipe
            .read(|| room, |pipe| Ok(rustix::io::read(pipe, &mut part)?))
            .await?;
        if count == 0 {
            break;
        }
        answer.extend_from_slice(&part[..count]);
    }
    Ok(answer)
}

/// `kennel daemon --check`: says on stdout whether this program can go on with the state on its stdin.
#[expect(clippy::print_stdout, reason = "an older daemon asks")]
pub(super) fn check() -> ExitCode {
    let mut state = Vec::new();
    let read = io::stdin().read_to_end(&mut state);
    let understood = match read {
        // Asked without one: by its formats alone.
        Ok(0) | Err(_) => Ok(()),
        Ok(_) => Carried::read(&state[..]).map(drop),
    };
    match understood {
        Ok(()) => {
            let fitness = Fitness {
                build: this_build::text(),
                reads: READS.to_vec(),
            };
            let text = serde_json::to_string(&fitness).expect("strings and numbers have a text");
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            println!("{why}");
            ExitCode::FAILURE
        }
    }
}

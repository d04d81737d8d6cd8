//! Replaces the daemon's program by a newer build; the process stays.
//!
//! Clients tell their build. If one is newer than the daemon's (never the same, never older: two versions do not fight) and
//! as unconfined as the daemon, its program is asked whether it can read the daemon's [snapshot](super::snapshot). If so,
//! the daemon executes it at a quiet moment, with all descriptors and the snapshot. No connection, server or lock ends by
//! that. A program that fails the check is not asked again until its file has changed, and the log says why.
//!
//! A moment is quiet if no request is pending. It is preferred, because pending requests would be lost if the new program
//! failed; but a request in flight is in the snapshot like everything else, so the wait is bounded. While long lines are
//! held, the daemon waits longer: to write and read the snapshot takes several times its memory, and nobody is served
//! meanwhile.

use std::cell::{Cell, RefCell};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, PipeReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use kennel_core::engine::daemon::{CheckAnswer, HandoverWait};
use kennel_core::hello::{Build, ClientHello};
use kennel_sys::events::is_readable;
use kennel_sys::fs::{FileFacts, FileId, open_without_waiting};
use kennel_sys::handover;
use kennel_sys::io::{Exit, Interest, Source, number_of};
use kennel_sys::process::ProcessRef;
use kennel_sys::stdio::set_nonblocking;
use kennel_sys::text::os_string;
use kennel_sys::user::UserId;

use super::daemon_state::DaemonState;
use super::origin::Origin;
use super::run_queue::{RunQueue, Runnable};
use super::snapshot::{FORMAT, READABLE_FORMATS, Snapshot};
use super::timers::Timer;
use crate::lines::max_line;
use crate::start_error::is_shortage;
use crate::this_build;

/// How long a program may take for its check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum bytes of a check's answer.
const MAX_ANSWER: usize = 4096;

/// How far the daemon is with newer builds.
#[derive(Debug, Default)]
pub(super) struct Upgrade {
    /// The newest build that a client came with, and its program.
    newest: RefCell<Option<(Build, PathBuf)>>,
    stage: RefCell<UpgradeStage>,
    /// Waiting until few enough requests are pending: any event may lead to that.
    waiting: Cell<bool>,
    /// Programs that failed the check.
    refused: RefCell<Vec<ProgramFile>>,
    /// The pid of the check: it is no stray.
    pub(super) checking: Cell<Option<u32>>,
}

/// The progress of an upgrade to one program.
#[derive(Debug, Default)]
enum UpgradeStage {
    #[default]
    Idle,
    /// The check begins when little memory is held.
    BeforeCheck(Candidate, HandoverWait),
    Checking(Candidate, Check),
    /// The check succeeded: waits until few enough requests are pending.
    Ready(Candidate, Build, HandoverWait),
}

/// The next stage.
enum Next {
    /// Go on with it now.
    UpgradeStage(UpgradeStage),
    /// Go on with it at the next event.
    Wait(UpgradeStage),
}

/// A program's file, to recognise it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProgramFile {
    id: FileId,
    size: u64,
    changed: (i64, i64),
}

impl Upgrade {
    /// Notes the client's build if it is newer. `may_offer`: whether the client's program may be opened and run. It is
    /// called last, because it costs most.
    pub(super) fn offer_build(
        &self,
        hello: &ClientHello,
        run_queue: &RunQueue,
        may_offer: impl FnOnce() -> bool,
    ) {
        let (Some(ours), Ok(theirs)) = (this_build::this(), hello.build.parse::<Build>()) else {
            return;
        };
        let program = PathBuf::from(os_string(hello.program.as_bytes()));
        let mut newest = self.newest.borrow_mut();
        let is_newest = newest.as_ref().is_none_or(|(build, _)| theirs > *build);
        if theirs > ours && is_newest && program.is_absolute() && may_offer() {
            *newest = Some((theirs, program));
            run_queue.push(Runnable::Upgrade);
        }
    }

    /// Checks again after an event, if an upgrade waits until few enough requests are pending.
    pub(super) fn recheck(&self, run_queue: &RunQueue) {
        if self.waiting.get() {
            run_queue.push(Runnable::Upgrade);
        }
    }
}

/// Goes on with the upgrade.
pub(super) fn run(daemon: &DaemonState) {
    let upgrade = &daemon.upgrade;
    upgrade.waiting.set(false);
    loop {
        let stage = upgrade.stage.take();
        match stage.advance(daemon) {
            Next::UpgradeStage(stage) => drop(upgrade.stage.replace(stage)),
            Next::Wait(stage) => {
                upgrade.stage.replace(stage);
                return;
            }
        }
    }
}

/// Handles the timer: the check took too long, or waiting is over.
pub(super) fn on_timer(daemon: &DaemonState) {
    if let UpgradeStage::Checking(_, check) = &mut *daemon.upgrade.stage.borrow_mut() {
        check.is_over = check.is_over || Instant::now() >= check.until;
    }
    run(daemon);
}

/// Handles output or the end of output of the check.
pub(super) fn on_answer(daemon: &DaemonState) {
    if let UpgradeStage::Checking(_, check) = &mut *daemon.upgrade.stage.borrow_mut() {
        check.read();
    }
    run(daemon);
}

/// Handles the exit of the check.
pub(super) fn on_exit(daemon: &DaemonState) {
    if let UpgradeStage::Checking(_, check) = &mut *daemon.upgrade.stage.borrow_mut() {
        check.exit = None;
        check.has_exited = true;
    }
    run(daemon);
}

impl UpgradeStage {
    fn advance(self, daemon: &DaemonState) -> Next {
        match self {
            UpgradeStage::Idle => open_newest(daemon),
            UpgradeStage::BeforeCheck(candidate, mut wait) => {
                if !is_good_moment(daemon, &mut wait, |_| true) {
                    return wait_for(daemon, &wait, UpgradeStage::BeforeCheck(candidate, wait));
                }
                match candidate.start_check(daemon) {
                    Ok(check) => Next::UpgradeStage(UpgradeStage::Checking(candidate, check)),
                    Err(Failure::Unfit(why)) => candidate.refuse(daemon, &why),
                    Err(Failure::Shortage(why)) => {
                        log_refusal(daemon, &candidate.path, &why);
                        wait.shortage(daemon.now());
                        wait_for(daemon, &wait, UpgradeStage::BeforeCheck(candidate, wait))
                    }
                }
            }
            UpgradeStage::Checking(candidate, mut check) => {
                if !check.is_done(daemon) {
                    return Next::Wait(UpgradeStage::Checking(candidate, check));
                }
                match check.outcome(daemon) {
                    Ok(build) => {
                        daemon.log.line(format_args!(
                            "newer build {build} found: it replaces this program when no request is pending"
                        ));
                        let wait = HandoverWait::new(daemon.now());
                        Next::UpgradeStage(UpgradeStage::Ready(candidate, build, wait))
                    }
                    Err(why) => candidate.refuse(daemon, &why),
                }
            }
            UpgradeStage::Ready(candidate, build, mut wait) => {
                let is_quiet = |wait: &HandoverWait| {
                    let is_quiet = wait.is_quiet(&daemon.engine.borrow(), daemon.now());
                    is_quiet && daemon.may_hand_over()
                };
                if is_good_moment(daemon, &mut wait, is_quiet) {
                    match candidate.exec(daemon, &build) {
                        Exec::Temporary => wait.not_yet(Duration::ZERO, daemon.now()),
                        Exec::Failed(Failure::Unfit(why)) => return candidate.refuse(daemon, &why),
                        Exec::Failed(Failure::Shortage(why)) => {
                            log_refusal(daemon, &candidate.path, &why);
                            wait.shortage(daemon.now());
                        }
                    }
                }
                wait_for(daemon, &wait, UpgradeStage::Ready(candidate, build, wait))
            }
        }
    }
}

/// Opens the newest program that a client came with.
fn open_newest(daemon: &DaemonState) -> Next {
    let Some((build, path)) = daemon.upgrade.newest.take() else {
        return Next::Wait(UpgradeStage::Idle);
    };
    match Candidate::open(&path) {
        Ok(candidate)
            if daemon
                .upgrade
                .refused
                .borrow()
                .contains(&candidate.program_file) =>
        {
            Next::UpgradeStage(UpgradeStage::Idle)
        }
        Ok(candidate) => {
            let wait = HandoverWait::new(daemon.now());
            Next::UpgradeStage(UpgradeStage::BeforeCheck(candidate, wait))
        }
        Err(Failure::Unfit(why)) => {
            log_refusal(daemon, &path, &why);
            Next::UpgradeStage(UpgradeStage::Idle)
        }
        Err(Failure::Shortage(why)) => {
            log_refusal(daemon, &path, &why);
            daemon.upgrade.newest.replace(Some((build, path)));
            let mut wait = HandoverWait::new(daemon.now());
            wait.shortage(daemon.now());
            set_timer(daemon, &wait);
            Next::Wait(UpgradeStage::Idle)
        }
    }
}

/// Whether the snapshot may be written now: the time is right, and little memory is held. If not, the memory is not
/// counted again at once, because clients wait while it is counted.
fn is_good_moment(
    daemon: &DaemonState,
    wait: &mut HandoverWait,
    is_good: impl Fn(&HandoverWait) -> bool,
) -> bool {
    if !wait.is_due(daemon.now()) || !is_good(wait) {
        return false;
    }
    let began = Instant::now();
    let is_stale = |began| wait.drops_half_line(began, daemon.now());
    let is_light =
        is_small(daemon, wait) || daemon.drop_half_lines(is_stale) && is_small(daemon, wait);
    if !is_light {
        wait.not_yet(began.elapsed(), daemon.now());
    }
    is_light
}

/// Whether the snapshot is small enough to be written now. It is made and counted only if a cheap estimate passes: a byte
/// may take six when it is written.
fn is_small(daemon: &DaemonState, wait: &HandoverWait) -> bool {
    let max_bytes = wait.max_bytes(max_line(), daemon.now());
    daemon.snapshot_bytes() <= max_bytes
        && Snapshot::pack(daemon).is_none_or(|snapshot| snapshot.is_within(max_bytes))
}

/// Waits for the next event, or for the end of the wait.
fn wait_for(daemon: &DaemonState, wait: &HandoverWait, stage: UpgradeStage) -> Next {
    daemon.upgrade.waiting.set(true);
    set_timer(daemon, wait);
    Next::Wait(stage)
}

fn set_timer(daemon: &DaemonState, wait: &HandoverWait) {
    let timeout = wait.next_timeout(daemon.now());
    let at = timeout.map(|at| daemon.instant(at));
    daemon.set_timer(Timer::Upgrade, at);
}

fn log_refusal(daemon: &DaemonState, path: &Path, why: &str) {
    daemon.log.line(format_args!(
        "stays {}, not {}: {why}",
        this_build::text(),
        path.display()
    ));
}

/// Why a newer program does not replace this one. The reasons are for people.
enum Failure {
    /// It never will, unless its file changes.
    Unfit(String),
    /// A temporary shortage, for example of descriptors or memory: a later attempt may succeed.
    Shortage(String),
}

impl Failure {
    fn of(what: &str, error: &io::Error) -> Failure {
        let why = format!("{what}: {error}");
        match error.raw_os_error().is_some_and(is_shortage) {
            true => Failure::Shortage(why),
            false => Failure::Unfit(why),
        }
    }
}

/// A program that may be newer.
#[derive(Debug)]
struct Candidate {
    path: PathBuf,
    file: File,
    facts: FileFacts,
    program_file: ProgramFile,
}

impl Candidate {
    fn open(path: &Path) -> Result<Candidate, Failure> {
        let opened = open_without_waiting(path);
        let file = opened.map_err(|error| Failure::of("its program cannot be opened", &error))?;
        let facts = FileFacts::of(&file);
        let facts = facts.map_err(|error| Failure::of("its metadata cannot be read", &error))?;
        let program_file = ProgramFile {
            id: facts.id(),
            size: facts.size(),
            changed: facts.changed_at(),
        };
        let path = path.to_owned();
        Ok(Candidate {
            path,
            file,
            facts,
            program_file,
        })
    }

    /// Whether only this user or root can have written it (rule 9).
    fn is_trusted(&self) -> Result<(), String> {
        let (mode, owner) = (self.facts.mode(), self.facts.owner());
        let me = UserId::current().number();
        if !self.facts.is_file() {
            Err("it is not a regular file".into())
        } else if !owner.is_current() && !owner.is_root() {
            Err(format!(
                "it belongs to {owner}, neither to this user ({me}) nor to root"
            ))
        } else if mode & 0o022 != 0 {
            Err(format!(
                "others can write to it (mode {mode:o}); `chmod go-w` it"
            ))
        } else {
            Ok(())
        }
    }

    /// Refuses it until its file has changed.
    fn refuse(self, daemon: &DaemonState, why: &str) -> Next {
        daemon.set_timer(Timer::Upgrade, None);
        daemon.upgrade.refused.borrow_mut().push(self.program_file);
        log_refusal(daemon, &self.path, why);
        Next::UpgradeStage(UpgradeStage::Idle)
    }

    /// Starts the check with a snapshot of now.
    fn start_check(&self, daemon: &DaemonState) -> Result<Check, Failure> {
        self.is_trusted().map_err(Failure::Unfit)?;
        let state = Snapshot::pack(daemon)
            .map(|snapshot| snapshot.written())
            .transpose();
        let state = state.map_err(|error| Failure::of("the snapshot cannot be written", &error))?;
        let cannot_ask = |error| Failure::of("its check cannot be started", &error);
        let (answer_pipe, answer) = io::pipe().map_err(cannot_ask)?;
        set_nonblocking(&answer_pipe).map_err(cannot_ask)?;
        let token = Origin::CheckAnswer.token();
        let answer_pipe = Source::with(&daemon.reactor, answer_pipe, token, Interest::READ);
        let answer_pipe = answer_pipe.map_err(cannot_ask)?;
        let mut command = handover::command_of(&self.file, "kennel");
        command
            .args(["daemon", "--check"])
            .stdin(state.map_or_else(Stdio::null, Stdio::from))
            .stdout(answer)
            .stderr(Stdio::null());
        let child = command.spawn();
        let child = child.map_err(|error| Failure::of(CANNOT_RUN, &error))?;
        daemon.upgrade.checking.set(Some(child.id()));
        let until = Instant::now() + CHECK_TIMEOUT;
        daemon.set_timer(Timer::Upgrade, Some(until));
        Ok(Check {
            child,
            answer_pipe: Some(answer_pipe),
            answer: Ok(Vec::with_capacity(MAX_ANSWER)),
            process: None,
            exit: None,
            has_exited: false,
            is_over: false,
            until,
        })
    }

    /// Executes it. Returns only if that failed: then all is as before.
    fn exec(&self, daemon: &DaemonState, build: &Build) -> Exec {
        handover::block_end_signals();
        let attempt = self.try_exec(daemon, build);
        handover::unblock_end_signals();
        attempt
    }

    fn try_exec(&self, daemon: &DaemonState, build: &Build) -> Exec {
        // A signal asks the daemon to stop: the new program would not know.
        if is_readable(&daemon.signals) {
            return Exec::Temporary;
        }
        let Some(snapshot) = Snapshot::pack(daemon) else {
            return Exec::Temporary;
        };
        let state = match snapshot.written() {
            Ok(state) => state,
            Err(error) => {
                return Exec::Failed(Failure::of("the snapshot cannot be written", &error));
            }
        };
        daemon.log.line(format_args!(
            "becomes {build}, with {} clients and {} servers",
            snapshot.clients.len(),
            snapshot.slots.len()
        ));
        let number = number_of(&state);
        let mut handed = snapshot.descriptors();
        handed.push(number);
        let (number, key) = (number.to_string(), format!("key={}", snapshot.key));
        let words = ["kennel", "daemon", "--resume", &number, &key];
        let words: Vec<&OsStr> = words.iter().map(OsStr::new).collect();
        let error = handover::exec(&self.file, &words, &handed);
        Exec::Failed(Failure::of(CANNOT_RUN, &error))
    }
}

const CANNOT_RUN: &str = "it cannot be executed";

enum Exec {
    /// A temporary obstacle.
    Temporary,
    Failed(Failure),
}

/// A running check.
#[derive(Debug)]
struct Check {
    child: Child,
    /// The pipe of its answer, until all is read.
    answer_pipe: Option<Source<PipeReader>>,
    answer: io::Result<Vec<u8>>,
    /// It has answered and closes its output: its process, to wait for the exit.
    process: Option<Rc<ProcessRef>>,
    exit: Option<Source<Exit>>,
    has_exited: bool,
    /// It had [`CHECK_TIMEOUT`] for its answer, or for its exit.
    is_over: bool,
    until: Instant,
}

impl Check {
    /// Reads more of its answer.
    fn read(&mut self) {
        let (Some(answer_pipe), Ok(answer)) = (&self.answer_pipe, &mut self.answer) else {
            return;
        };
        let mut part = vec![0; MAX_ANSWER - answer.len()];
        match (&**answer_pipe).read(&mut part) {
            Ok(count) => {
                answer.extend_from_slice(&part[..count]);
                if count == 0 || answer.len() == MAX_ANSWER {
                    self.answer_pipe = None;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                self.answer = Err(error);
                self.answer_pipe = None;
            }
        }
    }

    /// Whether it is over. After the end of its output it is expected to exit; before that, its exit is not waited for.
    fn is_done(&mut self, daemon: &DaemonState) -> bool {
        if self.is_over || self.has_exited && self.answer_pipe.is_none() {
            return true;
        }
        if self.answer_pipe.is_some() {
            return false;
        }
        if self.process.is_none() {
            let Ok(process) = ProcessRef::open(self.child.id()) else {
                return true;
            };
            let process = Rc::new(process);
            self.exit = daemon.watch_exit(&process, Origin::CheckExit);
            self.process = Some(process);
            self.until = Instant::now() + CHECK_TIMEOUT;
            daemon.set_timer(Timer::Upgrade, Some(self.until));
        }
        if self.exit.is_none() {
            // Its exit is not reported.
            self.has_exited = !self.process.as_ref().is_some_and(|it| it.is_alive());
            let check_at = Instant::now() + daemon.sweep.min(Duration::from_millis(100));
            daemon.set_timer(Timer::Upgrade, Some(check_at.min(self.until)));
        }
        self.has_exited
    }

    /// The build of the checked program if it can replace the daemon; otherwise the reason why not.
    fn outcome(mut self, daemon: &DaemonState) -> Result<Build, String> {
        daemon.set_timer(Timer::Upgrade, None);
        if self.is_over {
            let _ = self.child.kill();
        }
        let status = self.child.wait();
        daemon.upgrade.checking.set(None);
        if self.answer_pipe.is_some() {
            return Err(format!("it did not answer within {CHECK_TIMEOUT:?}"));
        }
        let answer = self.answer;
        let answer = answer.map_err(|error| format!("its answer cannot be read: {error}"))?;
        let success = status.is_ok_and(|status| status.success());
        CheckAnswer::accepted_build(&answer, success, FORMAT, this_build::this())
    }
}

/// `kennel daemon --check`: prints whether this program can continue with the snapshot on stdin.
#[expect(clippy::print_stdout, reason = "an older daemon asks")]
pub(super) fn check() -> ExitCode {
    let understood = Snapshot::read_if_any(io::stdin().lock()).map(drop);
    match understood {
        Ok(()) => {
            let answer = CheckAnswer {
                build: this_build::text(),
                reads: READABLE_FORMATS.to_vec(),
            };
            let text =
                serde_json::to_string(&answer).expect("strings and numbers can be serialized");
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            println!("{why}");
            ExitCode::FAILURE
        }
    }
}

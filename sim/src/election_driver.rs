//! The driver of `kennel_core::election` on the simulated kernel.

use std::time::Duration;

use kennel_core::election::{
    ConnectResult, DaemonReply, Election, ElectionResult, KnownDaemon, LockResult, Patience, Reply,
    StartResult, Step, StepResult, StuckCheck, StuckWatch, SuspectCheck, Target,
};
use kennel_core::hello::Control;
use kennel_core::time::Moment;

use crate::coverage::Situation;
use crate::daemon_connection::DaemonConnection;
use crate::kernel::{
    self, DialResult, Kernel, NewProcess, Pid, PipeId, ReadResult, Shortage, Status,
};
use crate::lines::{Inbox, Outbox};

/// The same values as in `kennel run`.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(5);
const REPORT_MARGIN: Duration = Duration::from_millis(250);
const CHECK_EVERY: Duration = Duration::from_millis(50);
/// Longer than an election takes to notice it.
const STUCK_TIME: Duration = Duration::from_secs(19);
const START_CHECK_EVERY: Duration = Duration::from_millis(250);

pub(crate) struct ElectionDriver {
    election: Election,
    /// The shim that elects.
    shim: Pid,
    hello: Vec<u8>,
    /// A line of the session that is sent together with the hello.
    handshake: Option<Vec<u8>>,
    connected_to: Option<kernel::End>,
    /// Input of the connection.
    from: Inbox,
    to: Outbox,
    suspect: Option<Pid>,
    watch: Option<(Pid, StuckWatch)>,
    start_watch: StartWatch,
    wait: Wait,
}

/// What the election waits for.
enum Wait {
    /// Its turn.
    Nothing,
    Time(Moment),
    /// A daemon's reply, and when to check it next.
    Reply(StuckWatch, Moment),
    /// The report of a daemon that starts.
    Report {
        daemon: Pid,
        pipe: PipeId,
        deadline: Moment,
    },
    End(Pid, Moment),
}

/// The result of an election.
pub(crate) enum Elected {
    /// A connection, and the line that was sent together with the hello.
    Connected(DaemonConnection, Option<Vec<u8>>),
    NotStuck,
    Solo,
}

impl ElectionDriver {
    pub(crate) fn new(
        shim: Pid,
        hello: Vec<u8>,
        handshake: Option<Vec<u8>>,
        suspect: Option<Pid>,
        now: Moment,
    ) -> ElectionDriver {
        let known = match suspect {
            Some(_) => KnownDaemon::Suspect,
            None => KnownDaemon::None,
        };
        ElectionDriver {
            election: Election::new(known, START_TIMEOUT, now),
            shim,
            hello,
            handshake,
            connected_to: None,
            from: Inbox::default(),
            to: Outbox::default(),
            suspect,
            watch: None,
            start_watch: StartWatch::new(now),
            wait: Wait::Nothing,
        }
    }

    pub(crate) fn is_ready(&self, kernel: &Kernel) -> bool {
        let heard = match &self.wait {
            Wait::Nothing => true,
            Wait::Time(_) => false,
            Wait::Reply(..) => self
                .connected_to
                .is_some_and(|it| kernel.readable(it.read) || self.to.may_flush(it.write, kernel)),
            Wait::Report { pipe, .. } => kernel.readable(*pipe),
            Wait::End(pid, _) => !kernel.alive(*pid),
        };
        heard || self.wake().is_some_and(|at| at <= kernel.now)
    }

    pub(crate) fn wake(&self) -> Option<Moment> {
        match &self.wait {
            Wait::Nothing => None,
            Wait::Time(at) | Wait::Reply(_, at) | Wait::End(_, at) => Some(*at),
            Wait::Report { deadline, .. } => Some((*deadline).min(self.start_watch.next_look())),
        }
    }

    /// Carries out one step, or checks once more what it waits for; returns the result at the end.
    pub(crate) fn turn(&mut self, kernel: &mut Kernel) -> Option<Elected> {
        let fact = match std::mem::replace(&mut self.wait, Wait::Nothing) {
            Wait::Nothing => match self.election.step() {
                Step::Finish(end) => return Some(self.over(end, kernel)),
                step => {
                    let fact = self.carry_out_step(&step, kernel);
                    kernel.trace(self.shim, || format!("elects: {step:?}{}", shown(&fact)));
                    fact
                }
            },
            Wait::Time(_) | Wait::End(..) => Some(StepResult::Done),
            Wait::Reply(watch, look_at) => self.handle_line(watch, look_at, kernel),
            Wait::Report {
                daemon,
                pipe,
                deadline,
            } => self.handle_report(daemon, pipe, deadline, kernel),
        };
        if let Some(fact) = fact {
            self.election.handle(fact, kernel.now);
        }
        None
    }

    /// Cancels the election.
    pub(crate) fn abandon(mut self, kernel: &mut Kernel) {
        kernel.close_spawn_lock(self.shim);
        self.close_connection(kernel);
    }

    fn over(&mut self, end: ElectionResult, kernel: &mut Kernel) -> Elected {
        if kernel.has_spawn_lock(self.shim) {
            kernel.unlock_spawn(self.shim);
        }
        kernel.trace(self.shim, || format!("elected: {end:?}"));
        if let ElectionResult::NoDaemon(why) = &end {
            self.check_reason(why, kernel);
        }
        match (end, self.connected_to.take()) {
            (ElectionResult::Connected, Some(connected_to)) => {
                if self.handshake.is_some() {
                    kernel.occurred(Situation::Greets);
                }
                let (from, to) = (std::mem::take(&mut self.from), std::mem::take(&mut self.to));
                Elected::Connected(
                    DaemonConnection::new(connected_to, from, to),
                    self.handshake.take(),
                )
            }
            (ElectionResult::NotStuck, _) => Elected::NotStuck,
            (ElectionResult::NoDaemon(_), _) | (ElectionResult::Connected, None) => Elected::Solo,
        }
    }

    /// Checks that there is a reason to go without daemon that no election can fix: not a daemon that was stuck all the
    /// time, and could have been verified and killed.
    fn check_reason(&self, why: &str, kernel: &mut Kernel) {
        let holder = kernel.daemon_lock().filter(|pid| is_recorded(kernel, *pid));
        let stuck = holder.filter(|pid| {
            let long_ago = kernel.changed(*pid) + STUCK_TIME < kernel.now;
            matches!(kernel.status(*pid), Status::Stopped | Status::Hung) && long_ago
        });
        let lock_is_free = kernel.spawn_lock_holders().next().is_none();
        // A shim that was stopped has lost the time that an election has.
        let had_its_time = kernel.changed(self.shim) == Moment::START;
        kernel.check(stuck.is_none() || !lock_is_free || !had_its_time, || {
            format!("a stuck daemon is left where it is: {why}")
        });
    }

    fn carry_out_step(&mut self, step: &Step, kernel: &mut Kernel) -> Option<StepResult> {
        let now = kernel.now;
        Some(match step {
            Step::OpenRuntimeDir => {
                self.watch = None;
                self.start_watch = StartWatch::new(now);
                StepResult::Done
            }
            Step::Connect => StepResult::Connect(self.connect(kernel)),
            Step::CheckDaemon(target) => self.check_daemon(target, kernel),
            Step::TryLock | Step::LockOrReportHolder => self.lock(step, kernel),
            Step::KillStuckStart => {
                self.start_watch.end_if_stuck(self.shim, kernel);
                StepResult::Done
            }
            Step::VerifySuspect => self.verify_suspect(kernel),
            Step::PingSuspect => {
                self.to.push(&Control::Ping.line(), kernel);
                self.wait_for_reply(Patience::Last, kernel);
                return None;
            }
            Step::KillSuspect => self.kill_suspect(kernel),
            Step::ProbeDaemonLock => StepResult::DaemonLockHeld(kernel.daemon_lock().is_some()),
            Step::ReportLockHolder => StepResult::Failed("the daemon cannot be reached".to_owned()),
            Step::StartDaemon if kernel.shortage == Some(Shortage::Daemons) => {
                StepResult::Failed("no daemon can be started".to_owned())
            }
            Step::StartDaemon => {
                self.start(kernel);
                return None;
            }
            Step::SendHello => {
                kernel.unlock_spawn(self.shim);
                self.to.push(&self.hello, kernel);
                if let Some(handshake) = &self.handshake {
                    self.to.push(handshake, kernel);
                }
                self.wait_for_reply(Patience::First, kernel);
                return None;
            }
            Step::WaitForExit(length) => {
                let pid = self.connected_to.map_or(0, |end| end.peer);
                self.close_connection(kernel);
                self.wait = Wait::End(pid, now + *length);
                return None;
            }
            Step::Sleep(length) => {
                self.wait = Wait::Time(now + *length);
                return None;
            }
            Step::BeginAgain(length) => {
                kernel.unlock_spawn(self.shim);
                self.close_connection(kernel);
                self.wait = Wait::Time(now + *length);
                return None;
            }
            Step::Finish(_) => return None,
        })
    }

    fn check_daemon(&mut self, target: &Target, kernel: &mut Kernel) -> StepResult {
        let (pid, is_busy) = match target {
            Target::Busy => (kernel.record.map(|record| record.pid), true),
            Target::Suspect => (self.suspect, false),
        };
        self.look(pid, is_busy, kernel)
    }

    fn lock(&self, step: &Step, kernel: &mut Kernel) -> StepResult {
        match kernel.try_spawn_lock(self.shim) {
            true => StepResult::Lock(LockResult::Acquired),
            false if *step == Step::TryLock => StepResult::Lock(LockResult::HeldByOther),
            false => StepResult::Failed("another process starts the daemon".to_owned()),
        }
    }

    fn verify_suspect(&mut self, kernel: &Kernel) -> StepResult {
        self.watch = None;
        match self.suspect.filter(|pid| kernel.alive(*pid)) {
            Some(pid) if is_recorded(kernel, pid) => StepResult::Suspect(SuspectCheck::Verified),
            Some(pid) if kernel.daemon_lock() == Some(pid) => not_verified(),
            Some(_) | None => StepResult::Suspect(SuspectCheck::Gone),
        }
    }

    fn kill_suspect(&mut self, kernel: &mut Kernel) -> StepResult {
        match self.suspect.take().filter(|pid| kernel.alive(*pid)) {
            None => StepResult::Done,
            Some(pid) if is_recorded(kernel, pid) && kernel.daemon_lock() == Some(pid) => {
                end_stuck(self.shim, pid, kernel);
                StepResult::Done
            }
            Some(_) => not_verified(),
        }
    }

    /// Sends what is queued, and waits for the daemon's reply.
    fn wait_for_reply(&mut self, patience: Patience, kernel: &mut Kernel) {
        let now = kernel.now;
        self.flush(kernel);
        self.wait = Wait::Reply(StuckWatch::new(patience, now), now + CHECK_EVERY);
    }

    fn flush(&mut self, kernel: &mut Kernel) {
        if let Some(connected_to) = self.connected_to {
            self.to.flush(connected_to.write, kernel);
        }
    }

    fn close_connection(&mut self, kernel: &mut Kernel) {
        (self.from, self.to) = (Inbox::default(), Outbox::default());
        if let Some(connected_to) = self.connected_to.take() {
            kernel.close(connected_to);
        }
    }

    fn connect(&mut self, kernel: &mut Kernel) -> ConnectResult {
        self.close_connection(kernel);
        let Some(record) = kernel.record else {
            return ConnectResult::Absent;
        };
        match kernel.dial(self.shim, record.generation) {
            DialResult::Connected(end) => {
                let trusted = end.peer == record.pid || kernel.daemon_lock() == Some(end.peer);
                if !trusted {
                    kernel.close(end);
                    return ConnectResult::Absent;
                }
                self.connected_to = Some(end);
                ConnectResult::Connected
            }
            DialResult::Busy => ConnectResult::Busy,
            DialResult::Refused => ConnectResult::Absent,
        }
    }

    fn look(&mut self, role_of: Option<Pid>, is_first: bool, kernel: &Kernel) -> StepResult {
        let patience = match is_first {
            true => Patience::First,
            false => Patience::Last,
        };
        let new = || (role_of.unwrap_or(0), StuckWatch::new(patience, kernel.now));
        let (pid, watch) = self.watch.get_or_insert_with(new);
        let look = watch.check(kernel.work(*pid), kernel.now);
        match look {
            StuckCheck::Stuck | StuckCheck::Overdue => self.suspect = Some(*pid),
            StuckCheck::NotStuck if !kernel.alive(*pid) => {
                return StepResult::Suspect(SuspectCheck::Gone);
            }
            StuckCheck::NotStuck | StuckCheck::Undecided | StuckCheck::Unknown => {}
        }
        StepResult::Check(look)
    }

    fn start(&mut self, kernel: &mut Kernel) {
        let daemon = kernel.begin("daemon");
        kernel.hand_over_spawn_lock(self.shim, daemon);
        let (ours, first) = kernel.pair(self.shim, daemon);
        let report = kernel.pipe(daemon, self.shim);
        self.close_connection(kernel);
        self.connected_to = Some(ours);
        kernel.new_processes.push(NewProcess::Daemon {
            pid: daemon,
            first,
            report,
            alarm: START_TIMEOUT,
        });
        self.start_watch = StartWatch::new(kernel.now);
        self.wait = Wait::Report {
            daemon,
            pipe: report,
            deadline: kernel.now + START_TIMEOUT + REPORT_MARGIN,
        };
    }

    fn handle_report(
        &mut self,
        daemon: Pid,
        pipe: PipeId,
        deadline: Moment,
        kernel: &mut Kernel,
    ) -> Option<StepResult> {
        let died = |why: &str| StepResult::Started(StartResult::Exited(why.to_owned()));
        let fact = match kernel.read(pipe, usize::MAX) {
            ReadResult::Bytes(line) if line == b"ready\n" => {
                StepResult::Started(StartResult::Ready)
            }
            ReadResult::Bytes(line) => {
                StepResult::Failed(String::from_utf8_lossy(&line).into_owned())
            }
            ReadResult::End => died("it ended before it was ready"),
            ReadResult::WouldBlock if kernel.now >= deadline => {
                StepResult::Failed("not ready in time".to_owned())
            }
            ReadResult::WouldBlock => match self.start_watch.end_if_stuck(self.shim, kernel) {
                true => died("it was stuck"),
                false => {
                    self.wait = Wait::Report {
                        daemon,
                        pipe,
                        deadline,
                    };
                    return None;
                }
            },
        };
        kernel.close_spawn_lock(self.shim);
        kernel.close_read(pipe);
        kernel.trace(self.shim, || format!("of {daemon}: {fact:?}"));
        Some(fact)
    }

    fn handle_line(
        &mut self,
        mut watch: StuckWatch,
        look_at: Moment,
        kernel: &mut Kernel,
    ) -> Option<StepResult> {
        let Some(connected_to) = self.connected_to else {
            return Some(StepResult::Reply(Reply::Closed));
        };
        let asking = self.election.step() == Step::PingSuspect;
        self.flush(kernel);
        let answer = loop {
            if let Some(line) = self.from.next_line() {
                if let Some(said) = DaemonReply::parse(&line) {
                    break said.kind();
                }
                continue;
            }
            match kernel.read(connected_to.read, usize::MAX) {
                ReadResult::Bytes(bytes) => self.from.add(&bytes),
                ReadResult::End => break Reply::Closed,
                ReadResult::WouldBlock => {
                    let look = match kernel.now >= look_at {
                        true => watch.check(kernel.work(connected_to.peer), kernel.now),
                        false => StuckCheck::Undecided,
                    };
                    if look == StuckCheck::Undecided {
                        let next = if kernel.now >= look_at {
                            kernel.now + CHECK_EVERY
                        } else {
                            look_at
                        };
                        self.wait = Wait::Reply(watch, next);
                        return None;
                    }
                    break Reply::Silent(look);
                }
            }
        };
        kernel.trace(self.shim, || format!("hears {answer:?}"));
        let stuck = answer == Reply::Silent(StuckCheck::Stuck);
        if asking {
            self.close_connection(kernel);
            let is_there = self.suspect.is_some_and(|pid| kernel.alive(pid));
            if !stuck && !is_there {
                return Some(StepResult::Suspect(SuspectCheck::Gone));
            }
        } else if stuck || answer == Reply::Silent(StuckCheck::Overdue) {
            self.suspect = Some(connected_to.peer);
        }
        Some(StepResult::Reply(answer))
    }
}

fn shown(fact: &Option<StepResult>) -> String {
    fact.as_ref()
        .map_or_else(String::new, |fact| format!(" -> {fact:?}"))
}

fn is_recorded(kernel: &Kernel, pid: Pid) -> bool {
    kernel.record.is_some_and(|record| record.pid == pid)
}

/// Checks rule 3: only a daemon that cannot answer is killed.
fn end_stuck(by: Pid, pid: Pid, kernel: &mut Kernel) {
    let could_answer = kernel.status(pid) == Status::Runs && kernel.changed(pid) < kernel.now;
    let name = kernel.name(pid);
    kernel.check(!could_answer, || {
        format!("rule 3: {name} is ended, and was not stuck")
    });
    kernel.trace(by, || format!("ends {name}, which is stuck"));
    kernel.end(pid);
}

/// Repeated checks of the process that is becoming the daemon.
struct StartWatch {
    looked: Moment,
    watch: Option<(Pid, StuckWatch)>,
}

impl StartWatch {
    fn new(now: Moment) -> StartWatch {
        StartWatch {
            looked: now,
            watch: None,
        }
    }

    fn next_look(&self) -> Moment {
        self.looked + START_CHECK_EVERY
    }

    fn end_if_stuck(&mut self, by: Pid, kernel: &mut Kernel) -> bool {
        if kernel.now < self.next_look() {
            return false;
        }
        self.looked = kernel.now;
        if self.watch.is_none() {
            let is_daemon = |pid: &Pid| kernel.name(*pid).starts_with("daemon");
            let found = kernel.spawn_lock_holders().find(is_daemon);
            self.watch = found.map(|pid| (pid, StuckWatch::new(Patience::First, kernel.now)));
        }
        let Some((pid, watch)) = &mut self.watch else {
            return false;
        };
        let pid = *pid;
        if watch.check(kernel.work(pid), kernel.now) != StuckCheck::Stuck {
            return false;
        }
        self.watch = None;
        let holds = kernel.has_spawn_lock(pid);
        if holds {
            end_stuck(by, pid, kernel);
        }
        holds
    }
}

fn not_verified() -> StepResult {
    StepResult::Failed("the suspect is not verified as the daemon".to_owned())
}

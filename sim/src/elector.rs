//! An election in the scripted world: the steps that `kennel_core::election` says, done with a kernel that is a value.

use std::time::Duration;

use kennel_core::election::{
    Answer, Door, Election, End, Fact, Known, Look, Patience, Said, Started, Step, Suspect, Turn,
    Watch, Whom,
};
use kennel_core::hello::Control;
use kennel_core::time::Moment;

use crate::kernel::{self, Birth, Dialled, Heard, Kernel, Pid, PipeId, Shortage, Status};

/// As `kennel run` has them.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(5);
const LAST_WORDS: Duration = Duration::from_millis(250);
const LOOK: Duration = Duration::from_millis(50);
/// Longer than an election takes to see it.
const STUCK_FOR_LONG: Duration = Duration::from_secs(19);
const LOOK_AT_NEWBORN: Duration = Duration::from_millis(250);

pub(crate) struct Elector {
    election: Election,
    /// Whose it is.
    shim: Pid,
    hello: Vec<u8>,
    reached: Option<kernel::End>,
    suspect: Option<Pid>,
    watch: Option<(Pid, Watch)>,
    newborn: Newborn,
    wait: Wait,
}

/// What it waits for.
enum Wait {
    /// Its turn.
    Nothing,
    Time(Moment),
    /// A daemon's words, and when to look at it next.
    Answer(Watch, Moment),
    /// A start's report.
    Report {
        daemon: Pid,
        pipe: PipeId,
        deadline: Moment,
    },
    End(Pid, Moment),
}

/// How an election ended.
pub(crate) enum Elected {
    Connected(kernel::End),
    NotStuck,
    Solo,
}

impl Elector {
    pub(crate) fn new(shim: Pid, hello: Vec<u8>, suspect: Option<Pid>, now: Moment) -> Elector {
        let known = match suspect {
            Some(_) => Known::Suspect,
            None => Known::Nobody,
        };
        Elector {
            election: Election::new(known, START_TIMEOUT, now),
            shim,
            hello,
            reached: None,
            suspect,
            watch: None,
            newborn: Newborn::new(now),
            wait: Wait::Nothing,
        }
    }

    pub(crate) fn is_ready(&self, kernel: &Kernel) -> bool {
        let heard = match &self.wait {
            Wait::Nothing => true,
            Wait::Time(_) => false,
            Wait::Answer(..) => self.reached.is_some_and(|it| kernel.readable(it.read)),
            Wait::Report { pipe, .. } => kernel.readable(*pipe),
            Wait::End(pid, _) => !kernel.alive(*pid),
        };
        heard || self.wake().is_some_and(|at| at <= kernel.now)
    }

    pub(crate) fn wake(&self) -> Option<Moment> {
        match &self.wait {
            Wait::Nothing => None,
            Wait::Time(at) | Wait::Answer(_, at) | Wait::End(_, at) => Some(*at),
            Wait::Report { deadline, .. } => Some((*deadline).min(self.newborn.next_look())),
        }
    }

    /// One step, or one more look at what is waited for; the outcome, if that is all.
    pub(crate) fn turn(&mut self, kernel: &mut Kernel) -> Option<Elected> {
        let fact = match std::mem::replace(&mut self.wait, Wait::Nothing) {
            Wait::Nothing => match self.election.step() {
                Step::Over(end) => return Some(self.over(end, kernel)),
                step => {
                    let fact = self.obey(&step, kernel);
                    kernel.say(self.shim, || format!("elects: {step:?}{}", shown(&fact)));
                    fact
                }
            },
            Wait::Time(_) | Wait::End(..) => Some(Fact::Done),
            Wait::Answer(watch, look_at) => self.hear(watch, look_at, kernel),
            Wait::Report {
                daemon,
                pipe,
                deadline,
            } => self.hear_report(daemon, pipe, deadline, kernel),
        };
        if let Some(fact) = fact {
            self.election.heard(fact, kernel.now);
        }
        None
    }

    /// Nobody wants to know any more.
    pub(crate) fn abandon(mut self, kernel: &mut Kernel) {
        kernel.close_spawn_lock(self.shim);
        self.let_go(kernel);
    }

    fn over(&mut self, end: End, kernel: &mut Kernel) -> Elected {
        if kernel.has_spawn_lock(self.shim) {
            kernel.unlock_spawn(self.shim);
        }
        kernel.say(self.shim, || format!("elected: {end:?}"));
        if let End::Solo(why) = &end {
            self.judge(why, kernel);
        }
        match (end, self.reached.take()) {
            (End::Connected, Some(reached)) => Elected::Connected(reached),
            (End::NotStuck, _) => Elected::NotStuck,
            (End::Solo(_), _) | (End::Connected, None) => Elected::Solo,
        }
    }

    /// Whoever does without a daemon has a reason that no election can mend: not a daemon that was stuck all the time,
    /// and could have been proven to be so and ended.
    fn judge(&self, why: &str, kernel: &mut Kernel) {
        let holder = kernel.daemon_lock().filter(|pid| is_recorded(kernel, *pid));
        let stuck = holder.filter(|pid| {
            let long_ago = kernel.changed(*pid) + STUCK_FOR_LONG < kernel.now;
            matches!(kernel.status(*pid), Status::Stopped | Status::Hung) && long_ago
        });
        let lock_is_free = kernel.spawn_lock_holders().next().is_none();
        // Who was stopped itself has lost the time that an election has.
        let had_its_time = kernel.changed(self.shim) == Moment::START;
        kernel.must(stuck.is_none() || !lock_is_free || !had_its_time, || {
            format!("a stuck daemon is left where it is: {why}")
        });
    }

    fn obey(&mut self, step: &Step, kernel: &mut Kernel) -> Option<Fact> {
        let now = kernel.now;
        Some(match step {
            Step::Meet => {
                self.watch = None;
                self.newborn = Newborn::new(now);
                Fact::Done
            }
            Step::Knock => Fact::Door(self.knock(kernel)),
            Step::Look(whom) => {
                let whom = match whom {
                    Whom::Busy => kernel.record.map(|record| record.pid),
                    Whom::Suspect => self.suspect,
                };
                return Some(self.look(whom, matches!(step, Step::Look(Whom::Busy)), kernel));
            }
            Step::TryLock | Step::InsistOnLock => match kernel.try_spawn_lock(self.shim) {
                true => Fact::Lock(Turn::Ours),
                false if *step == Step::TryLock => Fact::Lock(Turn::Theirs),
                false => Fact::Failed("somebody else starts the daemon".to_owned()),
            },
            Step::EndNewborn => {
                self.newborn.end_if_stuck(self.shim, kernel);
                Fact::Done
            }
            Step::Prove => {
                self.watch = None;
                let suspect = self.suspect.filter(|pid| kernel.alive(*pid));
                match suspect {
                    None => Fact::Suspect(Suspect::Gone),
                    Some(pid) if is_recorded(kernel, pid) => Fact::Suspect(Suspect::Proven),
                    Some(pid) if kernel.daemon_lock() == Some(pid) => {
                        Fact::Failed("it is not proven to be the daemon".to_owned())
                    }
                    Some(_) => Fact::Suspect(Suspect::Gone),
                }
            }
            Step::Ask => {
                if let Some(reached) = self.reached {
                    kernel.write(reached.write, &Control::Ping.line());
                }
                self.wait = Wait::Answer(Watch::new(Patience::Last, now), now + LOOK);
                return None;
            }
            Step::End => match self.suspect.take().filter(|pid| kernel.alive(*pid)) {
                None => Fact::Done,
                Some(pid) if is_recorded(kernel, pid) && kernel.daemon_lock() == Some(pid) => {
                    end_stuck(self.shim, pid, kernel);
                    Fact::Done
                }
                Some(_) => Fact::Failed("it is not proven to be the daemon".to_owned()),
            },
            Step::Probe => Fact::Held(kernel.daemon_lock().is_some()),
            Step::Accuse => Fact::Failed("a daemon that cannot be reached".to_owned()),
            Step::Start if kernel.shortage == Some(Shortage::Daemons) => {
                Fact::Failed("no daemon can be started".to_owned())
            }
            Step::Start => {
                self.start(kernel);
                return None;
            }
            Step::Greet => {
                kernel.unlock_spawn(self.shim);
                if let Some(reached) = self.reached {
                    kernel.write(reached.write, &self.hello);
                }
                self.wait = Wait::Answer(Watch::new(Patience::First, now), now + LOOK);
                return None;
            }
            Step::SeeOut(length) => {
                let pid = self.reached.map_or(0, |reached| reached.peer);
                self.let_go(kernel);
                self.wait = Wait::End(pid, now + *length);
                return None;
            }
            Step::Nap(length) => {
                self.wait = Wait::Time(now + *length);
                return None;
            }
            Step::BeginAgain(length) => {
                kernel.unlock_spawn(self.shim);
                self.let_go(kernel);
                self.wait = Wait::Time(now + *length);
                return None;
            }
            Step::Over(_) => return None,
        })
    }

    fn let_go(&mut self, kernel: &mut Kernel) {
        if let Some(reached) = self.reached.take() {
            kernel.hang_up(reached);
        }
    }

    fn knock(&mut self, kernel: &mut Kernel) -> Door {
        self.let_go(kernel);
        let Some(record) = kernel.record else {
            return Door::Absent;
        };
        match kernel.dial(self.shim, record.generation) {
            Dialled::Connected(end) => {
                let trusted = end.peer == record.pid || kernel.daemon_lock() == Some(end.peer);
                if !trusted {
                    kernel.hang_up(end);
                    return Door::Absent;
                }
                self.reached = Some(end);
                Door::Open
            }
            Dialled::Busy => Door::Busy,
            Dialled::Refused => Door::Absent,
        }
    }

    fn look(&mut self, whom: Option<Pid>, is_first: bool, kernel: &Kernel) -> Fact {
        let patience = match is_first {
            true => Patience::First,
            false => Patience::Last,
        };
        let new = || (whom.unwrap_or(0), Watch::new(patience, kernel.now));
        let (pid, watch) = self.watch.get_or_insert_with(new);
        let look = watch.look(kernel.work(*pid), kernel.now);
        match look {
            Look::Stuck | Look::Overdue => self.suspect = Some(*pid),
            Look::Works if !kernel.alive(*pid) => return Fact::Suspect(Suspect::Gone),
            Look::Works | Look::Waiting | Look::Unseen => {}
        }
        Fact::Looked(look)
    }

    fn start(&mut self, kernel: &mut Kernel) {
        let daemon = kernel.begin("daemon");
        kernel.hand_over_spawn_lock(self.shim, daemon);
        let (ours, first) = kernel.pair(self.shim, daemon);
        let report = kernel.pipe(daemon, self.shim);
        self.reached = Some(ours);
        kernel.births.push(Birth::Daemon {
            pid: daemon,
            first,
            report,
            alarm: START_TIMEOUT,
        });
        self.newborn = Newborn::new(kernel.now);
        self.wait = Wait::Report {
            daemon,
            pipe: report,
            deadline: kernel.now + START_TIMEOUT + LAST_WORDS,
        };
    }

    fn hear_report(
        &mut self,
        daemon: Pid,
        pipe: PipeId,
        deadline: Moment,
        kernel: &mut Kernel,
    ) -> Option<Fact> {
        let died = |why: &str| Fact::Started(Started::Died(why.to_owned()));
        let fact = match kernel.read(pipe) {
            Heard::Line(line) if line == b"ready" => Fact::Started(Started::Ready),
            Heard::Line(line) => Fact::Failed(String::from_utf8_lossy(&line).into_owned()),
            Heard::End => died("it ended before it was ready"),
            Heard::Nothing if kernel.now >= deadline => {
                Fact::Failed("not ready in time".to_owned())
            }
            Heard::Nothing => match self.newborn.end_if_stuck(self.shim, kernel) {
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
        kernel.say(self.shim, || format!("of {daemon}: {fact:?}"));
        Some(fact)
    }

    fn hear(&mut self, mut watch: Watch, look_at: Moment, kernel: &mut Kernel) -> Option<Fact> {
        let Some(reached) = self.reached else {
            return Some(Fact::Answer(Answer::Gone));
        };
        let asking = self.election.step() == Step::Ask;
        let answer = loop {
            match kernel.read(reached.read) {
                Heard::Line(line) => {
                    if let Some(said) = Said::of(&line) {
                        break said.answer();
                    }
                }
                Heard::End => break Answer::Gone,
                Heard::Nothing => {
                    let look = match kernel.now >= look_at {
                        true => watch.look(kernel.work(reached.peer), kernel.now),
                        false => Look::Waiting,
                    };
                    if look == Look::Waiting {
                        let next = if kernel.now >= look_at {
                            kernel.now + LOOK
                        } else {
                            look_at
                        };
                        self.wait = Wait::Answer(watch, next);
                        return None;
                    }
                    break Answer::Silent(look);
                }
            }
        };
        kernel.say(self.shim, || format!("hears {answer:?}"));
        let stuck = answer == Answer::Silent(Look::Stuck);
        if asking {
            self.let_go(kernel);
            let is_there = self.suspect.is_some_and(|pid| kernel.alive(pid));
            if !stuck && !is_there {
                return Some(Fact::Suspect(Suspect::Gone));
            }
        } else if stuck || answer == Answer::Silent(Look::Overdue) {
            self.suspect = Some(reached.peer);
        }
        Some(Fact::Answer(answer))
    }
}

fn shown(fact: &Option<Fact>) -> String {
    fact.as_ref()
        .map_or_else(String::new, |fact| format!(" -> {fact:?}"))
}

fn is_recorded(kernel: &Kernel, pid: Pid) -> bool {
    kernel.record.is_some_and(|record| record.pid == pid)
}

/// Rule 3: only who cannot answer is ended.
fn end_stuck(by: Pid, pid: Pid, kernel: &mut Kernel) {
    let could_answer = kernel.status(pid) == Status::Runs && kernel.changed(pid) < kernel.now;
    let name = kernel.name(pid);
    kernel.must(!could_answer, || {
        format!("rule 3: {name} is ended, and was not stuck")
    });
    kernel.say(by, || format!("ends {name}, which is stuck"));
    kernel.end(pid);
}

/// A look now and then at whoever is about to be the daemon.
struct Newborn {
    looked: Moment,
    watch: Option<(Pid, Watch)>,
}

impl Newborn {
    fn new(now: Moment) -> Newborn {
        Newborn {
            looked: now,
            watch: None,
        }
    }

    fn next_look(&self) -> Moment {
        self.looked + LOOK_AT_NEWBORN
    }

    fn end_if_stuck(&mut self, by: Pid, kernel: &mut Kernel) -> bool {
        if kernel.now < self.next_look() {
            return false;
        }
        self.looked = kernel.now;
        if self.watch.is_none() {
            let is_daemon = |pid: &Pid| kernel.name(*pid).starts_with("daemon");
            let found = kernel.spawn_lock_holders().find(is_daemon);
            self.watch = found.map(|pid| (pid, Watch::new(Patience::First, kernel.now)));
        }
        let Some((pid, watch)) = &mut self.watch else {
            return false;
        };
        let pid = *pid;
        if watch.look(kernel.work(pid), kernel.now) != Look::Stuck {
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

//! The process of a station, under its warden: from its start until nothing is left of it.

use std::cell::Cell;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use kennel_core::hello::{ClientHello, Lost, Text};
use kennel_core::session::{SERVER_RESTARTED, SERVER_UNAVAILABLE};
use kennel_sys::tree::{self, Detached, Exit, Ladder, Report, Tree};
use rustix::io::Errno;

use super::house::House;
use super::running::{Complaints, Course, Running, Voice};
use super::station::Station;
use super::tasks::{self, Descriptor, first_of, moments, when};
use super::{start, watch};
use crate::shim::{ending, lacks_reader};
use crate::sources::Sources;
use crate::start_error::{self, Attempt};

/// Why a server is lost whose files changed.
const REPLACED: &str = "replaced";

/// Serves a station's clients with its server, until nothing is left of it. Should that panic, the clients begin again with
/// another one: nobody waits for a station that nobody looks after.
pub(super) async fn attend(house: Rc<House>, station: Rc<Station>) {
    let work = serve(Rc::clone(&house), Rc::clone(&station));
    if tasks::spawn(work).await.is_some() {
        return;
    }
    house.log.line("a server is given up: see the panic above");
    let attendant = Attendant::of(&house, &station);
    station.close();
    attendant.lost(String::new());
    if let Some(running) = station.running.take() {
        running.close_stdin();
        running.course.get().stop(&running.tree);
        attendant.reap(&running.tree, false).await;
    }
    attendant.ended();
}

/// Starts the station's server when it is its turn, and serves its clients with it; returns when nothing is left.
///
/// One that another program started is served on.
async fn serve(house: Rc<House>, station: Rc<Station>) {
    let resumed = station.running.borrow().clone();
    if resumed.is_none() {
        let turn = async {
            house.pool.until_first(&station).await;
            moments::until(Some(station.start_at)).await;
        };
        first_of! {
            () = turn => {},
            never = station.keep_time(&house, None) => match never {},
            () = station.closing.up() => {},
        }
    }
    let attendant = Attendant::of(&house, &station);
    if resumed.is_none() {
        station.dismiss_confined(&house);
    }
    match resumed {
        Some(running) => attendant.serve_with(running).await,
        None if station.closing.is_up() => {}
        None => match attendant.start() {
            Ok(running) => attendant.serve_with(running).await,
            // An error without a number is about what is to be started.
            Err(error) => {
                let invalid = Errno::INVAL.raw_os_error();
                attendant.refused(error.raw_os_error().unwrap_or(invalid));
            }
        },
    }
    attendant.lost(String::new());
    attendant.ended();
}

/// What comes of it; never, where there is nothing any more.
async fn of<F: Future + Unpin>(waited_for: &mut Option<F>) -> F::Output {
    match waited_for {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// Whoever looks after one process.
struct Attendant {
    house: Rc<House>,
    station: Rc<Station>,
    /// Its pid, once nothing is left of it.
    server: Cell<u32>,
    /// How its first process ended, if it is known by now.
    exit: Cell<Option<Exit>>,
}

impl Attendant {
    fn of(house: &Rc<House>, station: &Rc<Station>) -> Attendant {
        Attendant {
            house: Rc::clone(house),
            station: Rc::clone(station),
            server: Cell::new(0),
            exit: Cell::new(None),
        }
    }

    /// Nobody waits for this station any more.
    fn ended(&self) {
        self.house.pool.ended(&self.station);
        self.house.freed.notify_waiters();
        self.house.stir();
    }

    fn start(&self) -> io::Result<Rc<Running>> {
        let records = self.house.meeting.trees().ok();
        let hello = &self.station.hello;
        let command: Vec<OsString> = hello.spec.command.iter().map(os).collect();
        let variable = |name: &str| {
            let mut all = hello.env.iter();
            let found = all.rfind(|(its, _)| its.as_bytes() == name.as_bytes());
            found.map(|(_, value)| os(value))
        };
        let cwd = std::path::PathBuf::from(os(&hello.spec.cwd));
        // Before the start: what changes meanwhile has changed.
        *self.station.sources.borrow_mut() = Sources::of(&command, &cwd, variable);
        let running = Running::start(&self.station.hello, records.as_ref().map(AsFd::as_fd))?;
        let running = Rc::new(running);
        *self.station.running.borrow_mut() = Some(Rc::clone(&running));
        self.station.warden.set(Some(running.tree.warden().pid()));
        self.station.since.set(start::now());
        self.station.started();
        self.house.stir();
        Ok(running)
    }

    async fn serve_with(&self, running: Rc<Running>) {
        let (house, station) = (&self.house, &self.station);
        let tree = &running.tree;
        let Ok(news) = Descriptor::of_input(tree.as_fd()) else {
            // Dropping the tree asks for its end; nobody can tell when that is.
            station.running.take();
            return self.refused(Errno::MFILE.raw_os_error());
        };
        let voice = Voice::new(house, station, &running);
        // A task of its own: what else is waited for here is not looked at for every line.
        let aside = voice.clone();
        let mut voice_ends = Some(tasks::spawn(async move { aside.listen().await }));
        let complaints = Complaints::new(house, station, &running);
        let mut complaints_end = pin!(complaints.listen());
        let mut feed = running.stdin().map(|stdin| Box::pin(station.feed(stdin)));
        // Dropped when it is stopped: none of it counts any more.
        let mut keeps_time = Some(Box::pin(station.keep_time(house, Some(tree))));
        loop {
            let mut course = running.course.get();
            // Not before it is known to have run at all: one that could not be started is silent, too.
            if course.silent && course.started && !station.closing.is_up() {
                // What it said last is in the pipe, or nobody will ever say it.
                complaints.hear_the_rest().await;
                self.await_exit(tree, &news, &mut course).await;
                running.course.set(course);
                self.lost(complaints.last());
            }
            if station.closing.is_up() && !course.stopped {
                (feed, keeps_time) = (None, None);
                running.close_stdin();
                course.stop(tree);
                running.course.set(course);
            }
            let (runs_on, speaks, complains) = (!course.stopped, !course.silent, !course.calm);
            first_of! {
                report = next_report(tree, &news) => match report {
                    Some(report) => self.note(&mut course, &report),
                    None => break,
                },
                () = when(runs_on, station.closing.up()) => {},
                never = of(&mut keeps_time) => match never {},
                () = when(speaks, station.lost.up()) => {
                    if let Some(listening) = voice_ends.take() {
                        listening.end();
                    }
                    voice.hear_the_rest().await;
                    course.silent = true;
                },
                // It hears nothing any more: whoever asks it something would wait for ever.
                () = of(&mut feed) => {
                    feed = None;
                    running.close_stdin();
                    station.close();
                },
                _ = of(&mut voice_ends) => {
                    voice_ends = None;
                    course.silent = true;
                },
                () = when(complains, &mut complaints_end) => course.calm = true,
            }
            running.course.set(course);
        }
        running.close_stdin();
        drop((feed, news, keeps_time));
        let course = running.course.get();
        // What it said last is heard below.
        if let Some(listening) = voice_ends {
            listening.end();
        }
        self.reap(tree, course.announced).await;
        // No other program goes on with it from here.
        running.course.set(Course {
            announced: true,
            ..course
        });
        if !course.silent {
            voice.hear_the_rest().await;
        }
        complaints.hear_the_rest().await;
        station.running.take();
        match course.refused {
            Some(errno) => self.refused(errno),
            None => self.lost(complaints.last()),
        }
    }

    fn note(&self, course: &mut Course, report: &Report) {
        let (house, station) = (&self.house, &self.station);
        match report {
            Report::Started { pid, .. } => {
                course.started = true;
                station.pid.set(Some(*pid));
                house
                    .log
                    .line(format_args!("server {pid} runs for {}", station.class));
                house.stir();
            }
            Report::Refused(errno) => {
                course.refused = Some(*errno);
                course.announced = true;
            }
            Report::Exited(exit) => {
                let log = &house.log;
                log.line(format_args!("the server's first process ended: {exit:?}"));
                self.exit.set(Some(*exit));
                if let Some(pid) = station.pid.get() {
                    house.restarted_because(pid, &end_of(*exit));
                }
                let stdin = station.running.borrow().as_ref().and_then(|it| it.stdin());
                let stdin_closed = stdin.is_some_and(|stdin| lacks_reader(&*stdin));
                station.first_process_ended(house, ending(*exit), stdin_closed);
            }
            // Not required of a session's server, so never reported.
            Report::NotRecorded(_) => {}
            Report::Empty => course.announced = true,
        }
    }

    /// Its output has ended: waits a little for how its first process ended.
    async fn await_exit(
        &self,
        tree: &Tree,
        news: &Descriptor<BorrowedFd<'_>>,
        course: &mut Course,
    ) {
        const SOON: Duration = Duration::from_millis(200);
        let until = Instant::now() + SOON;
        while self.exit.get().is_none() && !course.announced {
            first_of! {
                report = next_report(tree, news) => match report {
                    Some(report) => self.note(course, &report),
                    None => return,
                },
                () = moments::until(Some(until)) => return,
            }
        }
    }

    /// Nothing is left of the tree; or its warden was killed, and what it left is ours to end.
    async fn reap(&self, tree: &Tree, announced: bool) {
        watch::end_of(tree.warden(), Duration::from_millis(10)).await;
        // One that somebody else has reaped is reaped.
        let _ = tree.reap();
        let warden = self.station.warden.take();
        if !announced {
            let records = self.house.meeting.trees().ok();
            let known = self.house.upgrade.asked.get();
            let strays =
                tree::end_strays(known.as_slice(), records.as_ref().map(|dir| dir.as_fd()));
            self.house.log.line(format_args!(
                "warden {} ended unannounced; strays ended: {}",
                warden.unwrap_or_default(),
                strays.map_or_else(|error| error.to_string(), |count| count.to_string())
            ));
        }
        if let Some(pid) = self.station.pid.take() {
            self.server.set(pid);
        }
    }

    /// The server could not even be started.
    fn refused(&self, errno: i32) {
        let (code, detail) = refusal(&self.station.hello, errno);
        self.house.log.line(format_args!("no server: {detail}"));
        let shortage = is_shortage(errno);
        self.tell_clients(&Lost {
            reason: SERVER_UNAVAILABLE.into(),
            detail,
            final_word: true,
            exit: (!shortage).then_some(code),
            unsent: Vec::new(),
            heard: None,
            shortage,
            ended: None,
            retry_after: None,
        });
    }

    /// The server is gone: those who are still its clients begin again with the next one.
    fn lost(&self, last_words: String) {
        if self.station.clients() == 0 {
            return self.station.close();
        }
        let next = self.house.pool.lost(&self.house, &self.station);
        self.house.log.line(match next {
            Ok(_) => "a server is lost",
            Err(_) => "a server is lost once too often: the next only when it is asked for",
        });
        if next.is_ok() {
            let reason = self.exit.get().map_or(CLOSED.to_owned(), end_of);
            let server = self.station.pid.get().unwrap_or(self.server.get());
            self.house.restarts(server, reason);
        }
        if matches!(self.exit.get(), Some(exit) if is_of_its_own(exit)) {
            self.station.server_exited(&self.house);
        }
        self.tell_clients(&Lost {
            reason: SERVER_RESTARTED.into(),
            detail: last_words,
            final_word: next.is_err(),
            exit: None,
            unsent: Vec::new(),
            heard: None,
            shortage: false,
            ended: self.exit.get().map(ending),
            retry_after: next.err().map(millis_until),
        });
    }

    fn tell_clients(&self, lost: &Lost) {
        tell_clients(&self.house, &self.station, lost);
    }
}

/// Nobody has asked the server anything for as long as its clients said: they are told so, and come back when they need it.
pub(super) fn hibernate(house: &House, station: &Station) {
    let clients = station.dismiss_all();
    house.log.line(format_args!(
        "a server hibernates: nobody asked it anything; clients: {}",
        clients.len()
    ));
    for link in clients.values() {
        link.rest();
    }
    house.stir();
}

/// The server is not what it would be if it were started now, and nobody waits for it: its sessions begin again with
/// the next one.
pub(super) fn replace(house: &House, station: &Station) {
    let pid = station.pid.get().unwrap_or_default();
    house
        .log
        .line(format_args!("server {pid} is replaced: its files changed"));
    if station.clients() > 0 {
        house.restarts(pid, "its files changed".to_owned());
    }
    let lost = Lost {
        reason: REPLACED.into(),
        detail: String::new(),
        final_word: false,
        exit: None,
        unsent: Vec::new(),
        heard: None,
        shortage: false,
        ended: None,
        retry_after: None,
    };
    tell_clients(house, station, &lost);
}

fn tell_clients(house: &House, station: &Station, lost: &Lost) {
    let mut unsent = station.unsent();
    for (client, link) in station.dismiss_all() {
        link.lost_server(Lost {
            unsent: unsent.remove(&client).unwrap_or_default(),
            ..lost.clone()
        });
    }
    house.stir();
}

fn millis_until(moment: Instant) -> u64 {
    let wait = moment.saturating_duration_since(Instant::now());
    u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
}

/// Why there must be another, where the process that ended has not been reaped yet.
const CLOSED: &str = "it closed its output";

fn end_of(exit: Exit) -> String {
    match exit {
        Exit::Code(code) => format!("it exited with code {code}"),
        Exit::Signal(signal) => format!("it was ended by signal {signal}"),
    }
}

/// The warden's next report; `None` when there will be no more.
async fn next_report(tree: &Tree, news: &Descriptor<BorrowedFd<'_>>) -> Option<Report> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    loop {
        news.readable().await;
        let mut fds = [PollFd::new(tree, PollFlags::IN)];
        // Reading blocks where there is nothing to read.
        if poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
            return tree.next_report().ok().flatten();
        }
        news.was_read();
    }
}

pub(super) fn ladder(hello: &ClientHello) -> Ladder {
    let (after_eof, after_term) = hello.spec.ladder;
    Ladder {
        after_eof: Duration::from_millis(after_eof),
        after_term: Duration::from_millis(after_term),
    }
}

/// Which detached services outlive the server. A word of another build that is not known is none.
pub(super) fn detached(hello: &ClientHello) -> Detached {
    let word = hello.spec.detached.as_deref();
    word.and_then(|word| word.parse().ok()).unwrap_or_default()
}

/// Why the server could not be started, as a shell would say it, and a shell's exit code for that.
fn refusal(hello: &ClientHello, errno: i32) -> (u8, String) {
    let program = hello.spec.command.first().map(os).unwrap_or_default();
    let cwd = std::path::PathBuf::from(os(&hello.spec.cwd));
    let mut env = hello.env.iter();
    let path = env.rfind(|(name, _)| name.as_bytes() == b"PATH");
    let path = path.map(|(_, value)| os(value));
    let attempt = Attempt {
        program: &program,
        cwd: Some(&cwd),
        path: path.as_deref(),
    };
    start_error::explain(attempt, errno)
}

/// Whether a server ended by itself, and was not killed: a shell says so of its child with a code from 128 on.
fn is_of_its_own(exit: Exit) -> bool {
    matches!(exit, Exit::Code(code) if code < 128)
}

/// Whether a start failed for want of something that says nothing about the server.
pub(super) fn is_shortage(errno: i32) -> bool {
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN];
    shortages.contains(&Errno::from_raw_os_error(errno))
}

pub(super) fn os(text: &Text) -> OsString {
    OsString::from_vec(text.as_bytes().to_vec())
}

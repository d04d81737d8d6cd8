//! The process of a server slot, under its warden: from its start until nothing is left of it.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use kennel_core::engine::daemon::StartFailure;
use kennel_core::hello::{ClientHello, Text};
use kennel_sys::tree::{self, Detached, Ladder, Report, Tree};
use rustix::io::Errno;

use super::daemon_state::DaemonState;
use super::running::{Complaints, Course, Running, Voice};
use super::server_io::{ServerIo, end_of};
use super::tasks::{self, Descriptor, first_of, moments, when};
use super::{start, watch};
use crate::shim::lacks_reader;
use crate::sources::Sources;
use crate::start_error::{self, Attempt, is_shortage};

/// Serves a slot's clients with its server, until nothing is left of it. Should that panic, the clients begin again with
/// another one: nobody waits for a slot that nobody looks after.
pub(super) async fn attend(daemon: Rc<DaemonState>, server_io: Rc<ServerIo>) {
    let work = serve(Rc::clone(&daemon), Rc::clone(&server_io));
    if tasks::spawn(work).await.is_some() {
        return;
    }
    daemon.log.line("a server is given up: see the panic above");
    let attendant = Attendant::of(&daemon, &server_io);
    server_io.close(&daemon);
    server_io.server_lost(&daemon, String::new());
    if let Some(running) = server_io.running.take() {
        running.close_stdin();
        running.course.get().stop(&running.tree);
        attendant.reap(&running.tree, false).await;
    }
    attendant.ended();
}

/// Starts the slot's server when the engine says so, and serves its clients with it; returns when nothing is left.
///
/// One that another program started is served on.
async fn serve(daemon: Rc<DaemonState>, server_io: Rc<ServerIo>) {
    let resumed = server_io.running.borrow().clone();
    if resumed.is_none() {
        first_of! {
            () = server_io.start.up() => {},
            never = server_io.keep_time(&daemon) => match never {},
            () = server_io.closing.up() => {},
        }
    }
    let attendant = Attendant::of(&daemon, &server_io);
    if resumed.is_none() {
        server_io.refuse_confined(&daemon);
    }
    match resumed {
        Some(running) => attendant.serve_with(running).await,
        None if server_io.closing.is_up() => {}
        None => match attendant.start() {
            Ok(running) => attendant.serve_with(running).await,
            // An error without a number is about what is to be started.
            Err(error) => {
                let invalid = Errno::INVAL.raw_os_error();
                attendant.refused(error.raw_os_error().unwrap_or(invalid));
            }
        },
    }
    server_io.server_lost(&daemon, String::new());
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
    daemon: Rc<DaemonState>,
    server_io: Rc<ServerIo>,
}

impl Attendant {
    fn of(daemon: &Rc<DaemonState>, server_io: &Rc<ServerIo>) -> Attendant {
        Attendant {
            daemon: Rc::clone(daemon),
            server_io: Rc::clone(server_io),
        }
    }

    /// Nobody waits for this slot any more.
    fn ended(&self) {
        let (daemon, slot) = (&self.daemon, self.server_io.slot);
        self.server_io.close(daemon);
        daemon.servers.borrow_mut().remove(&slot);
        daemon.tell_engine(|engine| engine.slot_ended(slot, daemon.now()));
        self.daemon.freed.notify_waiters();
        self.daemon.stir();
    }

    fn start(&self) -> io::Result<Rc<Running>> {
        let records = self.daemon.meeting.trees().ok();
        let hello = &self.server_io.hello;
        let command: Vec<OsString> = hello.spec.command.iter().map(os).collect();
        let variable = |name: &str| {
            let mut all = hello.env.iter();
            let found = all.rfind(|(its, _)| its.as_bytes() == name.as_bytes());
            found.map(|(_, value)| os(value))
        };
        let cwd = std::path::PathBuf::from(os(&hello.spec.cwd));
        // Before the start: what changes meanwhile has changed.
        *self.server_io.sources.borrow_mut() = Sources::of(&command, &cwd, variable);
        let running = Running::start(&self.server_io.hello, records.as_ref().map(AsFd::as_fd))?;
        let running = Rc::new(running);
        *self.server_io.running.borrow_mut() = Some(Rc::clone(&running));
        self.server_io.warden.set(Some(running.tree.warden().pid()));
        self.server_io.since.set(start::now());
        let slot = self.server_io.slot;
        self.daemon.engine.borrow_mut().server_started(slot);
        self.daemon.stir();
        Ok(running)
    }

    async fn serve_with(&self, running: Rc<Running>) {
        let (daemon, server_io) = (&self.daemon, &self.server_io);
        let tree = &running.tree;
        let Ok(news) = Descriptor::of_input(tree.as_fd()) else {
            // Dropping the tree asks for its end; nobody can tell when that is.
            server_io.running.take();
            return self.refused(Errno::MFILE.raw_os_error());
        };
        let voice = Voice::new(daemon, server_io, &running);
        // A task of its own: what else is waited for here is not looked at for every line.
        let aside = voice.clone();
        let mut voice_ends = Some(tasks::spawn(async move { aside.listen().await }));
        let complaints = Complaints::new(daemon, server_io, &running);
        let mut complaints_end = pin!(complaints.listen());
        let mut feed = running
            .stdin()
            .map(|stdin| Box::pin(server_io.feed(daemon, stdin)));
        // Dropped when it is stopped: none of it counts any more.
        let mut keeps_time = Some(Box::pin(server_io.keep_time(daemon)));
        loop {
            let mut course = running.course.get();
            // Not before it is known to have run at all: one that could not be started is silent, too.
            if course.silent && course.started && !server_io.closing.is_up() {
                // What it said last is in the pipe, or nobody will ever say it.
                complaints.hear_the_rest().await;
                self.await_exit(tree, &news, &mut course).await;
                running.course.set(course);
                server_io.server_lost(daemon, complaints.last());
            }
            if server_io.closing.is_up() && !course.stopped {
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
                () = when(runs_on, server_io.closing.up()) => {},
                never = of(&mut keeps_time) => match never {},
                () = when(speaks, server_io.lost.up()) => {
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
                    server_io.close(daemon);
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
        server_io.running.take();
        match course.refused {
            Some(errno) => self.refused(errno),
            None => server_io.server_lost(daemon, complaints.last()),
        }
    }

    fn note(&self, course: &mut Course, report: &Report) {
        let (daemon, server_io) = (&self.daemon, &self.server_io);
        match report {
            Report::Started { pid, .. } => {
                course.started = true;
                server_io.pid.set(Some(*pid));
                server_io.last_pid.set(*pid);
                daemon
                    .log
                    .line(format_args!("server {pid} runs for {}", server_io.class));
                daemon.stir();
            }
            Report::Refused(errno) => {
                course.refused = Some(*errno);
                course.announced = true;
            }
            Report::Exited(exit) => {
                let log = &daemon.log;
                log.line(format_args!("the server's first process ended: {exit:?}"));
                if let Some(pid) = server_io.pid.get() {
                    daemon.restarted_because(pid, &end_of(*exit));
                }
                let stdin = server_io
                    .running
                    .borrow()
                    .as_ref()
                    .and_then(|it| it.stdin());
                let stdin_closed = stdin.is_some_and(|stdin| lacks_reader(&*stdin));
                server_io.first_process_ended(daemon, *exit, stdin_closed);
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
        while self.server_io.exit.get().is_none() && !course.announced {
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
        let warden = self.server_io.warden.take();
        if !announced {
            let records = self.daemon.meeting.trees().ok();
            let known = self.daemon.upgrade.asked.get();
            let strays =
                tree::end_strays(known.as_slice(), records.as_ref().map(|dir| dir.as_fd()));
            self.daemon.log.line(format_args!(
                "warden {} ended unannounced; strays ended: {}",
                warden.unwrap_or_default(),
                strays.map_or_else(|error| error.to_string(), |count| count.to_string())
            ));
        }
        self.server_io.pid.take();
    }

    /// The server could not even be started.
    fn refused(&self, errno: i32) {
        let (code, detail) = refusal(&self.server_io.hello, errno);
        self.daemon.log.line(format_args!("no server: {detail}"));
        let shortage = is_shortage(errno);
        let failure = StartFailure {
            detail,
            exit: (!shortage).then_some(code),
            shortage,
        };
        let (slot, now) = (self.server_io.slot, self.daemon.now());
        self.daemon
            .tell_engine(|engine| engine.server_refused(slot, failure, now));
        self.server_io.stirred.notify_waiters();
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

pub(super) fn os(text: &Text) -> OsString {
    OsString::from_vec(text.as_bytes().to_vec())
}

//! The process of a station, under its warden: from its start until nothing is left of it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use kennel_core::hello::{ClientHello, Control, Lost, Text};
use kennel_core::session::{SERVER_RESTARTED, SERVER_UNAVAILABLE};
use kennel_sys::tree::{self, Exit, Ladder, Launch, Report, Tree};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::unix::pipe;

use super::house::House;
use super::station::Station;
use super::{dormant, start, watch};
use crate::shim::lines::{CHUNK, Inbox};

/// What a pipe holds: large lines need fewer turns.
const PIPE_SIZE: usize = 256 * 1024;
/// A longer line on stderr is taken in parts.
const LONGEST_COMPLAINT: usize = 128 * 1024;
/// How much of what the server said on stderr is kept for an error.
const TAIL_LINES: usize = 20;
const TAIL_LINE_BYTES: usize = 500;

/// Starts the station's server when it is its turn, and serves its clients with it; returns when nothing is left.
pub(super) async fn attend(house: Rc<House>, station: Rc<Station>) {
    let turn = async {
        house.pool.until_first(&station).await;
        tokio::time::sleep_until(station.start_at.into()).await;
    };
    tokio::select! {
        () = turn => {}
        () = deserted(&house, &station, Some(Duration::ZERO)) => station.closing.raise(),
        () = station.closing.up() => {}
    }
    let attendant = Attendant {
        house: Rc::clone(&house),
        station: Rc::clone(&station),
    };
    if !station.closing.is_up() {
        match attendant.start() {
            Ok(server) => attendant.serve_with(server).await,
            Err(error) => attendant.refused(error.raw_os_error().unwrap_or(0)),
        }
    }
    attendant.lost(String::new());
    house.pool.ended(&station);
    house.freed.notify_waiters();
    house.stir();
}

/// Waits until the last client has been gone for as long as its server may wait for the next.
async fn deserted(house: &House, station: &Station, linger: Option<Duration>) {
    loop {
        while station.clients() > 0 {
            station.stirred.notified().await;
        }
        let linger = match station.lingers(house) {
            true => linger,
            false => Some(Duration::ZERO),
        };
        let end = linger.map(|linger| Instant::now() + linger);
        while station.clients() == 0 {
            tokio::select! {
                // Somebody may have come in the very same moment.
                () = watch::until(end) => if station.clients() == 0 { return },
                () = station.stirred.notified() => {}
            }
        }
    }
}

/// Whoever looks after one process.
struct Attendant {
    house: Rc<House>,
    station: Rc<Station>,
}

/// What is known of a server so far.
#[derive(Debug, Default)]
struct Course {
    /// It runs, or ran.
    started: bool,
    /// It could not be started: the system's error.
    refused: Option<i32>,
    /// Its stdout is closed.
    silent: bool,
    /// Its stderr is closed.
    calm: bool,
    /// Its warden was asked for the ladder.
    stopped: bool,
    /// Its warden said that this is its end.
    announced: bool,
}

impl Course {
    fn stop(&mut self, tree: &Tree) {
        if !std::mem::replace(&mut self.stopped, true) {
            // Gone already: then its report is on the way.
            let _ = tree.stop();
        }
    }
}

impl Attendant {
    fn start(&self) -> io::Result<Server> {
        let records = self.house.meeting.trees().ok();
        let server = Server::start(&self.station.hello, records.as_ref().map(AsFd::as_fd))?;
        self.station.warden.set(Some(server.tree.warden().pid()));
        self.station.since.set(start::now());
        self.house.stir();
        Ok(server)
    }

    async fn serve_with(&self, server: Server) {
        let (house, station) = (&self.house, &self.station);
        let Server {
            tree,
            stdin,
            stdout,
            stderr,
        } = server;
        let Ok(news) = watch::registered(tree.as_fd(), Interest::READABLE) else {
            // Dropping the tree asks for its end; nobody can tell when that is.
            return self.refused(Errno::MFILE.raw_os_error());
        };
        let voice = Voice::new(house, station, stdout);
        let complaints = Complaints::new(house, station, stderr);
        // Each goes on by itself: what is said costs one wake, and no look at all the rest.
        let mut voice_ends = pin!(voice.listen());
        let mut complaints_end = pin!(complaints.listen());
        let mut feed = Some(Box::pin(station.feed(stdin)));
        let mut deserted = pin!(deserted(house, station, house.linger));
        let mut dormant = pin!(dormant::dormant(station));
        let mut course = Course::default();
        loop {
            // Not before it is known to have run at all: one that could not be started is silent, too.
            if course.silent && course.started && !station.closing.is_up() {
                // What it said last is in the pipe, or nobody will ever say it.
                complaints.hear_the_rest();
                self.lost(complaints.last());
            }
            if station.closing.is_up() && !course.stopped {
                feed = None;
                course.stop(&tree);
            }
            tokio::select! {
                biased;
                report = next_report(&tree, &news) => match report {
                    Some(report) => self.note(&mut course, &report),
                    None => break,
                },
                () = station.closing.up(), if !course.stopped => {}
                () = &mut deserted, if !course.stopped => station.closing.raise(),
                () = &mut dormant, if !course.stopped => dormant::put_to_rest(house, station),
                // It hears nothing any more: whoever asks it something would wait for ever.
                () = async { feed.as_mut().expect("looked at").await }, if feed.is_some() => {
                    feed = None;
                    station.closing.raise();
                }
                () = &mut voice_ends, if !course.silent => course.silent = true,
                () = &mut complaints_end, if !course.calm => course.calm = true,
            }
        }
        drop((feed, news));
        self.reap(tree, course.announced).await;
        if !course.silent {
            voice.hear_the_rest();
        }
        complaints.hear_the_rest();
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
                // One that is asked to end is, too; it has said by then what it is.
                if matches!(exit, Exit::Signal(_)) {
                    station.was_killed(house);
                }
            }
            Report::Empty => course.announced = true,
        }
    }

    /// Nothing is left of the tree; or its warden was killed, and what it left is ours to end.
    async fn reap(&self, mut tree: Tree, announced: bool) {
        watch::end_of(tree.warden(), Duration::from_millis(10)).await;
        // One that somebody else has reaped is reaped.
        let _ = tree.wait();
        let warden = self.station.warden.take();
        if !announced {
            let strays = tree::end_strays(&self.house.pool.wardens());
            self.house.log.line(format_args!(
                "warden {} ended unannounced; strays ended: {}",
                warden.unwrap_or_default(),
                strays.map_or_else(|error| error.to_string(), |count| count.to_string())
            ));
        }
        self.station.pid.set(None);
    }

    /// The server could not even be started.
    fn refused(&self, errno: i32) {
        let detail = refusal(&self.station.hello, errno);
        self.house.log.line(format_args!("no server: {detail}"));
        self.tell_clients(&Lost {
            reason: SERVER_UNAVAILABLE.into(),
            detail,
            final_word: true,
            exit: Some(exit_code(errno)),
            unsent: Vec::new(),
            heard: None,
        });
    }

    /// The server is gone: those who are still its clients begin again with the next one.
    fn lost(&self, last_words: String) {
        if self.station.clients() == 0 {
            return self.station.closing.raise();
        }
        let next = self.house.pool.lost(&self.station);
        self.house.log.line(match next {
            Some(_) => "a server is lost",
            None => "a server is lost once too often: the next only when it is asked for",
        });
        if next.is_some() {
            self.house.restarts.set(self.house.restarts.get() + 1);
        }
        self.station.server_ended(&self.house);
        self.tell_clients(&Lost {
            reason: SERVER_RESTARTED.into(),
            detail: last_words,
            final_word: next.is_none(),
            exit: None,
            unsent: Vec::new(),
            heard: None,
        });
    }

    fn tell_clients(&self, lost: &Lost) {
        let mut unsent = self.station.unsent();
        for (client, link) in self.station.dismiss_all() {
            link.lost_server(Lost {
                unsent: unsent.remove(&client).unwrap_or_default(),
                ..lost.clone()
            });
        }
        self.house.stir();
    }
}

/// What a server says on stdout.
struct Voice<'a> {
    house: &'a House,
    station: &'a Station,
    heard: Heard,
}

impl<'a> Voice<'a> {
    fn new(house: &'a House, station: &'a Station, stdout: pipe::Receiver) -> Voice<'a> {
        Voice {
            house,
            station,
            heard: Heard::new(stdout),
        }
    }

    /// Passes it on, to its end.
    async fn listen(&self) {
        loop {
            self.station.may_speak().await;
            let read = self.heard.more().await;
            self.pass_on();
            if !still_open(&read) {
                return self.last_line();
            }
        }
    }

    /// What an ended server had said, and nobody had read yet.
    fn hear_the_rest(&self) {
        while let Ok(1..) = self.heard.now() {
            self.pass_on();
        }
        self.last_line();
    }

    fn pass_on(&self) {
        let mut inbox = self.heard.inbox.borrow_mut();
        while let Some(line) = inbox.next_line() {
            self.station.hear_server(self.house, line);
        }
    }

    fn last_line(&self) {
        let rest = self.heard.inbox.borrow_mut().rest();
        if let Some(rest) = rest {
            self.station.hear_server(self.house, &rest);
        }
    }
}

/// What a server says on stderr.
struct Complaints<'a> {
    house: &'a House,
    station: &'a Station,
    heard: Heard,
    last: RefCell<VecDeque<String>>,
}

impl<'a> Complaints<'a> {
    fn new(house: &'a House, station: &'a Station, stderr: pipe::Receiver) -> Complaints<'a> {
        Complaints {
            house,
            station,
            heard: Heard::new(stderr),
            last: RefCell::default(),
        }
    }

    /// Writes it down, to its end.
    async fn listen(&self) {
        loop {
            let read = self.heard.more().await;
            // One that never ends its lines (a progress bar) must not fill our memory.
            let too_long = self.heard.inbox.borrow().len() > LONGEST_COMPLAINT;
            self.take_lines(matches!(read, Ok(0)) || too_long);
            if !still_open(&read) {
                return;
            }
        }
    }

    /// As much as the pipe holds, once: one that goes on writing would keep us here for ever.
    fn hear_the_rest(&self) {
        let _ = self.heard.now();
        self.take_lines(true);
    }

    fn take_lines(&self, ended: bool) {
        let mut inbox = self.heard.inbox.borrow_mut();
        while let Some(line) = inbox.next_line() {
            self.take(String::from_utf8_lossy(line).into_owned());
        }
        if ended && let Some(rest) = inbox.rest() {
            self.take(String::from_utf8_lossy(&rest).into_owned());
        }
    }

    fn take(&self, line: String) {
        self.house.log.line(format_args!("server says: {line}"));
        let mut last = self.last.borrow_mut();
        if last.len() == TAIL_LINES {
            last.pop_front();
        }
        last.push_back(line.chars().take(TAIL_LINE_BYTES).collect());
        self.station.tell_its_starter(&Control::Stderr(line));
    }

    fn last(&self) -> String {
        let last = self.last.borrow();
        let lines: Vec<&str> = last.iter().map(String::as_str).collect();
        lines.join("\n")
    }
}

/// A pipe of the server's, and what came of it. Nothing is borrowed while somebody waits for more.
struct Heard {
    pipe: RefCell<pipe::Receiver>,
    inbox: RefCell<Inbox>,
    /// There was more to be read than was read.
    unread: Cell<bool>,
}

impl Heard {
    fn new(pipe: pipe::Receiver) -> Heard {
        Heard {
            pipe: RefCell::new(pipe),
            inbox: RefCell::default(),
            unread: Cell::new(false),
        }
    }

    /// Reads something; 0 at the end. One that has more to say than is read at once lets others have a turn.
    async fn more(&self) -> io::Result<usize> {
        if self.unread.take() {
            tokio::task::yield_now().await;
        }
        let read = poll_fn(|context| {
            let (mut pipe, mut inbox) = (self.pipe.borrow_mut(), self.inbox.borrow_mut());
            pin!(pipe.read_buf(inbox.room())).poll(context)
        });
        let read = read.await;
        self.unread.set(matches!(read, Ok(CHUNK..)));
        read
    }

    /// Reads what is there.
    fn now(&self) -> io::Result<usize> {
        self.pipe
            .borrow()
            .try_read_buf(self.inbox.borrow_mut().room())
    }
}

fn still_open(read: &io::Result<usize>) -> bool {
    match read {
        Ok(0) => false,
        Ok(_) => true,
        Err(error) => matches!(
            error.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
        ),
    }
}

/// The warden's next report; `None` when there will be no more.
async fn next_report(tree: &Tree, news: &AsyncFd<BorrowedFd<'_>>) -> Option<Report> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    loop {
        let mut guard = news.readable().await.ok()?;
        let mut fds = [PollFd::new(tree, PollFlags::IN)];
        // Reading blocks where there is nothing to read.
        if poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
            return tree.next_report().ok().flatten();
        }
        guard.clear_ready();
    }
}

/// A started server, as it is when nobody has heard of it yet.
struct Server {
    tree: Tree,
    stdin: pipe::Sender,
    stdout: pipe::Receiver,
    stderr: pipe::Receiver,
}

impl Server {
    fn start(hello: &ClientHello, records: Option<BorrowedFd<'_>>) -> io::Result<Server> {
        let (stdin, to_server) = pipe()?;
        let (from_server, stdout) = pipe()?;
        let (errors, stderr) = pipe()?;
        // Smaller pipes only cost turns: an unprivileged user may have used up its share of larger ones.
        let _ = rustix::pipe::fcntl_setpipe_size(&from_server, PIPE_SIZE);
        // What is in it cannot be overtaken any more: the flood of one client would be everybody's.
        let _ = rustix::pipe::fcntl_setpipe_size(&to_server, super::lanes::CHUNK);
        let to_server = pipe::Sender::from_owned_fd(to_server)?;
        let from_server = pipe::Receiver::from_owned_fd(from_server)?;
        let errors = pipe::Receiver::from_owned_fd(errors)?;
        let pair = |(name, value): &(Text, Text)| (os(name), os(value));
        let tree = Launch {
            server: hello.spec.command.iter().map(os).collect(),
            warden: vec!["/proc/self/exe".into(), "warden".into()],
            stdio: [stdin, stdout, stderr],
            env: Some(hello.env.iter().map(pair).collect()),
            cwd: Some(os(&hello.spec.cwd).into()),
            ladder: ladder(hello),
            records,
        }
        .start()?;
        Ok(Server {
            tree,
            stdin: to_server,
            stdout: from_server,
            stderr: errors,
        })
    }
}

pub(super) fn ladder(hello: &ClientHello) -> Ladder {
    let (after_eof, after_term) = hello.spec.ladder;
    Ladder {
        after_eof: Duration::from_millis(after_eof),
        after_term: Duration::from_millis(after_term),
    }
}

/// Why the server could not be started, as a shell would say it.
fn refusal(hello: &ClientHello, errno: i32) -> String {
    let program = hello.spec.command.first().map(os).unwrap_or_default();
    let program = program.display();
    match Errno::from_raw_os_error(errno) {
        Errno::NOENT => {
            let cwd = std::path::PathBuf::from(os(&hello.spec.cwd));
            if cwd.is_dir() {
                format!("{program}: command not found")
            } else {
                format!("{}: no such directory to start {program} in", cwd.display())
            }
        }
        Errno::ACCESS => format!("{program}: permission denied"),
        errno => format!("{program}: {}", io::Error::from(errno)),
    }
}

fn exit_code(errno: i32) -> u8 {
    match Errno::from_raw_os_error(errno) {
        Errno::NOENT => 127,
        _ => 126,
    }
}

fn os(text: &Text) -> OsString {
    OsString::from_vec(text.as_bytes().to_vec())
}

fn pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
}

//! The server of one client, under its warden; and the next one when it is lost.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use kennel_core::hello::{ClientHello, Control, Lost, Text};
use kennel_core::session::{SERVER_RESTARTED, SERVER_UNAVAILABLE};
use kennel_sys::tree::{self, Ladder, Launch, Report, Tree};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::unix::pipe;

use super::client::Link;
use super::house::House;
use super::pool::Entry;
use super::{queue, start, watch};
use crate::shim::budget::Budget;
use crate::shim::lines::Inbox;

/// How much is read at once.
const CHUNK: usize = 64 * 1024;
/// What a pipe holds: large lines need fewer turns.
const PIPE_SIZE: usize = 256 * 1024;
/// How much of what the server said on stderr is kept for an error.
const TAIL_LINES: usize = 20;
const TAIL_LINE_BYTES: usize = 500;

/// Sees to it that the client has a server, for as long as it wants one.
pub(super) async fn attend(
    house: Rc<House>,
    link: Rc<Link>,
    hello: Rc<ClientHello>,
    session: String,
) {
    let mut seat = Seat {
        house,
        link,
        hello,
        session,
        budget: Budget::default(),
        said: RefCell::default(),
    };
    loop {
        match seat.one_server().await {
            Next::Nothing => break,
            Next::At(start) => tokio::select! {
                () = tokio::time::sleep_until(start.into()) => {}
                () = seat.link.left.up() => break,
            },
            Next::WhenAsked => tokio::select! {
                () = seat.link.to_server.has_news() => {}
                () = seat.link.left.up() => break,
            },
        }
        if !seat.link.wants_more() {
            break;
        }
    }
    seat.link.finish();
}

/// The place of one client's server, whichever it is.
struct Seat {
    house: Rc<House>,
    link: Rc<Link>,
    /// What to run.
    hello: Rc<ClientHello>,
    session: String,
    budget: Budget,
    said: RefCell<VecDeque<String>>,
}

/// What comes after a server.
enum Next {
    Nothing,
    /// Another one, then.
    At(Instant),
    /// Another one, when the client says something.
    WhenAsked,
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

impl Seat {
    /// Starts a server and serves the client with it; returns when nothing is left of it.
    async fn one_server(&mut self) -> Next {
        tokio::select! {
            () = self.house.pool.without(&self.session) => {}
            () = self.link.left.up() => return Next::Nothing,
        }
        self.said.borrow_mut().clear();
        match self.start() {
            Ok(server) => self.serve_with(server).await,
            Err(error) => self.lost(Some(error.raw_os_error().unwrap_or(0))),
        }
    }

    fn start(&self) -> io::Result<Server> {
        let records = self.house.meeting.trees().ok();
        let server = Server::start(&self.hello, records.as_ref().map(AsFd::as_fd))?;
        let ladder = ladder(&self.hello);
        let entry = Entry {
            session: self.session.clone(),
            pid: None,
            since: start::now(),
            ladder: ladder.after_eof + ladder.after_term,
            link: Rc::clone(&self.link),
            asked_before: self.link.asked(),
        };
        self.house.pool.started(server.warden(), entry);
        self.house.stir();
        Ok(server)
    }

    async fn serve_with(&mut self, server: Server) -> Next {
        let (house, link) = (Rc::clone(&self.house), Rc::clone(&self.link));
        let warden = server.warden();
        let Server {
            tree,
            stdin,
            stdout,
            stderr,
        } = server;
        let Ok(news) = watch::registered(tree.as_fd(), Interest::READABLE) else {
            // Dropping the tree asks for its end; nobody can tell when that is.
            house.pool.ended(warden);
            return self.lost(Some(Errno::MFILE.raw_os_error()));
        };
        let (mut heard, mut errors) = (Inbox::default(), Inbox::default());
        let mut feed = Some(Box::pin(feed(&link, stdin)));
        let mut course = Course::default();
        let mut next = None;
        loop {
            // Not before it is known to have run at all: one that could not be started is silent, too.
            if course.silent && course.started && next.is_none() {
                // What it said last is in the pipe, or nobody will ever say it.
                self.last_errors(&stderr, &mut errors);
                feed = None;
                next = Some(self.lost(None));
                course.stop(&tree);
            }
            tokio::select! {
                biased;
                report = next_report(&tree, &news) => match report {
                    Some(report) => self.note(&mut course, warden, &report),
                    None => break,
                },
                () = link.left.up(), if !course.stopped => course.stop(&tree),
                () = async { feed.as_mut().expect("looked at").await }, if feed.is_some() => feed = None,
                open = hear(&link, &stdout, &mut heard), if !course.silent => course.silent = !open,
                open = self.hear_errors(&stderr, &mut errors), if !course.calm => course.calm = !open,
            }
        }
        drop((feed, news));
        self.reap(tree, warden, course.announced).await;
        let next = match next {
            Some(next) => next,
            None => {
                if !course.silent {
                    self.rest_of(&stdout, &mut heard).await;
                }
                self.last_errors(&stderr, &mut errors);
                self.lost(course.refused)
            }
        };
        house.freed.notify_waiters();
        next
    }

    fn note(&self, course: &mut Course, warden: u32, report: &Report) {
        let house = &self.house;
        match report {
            Report::Started { pid, .. } => {
                course.started = true;
                house.pool.runs_as(warden, *pid);
                house.log.line(format_args!("server {pid} runs"));
                house.stir();
            }
            Report::Refused(errno) => {
                course.refused = Some(*errno);
                course.announced = true;
            }
            Report::Exited(exit) => house
                .log
                .line(format_args!("the server's first process ended: {exit:?}")),
            Report::Empty => course.announced = true,
        }
    }

    /// Nothing is left of the tree; or its warden was killed, and what it left is ours to end.
    async fn reap(&self, mut tree: Tree, warden: u32, announced: bool) {
        let house = &self.house;
        watch::end_of(tree.warden(), Duration::from_millis(10)).await;
        // One that somebody else has reaped is reaped.
        let _ = tree.wait();
        house.pool.ended(warden);
        if !announced {
            let strays = tree::end_strays(&house.pool.wardens());
            house.log.line(format_args!(
                "warden {warden} ended unannounced; strays ended: {}",
                strays.map_or_else(|error| error.to_string(), |count| count.to_string())
            ));
        }
        house.stir();
    }

    /// The server is gone: what that means for its client.
    fn lost(&mut self, refused: Option<i32>) -> Next {
        // A bare client would not understand: to it, this is the end.
        if !self.link.wants_more() || self.link.is_bare() {
            self.link.finish();
            return Next::Nothing;
        }
        let start = match refused {
            Some(_) => None,
            None => self.budget.spend(Instant::now()),
        };
        let (reason, detail) = match refused {
            Some(errno) => (SERVER_UNAVAILABLE, refusal(&self.hello, errno)),
            None => (SERVER_RESTARTED, self.tail()),
        };
        self.house.log.line(format_args!(
            "a server is lost{}",
            match (refused, start) {
                (Some(_), _) => format!(": {detail}"),
                (None, Some(_)) => String::new(),
                (None, None) => " once too often: the next only when it is asked for".into(),
            }
        ));
        if start.is_some() {
            self.house.restarts.set(self.house.restarts.get() + 1);
        }
        self.link.lost_server();
        self.link.tell(&Control::Lost(Lost {
            reason: reason.into(),
            detail,
            final_word: start.is_none(),
        }));
        start.map_or(Next::WhenAsked, Next::At)
    }

    /// What the ended server had said, and nobody had read yet.
    async fn rest_of(&self, stdout: &pipe::Receiver, inbox: &mut Inbox) {
        let link = &self.link;
        loop {
            tokio::select! {
                () = link.to_client.has_room() => {}
                () = link.left.up() => return,
            }
            let read = inbox.fill(CHUNK, |room| stdout.try_read(room));
            pass_on(link, inbox);
            if !matches!(read, Ok(1..)) {
                break;
            }
        }
        last_line(link, inbox);
    }

    /// Reads some of the server's stderr; `false` at its end.
    async fn hear_errors(&self, stderr: &pipe::Receiver, inbox: &mut Inbox) -> bool {
        self.link.to_client.has_room().await;
        if stderr.readable().await.is_err() {
            return false;
        }
        let read = inbox.fill(CHUNK, |room| stderr.try_read(room));
        self.note_errors(inbox, matches!(read, Ok(0)));
        still_open(&read)
    }

    fn last_errors(&self, stderr: &pipe::Receiver, inbox: &mut Inbox) {
        while matches!(inbox.fill(CHUNK, |room| stderr.try_read(room)), Ok(1..)) {
            self.note_errors(inbox, false);
        }
        self.note_errors(inbox, true);
    }

    fn note_errors(&self, inbox: &mut Inbox, ended: bool) {
        while let Some(line) = inbox.next_line() {
            let line = String::from_utf8_lossy(line).into_owned();
            self.note_error(line);
        }
        if ended && let Some(rest) = inbox.rest() {
            self.note_error(String::from_utf8_lossy(&rest).into_owned());
        }
    }

    fn note_error(&self, line: String) {
        self.house.log.line(format_args!("server says: {line}"));
        let mut said = self.said.borrow_mut();
        if said.len() == TAIL_LINES {
            said.pop_front();
        }
        said.push_back(line.chars().take(TAIL_LINE_BYTES).collect());
        self.link.tell(&Control::Stderr(line));
    }

    fn tail(&self) -> String {
        let said = self.said.borrow();
        let lines: Vec<&str> = said.iter().map(String::as_str).collect();
        lines.join("\n")
    }
}

/// Writes what the client says to the server, and closes its stdin behind the last.
async fn feed(link: &Link, mut stdin: pipe::Sender) {
    let written = link
        .to_server
        .write_out(async |bytes| stdin.write(bytes).await)
        .await;
    drop(stdin);
    // A server that reads no more is not lost: its stdout tells. What is said to it is said to nobody.
    if written.is_err() {
        link.to_server.discard().await;
    }
}

/// Passes on some of what the server says; `false` at its end.
async fn hear(link: &Link, stdout: &pipe::Receiver, inbox: &mut Inbox) -> bool {
    link.to_client.has_room().await;
    if stdout.readable().await.is_err() {
        return false;
    }
    let read = inbox.fill(CHUNK, |room| stdout.try_read(room));
    pass_on(link, inbox);
    let open = still_open(&read);
    if !open {
        last_line(link, inbox);
    }
    open
}

fn pass_on(link: &Link, inbox: &mut Inbox) {
    let mut longest = 0;
    while let Some(line) = inbox.next_line() {
        longest = longest.max(line.len());
        match line {
            // It would be taken for a word of ours.
            [b'!', ..] if !link.is_bare() => {
                let text = String::from_utf8_lossy(line).into_owned();
                link.tell(&Control::Stderr(text));
            }
            line => link.to_client.push(line),
        }
    }
    queue::give_back(inbox, longest);
}

fn last_line(link: &Link, inbox: &mut Inbox) {
    match inbox.rest() {
        Some(rest) if link.is_bare() => link.to_client.push_raw(&rest),
        Some(rest) => link.to_client.push(&rest),
        None => {}
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
        for pipe in [&to_server, &from_server] {
            // Smaller pipes only cost turns: an unprivileged user may have used up its share of larger ones.
            let _ = rustix::pipe::fcntl_setpipe_size(pipe, PIPE_SIZE);
        }
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

    fn warden(&self) -> u32 {
        self.tree.warden().pid()
    }
}

fn ladder(hello: &ClientHello) -> Ladder {
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

fn os(text: &Text) -> OsString {
    OsString::from_vec(text.as_bytes().to_vec())
}

fn pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
}

//! One client: its hello, its lines both ways, its end.

use std::cell::{Cell, OnceCell};
use std::io;
use std::rc::Rc;

use kennel_core::hello::{ClientHello, Control, DaemonHello, LONGEST_HELLO, PROTOCOL};
use kennel_core::lifetime::ClientId;
use kennel_core::message::Message;
use kennel_sys::peer::Peer;
use kennel_sys::process::{Identity, ProcessRef};
use tokio::net::UnixStream;

use super::house::{Flag, House};
use super::queue::{self, Queue};
use super::state::ClientState;
use super::{server, start, watch};
use crate::shim::lines::Inbox;

/// How much is read at once.
const CHUNK: usize = 64 * 1024;
/// A session that begins with a handshake does so within its first lines.
const FIRST_LINES: u64 = 8;
/// Longer lines are passed on unread: they are requests with much to say, and no handshake.
const LOOKED_INTO: usize = 256 * 1024;

/// What a client's connection and its server have in common.
#[derive(Debug)]
pub(super) struct Link {
    pid: u32,
    since: u64,
    hello: OnceCell<Rc<ClientHello>>,
    /// It said no hello: it gets what the server says, and no word of Kennel's.
    bare: Cell<bool>,
    pub(super) to_client: Queue,
    pub(super) to_server: Queue,
    /// It is not there any more.
    pub(super) left: Flag,
    /// It will say no more, and waits for its answers.
    half_closed: Cell<bool>,
    /// Its session began with a handshake.
    shook_hands: Cell<bool>,
    /// Its server was lost: what it said before it heard that was for the lost one.
    begins_anew: Cell<bool>,
    lines: Cell<u64>,
    asked: Cell<u64>,
}

impl Link {
    pub(super) fn new(pid: u32) -> Link {
        Link {
            pid,
            since: start::now(),
            hello: OnceCell::new(),
            bare: Cell::new(false),
            to_client: Queue::default(),
            to_server: Queue::default(),
            left: Flag::default(),
            half_closed: Cell::new(false),
            shook_hands: Cell::new(false),
            begins_anew: Cell::new(false),
            lines: Cell::new(0),
            asked: Cell::new(0),
        }
    }

    /// Says a word of Kennel's own, if it understands any.
    pub(super) fn tell(&self, word: &Control) {
        if self.hello.get().is_some() {
            self.to_client.push(&word.line());
        }
    }

    /// The connection ends when all that waits is written.
    pub(super) fn finish(&self) {
        self.to_client.end();
    }

    pub(super) fn is_bare(&self) -> bool {
        self.bare.get()
    }

    /// Whether it wants another server when it loses this one.
    pub(super) fn wants_more(&self) -> bool {
        !self.left.is_up() && !self.half_closed.get() && !self.to_client.is_ended()
    }

    /// Its server is lost, and what waits for it with it.
    pub(super) fn lost_server(&self) {
        self.to_server.clear();
        self.begins_anew.set(self.shook_hands.get());
    }

    /// How many requests it sent.
    pub(super) fn asked(&self) -> u64 {
        self.asked.get()
    }

    pub(super) fn state(&self) -> ClientState {
        let app = self.hello.get().and_then(|hello| hello.app.as_ref());
        ClientState {
            pid: self.hello.get().map_or(self.pid, |hello| hello.pid),
            app_pid: app.map(|app| app.pid),
            app: app.map(|app| app.name.clone()),
            since: self.since,
        }
    }

    /// A line of the client's.
    fn take(&self, line: &[u8]) {
        if !self.is_bare()
            && let Some(word) = Control::parse(line)
        {
            // Whoever does not listen is not told that we are here.
            if word == Control::Ping && !self.to_client.is_full() {
                self.tell(&Control::Pong);
            }
            return;
        }
        self.lines.set(self.lines.get() + 1);
        if line.len() > LOOKED_INTO {
            self.asked.set(self.asked.get() + 1);
        } else if let Ok(Message::Request(request)) = Message::parse(line) {
            self.asked.set(self.asked.get() + 1);
            if self.lines.get() <= FIRST_LINES || self.begins_anew.get() {
                let shakes_hands = request.method.is("initialize");
                self.shook_hands.set(self.shook_hands.get() | shakes_hands);
                self.begins_anew.set(self.begins_anew.get() & !shakes_hands);
            }
        }
        // Rule 5: what was for the lost server is not for the next one.
        if !self.begins_anew.get() {
            self.to_server.push(line);
        }
    }
}

/// Serves one client to its end.
pub(super) async fn serve(
    house: Rc<House>,
    id: ClientId,
    link: Rc<Link>,
    socket: UnixStream,
    peer: Peer,
) {
    let ended = attend(&house, id, &link, &socket, peer).await;
    house.log.line(format_args!(
        "client {} (process {}) left: {ended}",
        id.0, link.pid
    ));
    link.left.raise();
    link.to_server.end();
    drop(socket);
    house.left(id);
}

/// Returns why it ended.
async fn attend(
    house: &Rc<House>,
    id: ClientId,
    link: &Rc<Link>,
    socket: &UnixStream,
    peer: Peer,
) -> String {
    let seen_elsewhere = peer.process.is_some() && counts_otherwise(peer.pid);
    let mut processes: Vec<ProcessRef> = peer.process.into_iter().collect();
    let mut inbox = Inbox::default();
    let first = tokio::select! {
        first = first_line(socket, &mut inbox) => first,
        () = watch::end_of_any(&processes, house.sweep) => return "its process ended".into(),
        () = link.left.up() => return "dismissed".into(),
        () = link.to_client.has_news() => {
            let going = [&Control::Going.line()[..], b"\n"].concat();
            let _ = socket.try_write(&going);
            return "it came too late".into();
        }
    };
    let first = match first {
        Ok(first) => first,
        Err(why) => return why,
    };
    let hello = match ClientHello::parse(&first.line) {
        Some(Ok(hello)) => Rc::new(hello),
        Some(Err(error)) => return error.to_string(),
        None => match bare(house, link) {
            Some(hello) => hello,
            None => return "it said no hello, and nobody before it said what to run".into(),
        },
    };
    if link.is_bare() {
        if first.ended {
            link.to_server.push_raw(&first.line);
        } else {
            link.take(&first.line);
        }
    } else {
        // Rule 6: where the connection's process is another one, or unknown, its word is checked.
        if !seen_elsewhere {
            match announced(&hello, &processes) {
                Announced::Dead => {
                    return format!("it announced process {}, which is gone", hello.pid);
                }
                Announced::Another(process) => processes.push(process),
                Announced::Known => {}
            }
        }
        if !processes.is_empty() {
            house.life.borrow_mut().seen(id);
        }
        greet(house, link, &hello);
    }
    house.log.line(format_args!(
        "client {} (process {}){} attached",
        id.0,
        link.pid,
        if link.is_bare() { ", bare," } else { "" }
    ));
    house.stir();
    let session = match link.is_bare() {
        // It lends what to run from another client, not its session.
        true => format!("bare {}", id.0),
        false => hello.session.clone(),
    };
    tokio::task::spawn_local(server::attend(
        Rc::clone(house),
        Rc::clone(link),
        Rc::clone(&hello),
        session,
    ));
    let reading = async {
        if !first.ended && read_on(house, id, link, socket, &mut inbox).await == Heard::Hangup {
            return;
        }
        link.half_closed.set(true);
        link.to_server.end();
        // Where that cannot be watched, the process still is.
        if watch::hangup(socket).await.is_err() {
            std::future::pending().await
        }
    };
    tokio::select! {
        () = reading => "it closed its connection".into(),
        () = watch::end_of_any(&processes, house.sweep) => "its process ended".into(),
        () = link.left.up() => "dismissed".into(),
        written = link.to_client.write_out(async |bytes| write(socket, bytes).await) => match written {
            Ok(()) => "all is said".into(),
            Err(error) => format!("it does not listen: {error}"),
        },
    }
}

/// The first line, which tells what kind of client it is.
struct First {
    line: Vec<u8>,
    /// Nothing came after it, not even a newline.
    ended: bool,
}

async fn first_line(socket: &UnixStream, inbox: &mut Inbox) -> Result<First, String> {
    let mut read = 0;
    let mut speaks_kennel = false;
    loop {
        if let Some(line) = inbox.next_line() {
            let line = line.to_vec();
            return Ok(First { line, ended: false });
        }
        // Nobody fills our memory before we know who it is.
        if speaks_kennel && read > LONGEST_HELLO {
            return Err(format!("its hello is longer than {LONGEST_HELLO} bytes"));
        }
        let count = fill(socket, inbox, |bytes| {
            if read == 0 {
                speaks_kennel = bytes.first() == Some(&b'!');
            }
        });
        match count.await {
            Ok(0) => break,
            Ok(count) => read += count,
            Err(error) => return Err(format!("it cannot be heard: {error}")),
        }
    }
    match inbox.rest() {
        Some(line) if !speaks_kennel => Ok(First { line, ended: true }),
        _ => Err("it said nothing".into()),
    }
}

/// A client without hello gets what the first one with a hello wanted.
fn bare(house: &House, link: &Link) -> Option<Rc<ClientHello>> {
    link.bare.set(true);
    house.first_hello.borrow().clone()
}

/// Whether a process has other pids than we have: then what it says of its own cannot be checked.
fn counts_otherwise(pid: u32) -> bool {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/pid"));
    match (namespace(&pid.to_string()), namespace("self")) {
        (Ok(theirs), Ok(ours)) => theirs != ours,
        _ => pid == 0,
    }
}

/// What a hello says of the process behind it.
enum Announced {
    /// The one whose connection it is.
    Known,
    /// One we did not know of.
    Another(ProcessRef),
    Dead,
}

fn announced(hello: &ClientHello, known: &[ProcessRef]) -> Announced {
    let Ok(identity) = hello.identity.parse::<Identity>() else {
        // A later version's: nothing can be said of it.
        return Announced::Known;
    };
    let is_it = |process: &ProcessRef| process.identity().same_process(&identity);
    if known
        .iter()
        .any(|process| is_it(process) && process.is_alive())
    {
        return Announced::Known;
    }
    match ProcessRef::find(&identity) {
        Ok(Some(process)) => Announced::Another(process),
        Ok(None) => Announced::Dead,
        // Ambiguous means alive.
        Err(_) => Announced::Known,
    }
}

fn greet(house: &House, link: &Link, hello: &Rc<ClientHello>) {
    let answer = DaemonHello {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        protocol: PROTOCOL,
        generation: house.generation.clone(),
    };
    link.to_client.push(&answer.line());
    for older in house.clients.borrow().values() {
        // A session that attaches again has given its former connection up.
        if older
            .hello
            .get()
            .is_some_and(|older| older.session == hello.session)
        {
            older.left.raise();
        }
    }
    let _ = link.hello.set(Rc::clone(hello));
    if house.moved.get() {
        link.tell(&Control::Moved);
    }
    let is_first = house.first_hello.borrow().is_none();
    if is_first {
        *house.first_hello.borrow_mut() = Some(Rc::clone(hello));
        introduce(house, hello);
    }
}

/// Now the daemon knows what it is there for.
fn introduce(house: &House, hello: &ClientHello) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let command: Vec<String> = hello
        .spec
        .command
        .iter()
        .map(|word| text(word.as_bytes()))
        .collect();
    let Some(mut record) = house.meeting.record() else {
        return;
    };
    record.name = crate::key::name_of(&command);
    record.command = command;
    record.cwd = text(hello.spec.cwd.as_bytes());
    if house.has_place()
        && let Err(error) = house.meeting.write_record(&record)
    {
        house.log.line(error);
    }
}

#[derive(PartialEq, Eq)]
enum Heard {
    /// It will say no more, and may still listen.
    HalfClose,
    Hangup,
}

async fn read_on(
    house: &House,
    id: ClientId,
    link: &Link,
    socket: &UnixStream,
    inbox: &mut Inbox,
) -> Heard {
    loop {
        let mut longest = 0;
        while let Some(line) = inbox.next_line() {
            longest = longest.max(line.len());
            link.take(line);
        }
        queue::give_back(inbox, longest);
        if link.to_server.is_full() {
            // Nothing is read while the server does not: its end must be seen otherwise.
            tokio::select! {
                () = link.to_server.has_room() => {}
                Ok(()) = watch::hangup(socket) => return Heard::Hangup,
            }
        }
        match fill(socket, inbox, |_| {}).await {
            Ok(0) => break,
            Ok(_) => house.heard(id),
            Err(_) => return Heard::Hangup,
        }
    }
    if let Some(rest) = inbox.rest() {
        link.to_server.push_raw(&rest);
    }
    if watch::is_hung_up(socket) {
        Heard::Hangup
    } else {
        Heard::HalfClose
    }
}

/// Reads something; 0 at the end.
async fn fill(
    socket: &UnixStream,
    inbox: &mut Inbox,
    mut look: impl FnMut(&[u8]),
) -> io::Result<usize> {
    loop {
        socket.readable().await?;
        let read = inbox.fill(CHUNK, |room| {
            let count = socket.try_read(room)?;
            look(&room[..count]);
            Ok(count)
        });
        match read {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return read,
        }
    }
}

async fn write(socket: &UnixStream, bytes: &[u8]) -> io::Result<usize> {
    loop {
        socket.writable().await?;
        match socket.try_write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            written => return written,
        }
    }
}

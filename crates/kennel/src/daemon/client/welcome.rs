//! A client's first line: its hello, or the first message of a client without one.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Instant;

use kennel_core::engine::daemon::{
    CLOSE_TIMEOUT, FIRST_LINE_TIMEOUT, FirstLine, InputLine, Introduction, MIN_PER_CONNECTION,
    RefusedConnection, Replies, TOO_MANY_ENVIRONMENTS, UnfinishedFirstLine,
};
use kennel_core::hello::ClientHello;
use kennel_sys::memory::release_free_memory;
use kennel_sys::process::{Identity, ProcessRef};

use super::Phase;
use super::admission::{self, Refusal};
use super::conversation::{ClientRef, is_temporary};
use crate::daemon::accept;
use crate::daemon::daemon_state::DaemonState;
use crate::daemon::socket::Socket;
use crate::daemon::timers::Timer;

use crate::lines::{CHUNK, Inbox};

impl ClientRef<'_> {
    /// Begins with a new client, or with a client of a snapshot, which may have sent its first line already.
    pub(super) fn begin(self) {
        if self.conn.launch.get().is_some() {
            return self.is_admitted();
        }
        let on_arrival = match self.conn.phase.take() {
            Phase::New(Some(of_former_build)) => of_former_build,
            _ => Box::new(admission::check_on_arrival(self.conn)),
        };
        self.conn.phase.replace(Phase::Unintroduced(on_arrival));
        self.watch_processes();
        let until = Instant::now() + FIRST_LINE_TIMEOUT;
        self.daemon.set_timer(Timer::Client(self.id), Some(until));
        self.take_first_line(false);
    }

    /// Reads more of its first line.
    pub(super) fn read_first_line(self) {
        let Some(socket) = self.socket() else {
            return;
        };
        match socket.read(&self.conn.inbox, false) {
            Ok(0) => self.take_first_line(true),
            Ok(_) => {
                self.conn.last_read_at.set(Instant::now());
                self.take_first_line(false);
            }
            Err(error) if is_temporary(&error) => {}
            Err(error) => self.leave(&format!("cannot read from it: {error}")),
        }
    }

    /// Closes it if the daemon ends before its first line is complete.
    pub(super) fn close_if_ending(self) {
        if !self.conn.to_client.has_output_or_end() {
            return;
        }
        if let Some(socket) = self.socket() {
            let _ = socket.try_write(&Replies::leaving_reply());
        }
        self.leave("the daemon is exiting");
    }

    pub(super) fn first_line_timed_out(self) {
        let seconds = FIRST_LINE_TIMEOUT.as_secs();
        self.leave(&format!("it sent no complete line within {seconds} s"));
    }

    /// Serves it if its first line is complete. `ended`: its input has ended.
    pub(super) fn take_first_line(self, ended: bool) {
        let Some(socket) = self.socket() else {
            return;
        };
        let length = self.conn.half_line_length();
        if !self.is_unintroduced() || self.must_wait_for_turn(length) {
            return;
        }
        let first_line_read = match first_line(self, &socket) {
            Ok(None) if ended => last_line(&self.conn.inbox),
            first_line_read => first_line_read,
        };
        let outcome = match first_line_read {
            Ok(None) => return,
            Ok(Some(first)) => {
                self.daemon.count_judged(length, 0);
                self.welcome(&socket, first)
            }
            Err(why) => Err(why),
        };
        if let Err(why) = outcome {
            self.leave(&why);
        }
    }

    /// Handles the first line. `Err`: why its connection is closed.
    fn welcome(self, socket: &Rc<Socket>, first: First) -> Result<(), String> {
        let ClientRef { daemon, id, conn } = self;
        let Some(on_arrival) = self.take_arrival_check() else {
            return Ok(());
        };
        let First { line, ended } = first;
        let kind = FirstLine::of(&line);
        if let FirstLine::Ping = kind {
            let _ = socket.try_write(&Replies::pong_reply());
            return Err("it only sent a ping".into());
        }
        conn.to_client.write_directly_to(Rc::downgrade(socket));
        match kind {
            FirstLine::Hello(hello) => {
                // First of all: a long hello takes no memory for a client that is not served.
                let is_long = line.len() > CHUNK;
                drop(line);
                let served = admit(self, *hello, on_arrival);
                if served.is_err() {
                    conn.inbox.take();
                }
                if is_long {
                    release_free_memory();
                }
                match served {
                    Ok(()) => {}
                    Err(NotServed::Refused(Refusal::Dedicated(why))) => {
                        refuse(self, socket, &why);
                        return Ok(());
                    }
                    Err(NotServed::Refused(Refusal::Shortage(error))) => {
                        accept::refuse_for_shortage(daemon, socket.stream(), &error);
                        return Err(format!("it cannot be checked at the moment: {error}"));
                    }
                    Err(NotServed::Closed(why)) => return Err(why),
                }
            }
            FirstLine::Bare | FirstLine::Ping => serve_bare(self, socket, &line, on_arrival)?,
        }
        daemon.log.line(format_args!(
            "client {} (process {}){} attached",
            id.0,
            conn.pid,
            if conn.is_bare() { ", bare," } else { "" }
        ));
        daemon.state_changed();
        if ended {
            self.half_close();
        }
        self.is_admitted();
        Ok(())
    }
}

/// Serves a client without a hello. `Err`: why not.
fn serve_bare(
    client: ClientRef<'_>,
    socket: &Socket,
    line: &[u8],
    on_arrival: admission::ArrivalCheck,
) -> Result<(), String> {
    let ClientRef { daemon, id, conn } = client;
    let launch = match launch_of_bare(daemon) {
        Ok(Some(launch)) => launch,
        Ok(None) => return Err("no hello: neither it nor an earlier client sent one".into()),
        Err(error) => return Err(format!("cannot generate an id for its session: {error}")),
    };
    if !daemon.has_room_for(&launch) {
        let refused = Replies::refuse_bare(line, TOO_MANY_ENVIRONMENTS);
        return Err(write_refusal(socket, refused));
    }
    if let Err(why) = admission::of_bare(daemon, conn, on_arrival) {
        return Err(write_refusal(socket, Replies::refuse_bare(line, &why)));
    }
    let introduction = Introduction::of_bare(&launch);
    conn.set_launch(Rc::new(launch));
    daemon.tell_engine(|engine| engine.handle_introduction(id, introduction));
    client.take(InputLine::from(line), Instant::now());
    Ok(())
}

/// Why a client with a hello is not served.
enum NotServed {
    Refused(Refusal),
    /// It is closed without a reply.
    Closed(String),
}

/// Serves a client with this hello. Its confinement is checked first: for a client with a different confinement, nothing
/// else is checked.
fn admit(
    client: ClientRef<'_>,
    hello: Result<ClientHello, impl std::fmt::Display>,
    on_arrival: admission::ArrivalCheck,
) -> Result<(), NotServed> {
    let ClientRef { daemon, id, conn } = client;
    let hello = hello.map_err(|error| NotServed::Closed(error.to_string()))?;
    admission::of_hello(daemon, conn, &hello, on_arrival).map_err(NotServed::Refused)?;
    if !daemon.has_room_for(&hello) {
        return Err(NotServed::Refused(Refusal::Dedicated(
            TOO_MANY_ENVIRONMENTS.into(),
        )));
    }
    // Rule 6: if the hello names another process than the connection's, that is checked.
    match announced(&hello, &conn.processes()) {
        Announced::Known => {}
        Announced::Dead => {
            let pid = hello.pid;
            let why = format!("its hello names process {pid}, which is gone");
            return Err(NotServed::Closed(why));
        }
        Announced::Another(process) => drop(conn.announced.set(Rc::new(process))),
    }
    daemon.client_is_watched(id, conn);
    introduce(client, hello);
    Ok(())
}

/// The complete first line.
struct First {
    line: Vec<u8>,
    /// No newline came after it.
    ended: bool,
}

/// The first line, if it is complete. `Err`: why its connection is closed.
fn first_line(client: ClientRef<'_>, socket: &Socket) -> Result<Option<First>, String> {
    let ClientRef { daemon, id, conn } = client;
    let inbox: &RefCell<Inbox> = &conn.inbox;
    // Read first: a skipped line is gone.
    let is_hello = inbox.borrow().first() == Some(b'!');
    if let Some(line) = inbox.borrow_mut().next_line() {
        let line = line.to_vec();
        return Ok(Some(First { line, ended: false }));
    }
    if let Some(line) = inbox.borrow_mut().next_too_long(false) {
        let refusal = [&line.refusal()[..], b"\n"].concat();
        let _ = socket.try_write(&refusal);
        return Err("its first line is too long".into());
    }
    let is_small = inbox.borrow().len() <= MIN_PER_CONNECTION;
    if !is_small && !daemon.make_room_for_client(id) {
        conn.refuse_for_shortage(daemon);
        return Err("its first line is long, and the daemon is short of memory".into());
    }
    let first_line = UnfinishedFirstLine {
        is_hello,
        length: inbox.borrow().len(),
        is_skipped: inbox.borrow().is_skipping(),
    };
    let checked = first_line.check();
    checked.map_err(|refused| write_refusal(socket, refused))?;
    Ok(None)
}

/// Writes the reply to a client that is not served; returns why it is not.
fn write_refusal(socket: &Socket, refused: RefusedConnection) -> String {
    if !refused.reply.is_empty() {
        let _ = socket.try_write(&refused.reply);
    }
    refused.why
}

/// A first line without a newline, at the end of input.
fn last_line(inbox: &RefCell<Inbox>) -> Result<Option<First>, String> {
    let is_hello = inbox.borrow().first() == Some(b'!');
    match inbox.borrow_mut().rest() {
        Some(line) if !is_hello => Ok(Some(First { line, ended: true })),
        _ => Err("it sent nothing".into()),
    }
}

/// The hello for a client without one: that of the first client, with a different session name. The name is random, so
/// that no other client can take it in advance.
fn launch_of_bare(daemon: &DaemonState) -> io::Result<Option<ClientHello>> {
    let first = daemon.first_hello.borrow();
    let Some(first) = first.as_deref() else {
        return Ok(None);
    };
    Ok(Some(ClientHello {
        session: kennel_sys::random::hex_id()?,
        ..first.clone()
    }))
}

/// Tells a client to go dedicated; no line of it was taken. Waits a moment for it to close, so that it reads this first.
fn refuse(client: ClientRef<'_>, socket: &Socket, why: &str) {
    let _ = socket.try_write(&client.daemon.replies.dedicated(why));
    socket.stream().end_output();
    let why = format!("not served here, goes dedicated: {why}");
    client.wait_for_close(why, CLOSE_TIMEOUT);
}

/// The process that a hello names.
enum Announced {
    /// The process at the other end of the connection.
    Known,
    /// Another process, which is alive.
    Another(ProcessRef),
    Dead,
}

fn announced(hello: &ClientHello, known: &[&Rc<ProcessRef>]) -> Announced {
    let Ok(identity) = hello.identity.parse::<Identity>() else {
        // A later version's identity cannot be checked.
        return Announced::Known;
    };
    let is_it = |process: &&&Rc<ProcessRef>| process.identity().same_process(&identity);
    if known.iter().filter(is_it).any(|it| it.is_alive()) {
        return Announced::Known;
    }
    match ProcessRef::find(&identity) {
        Ok(Some(process)) => Announced::Another(process),
        Ok(None) => Announced::Dead,
        // In doubt it is alive.
        Err(_) => Announced::Known,
    }
}

fn introduce(client: ClientRef<'_>, hello: ClientHello) {
    let ClientRef { daemon, id, conn } = client;
    let hello = Rc::new(daemon.with_one_environment(hello));
    conn.to_client.push(&daemon.replies.hello());
    conn.set_launch(Rc::clone(&hello));
    let _ = conn.hello.set(Rc::clone(&hello));
    // An older connection with its session is of the same process: that was checked.
    let introduction = Introduction::of_hello(&hello);
    daemon.tell_engine(|engine| engine.handle_introduction(id, introduction));
    let may_offer = || admission::may_offer_program(daemon, conn);
    daemon
        .upgrade
        .offer_build(&hello, &daemon.run_queue, may_offer);
    let is_first = daemon.first_hello.borrow().is_none();
    if is_first {
        *daemon.first_hello.borrow_mut() = Some(Rc::clone(&hello));
        write_record(daemon, &hello);
    }
}

/// Completes the daemon's record by the first hello.
fn write_record(daemon: &DaemonState, hello: &ClientHello) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let command: Vec<String> = hello
        .spec
        .command
        .iter()
        .map(|word| text(word.as_bytes()))
        .collect();
    let Some(mut record) = daemon.key_dir.record() else {
        return;
    };
    record.name = crate::sharing::launcher::name_of(&command);
    // The record is removed with the daemon; this line keeps its name in the log.
    daemon.log.line(format_args!("serves {}", record.name));
    record.command = command;
    record.cwd = text(hello.spec.cwd.as_bytes());
    if daemon.has_runtime_dir()
        && let Err(error) = daemon.key_dir.write_record(&record)
    {
        daemon.log.line(error);
    }
}

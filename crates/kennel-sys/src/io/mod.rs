//! Waits for input, output, process exits and timeouts.
//!
//! A [`Reactor`] reports which of many [`Source`]s are ready. It is level-triggered: input that was not read is reported
//! again. [`Stream`] and [`Listener`] are Unix sockets; pipes are those of the standard library. [`Exit`] is the exit of
//! a process, [`Waker`](crate::events::Waker) a wake-up from another thread.

mod buffer_size;
mod handle;
mod input;
mod socket;

use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::os;
use crate::process::ProcessRef;

pub use buffer_size::{BufferSize, make_room};
pub use handle::{Handle, Waitable};
pub use input::Input;
pub use socket::{Listener, Stream};

/// Identifies a source in the events of a [`Reactor`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token(pub u64);

/// The readiness of a source to wait for. A hangup is always reported as well, except with [`Interest::NONE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Interest {
    /// Input, or the end of input.
    pub readable: bool,
    /// Room for output, or an output without a reader.
    pub writable: bool,
    /// Both directions have ended.
    pub hangup: bool,
    /// The peer has ended its output. Reported as [`readable`](Event::readable) although nothing is read: for an output
    /// whose reader never writes, so that this means it is gone.
    pub half_close: bool,
}

impl Interest {
    /// Nothing.
    pub const NONE: Interest = Interest {
        readable: false,
        writable: false,
        hangup: false,
        half_close: false,
    };
    /// Input.
    pub const READ: Interest = Interest {
        readable: true,
        ..Interest::HANGUP
    };
    /// Room for output.
    pub const WRITE: Interest = Interest {
        writable: true,
        ..Interest::HANGUP
    };
    /// Only the end of the peer's output.
    pub const HANGUP: Interest = Interest {
        hangup: true,
        ..Interest::NONE
    };
}

/// The readiness of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// The source.
    pub token: Token,
    /// Input is available, or has ended.
    pub readable: bool,
    /// There is room for output, or the output has no reader.
    pub writable: bool,
    /// Both directions have ended.
    pub hangup: bool,
}

/// How long [`Reactor::wait`] may sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Do not sleep.
    No,
    /// Until a source is ready.
    Forever,
    /// Until a source is ready, or until this time.
    Until(Instant),
}

/// Reports which of many sources are ready. Clones refer to the same reactor.
#[derive(Debug, Clone)]
pub struct Reactor(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    poller: os::Poller,
    /// Sources without events, such as regular files: they are always ready.
    always_ready: RefCell<Vec<Event>>,
}

impl Reactor {
    /// Creates a reactor without sources.
    pub fn new() -> io::Result<Reactor> {
        Ok(Reactor(Rc::new(Inner {
            poller: os::Poller::new()?,
            always_ready: RefCell::default(),
        })))
    }

    /// Sleeps until a source is ready or the time is over; replaces `events` by the ready sources. Returns `true` if the
    /// time is over. May return early without events: the timeout of an earlier wait may still end one wait.
    pub fn wait(&self, wait: Wait, events: &mut Vec<Event>) -> io::Result<bool> {
        let always_ready = self.0.always_ready.borrow();
        if always_ready.is_empty() {
            return self.0.poller.wait(wait, events);
        }
        self.0.poller.wait(Wait::No, events)?;
        events.extend_from_slice(&always_ready);
        Ok(matches!(wait, Wait::Until(time) if Instant::now() >= time))
    }

    /// Cancels the timeouts of earlier waits.
    pub fn cancel_alarm(&self) {
        self.0.poller.cancel_alarm();
    }

    fn set_always_ready(&self, token: Token, interest: Interest) {
        let mut always_ready = self.0.always_ready.borrow_mut();
        always_ready.retain(|event| event.token != token);
        if interest.readable || interest.writable {
            always_ready.push(Event {
                token,
                readable: interest.readable,
                writable: interest.writable,
                hangup: false,
            });
        }
    }
}

/// A descriptor registered with a [`Reactor`], without interest at first. Dropping it removes it from the reactor before
/// it is closed, because a process that is being started may have a copy of the descriptor.
#[derive(Debug)]
pub struct Source<T: Waitable> {
    inner: T,
    token: Token,
    interest: Cell<Interest>,
    has_events: Cell<bool>,
    reactor: Reactor,
}

impl<T: Waitable> Source<T> {
    /// Registers a source under this token.
    pub fn new(reactor: &Reactor, inner: T, token: Token) -> Source<T> {
        Source {
            inner,
            token,
            interest: Cell::new(Interest::NONE),
            has_events: Cell::new(true),
            reactor: reactor.clone(),
        }
    }

    /// Registers a source with this interest.
    pub fn with(
        reactor: &Reactor,
        inner: T,
        token: Token,
        interest: Interest,
    ) -> io::Result<Source<T>> {
        let source = Source::new(reactor, inner, token);
        source.set_interest(interest)?;
        Ok(source)
    }

    /// Changes the interest. Makes a system call only if it differs. A descriptor without events, such as a regular file,
    /// is always ready.
    pub fn set_interest(&self, interest: Interest) -> io::Result<()> {
        let before = self.interest.get();
        if interest == before {
            return Ok(());
        }
        let (poller, fd) = (&self.reactor.0.poller, self.inner.as_fd());
        if self.has_events.get() {
            if before == Interest::NONE {
                self.has_events.set(poller.add(fd, self.token, interest)?);
            } else if interest == Interest::NONE {
                poller.remove(fd)?;
            } else {
                poller.change(fd, self.token, interest)?;
            }
        }
        if !self.has_events.get() {
            self.reactor.set_always_ready(self.token, interest);
        }
        self.interest.set(interest);
        Ok(())
    }
}

impl<T: Waitable> Drop for Source<T> {
    fn drop(&mut self) {
        let _ = self.set_interest(Interest::NONE);
    }
}

impl<T: Waitable> Deref for Source<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: Waitable> AsFd for Source<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

/// The exit of a process, as a source: readable once the process has ended. It holds a pointer to the process, or to its
/// owner.
#[derive(Debug)]
pub struct Exit<P = Rc<ProcessRef>>(P);

impl<P: Deref<Target: AsRef<ProcessRef>> + Clone> Exit<P> {
    /// The exit of `process`. `None` if the system offers no event for it: then poll [`ProcessRef::is_alive`].
    pub fn of(process: &P) -> Option<Exit<P>> {
        process.as_ref().exit_fd()?;
        Some(Exit(process.clone()))
    }
}

impl<P: Deref<Target: AsRef<ProcessRef>>> AsFd for Exit<P> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let process: &ProcessRef = (*self.0).as_ref();
        process.exit_fd().expect("checked when it was made")
    }
}

/// The number of a descriptor, for the program that this process executes.
pub fn number_of(source: &impl Waitable) -> i32 {
    source.as_fd().as_raw_fd()
}

/// Whether the peer has closed the connection, and not only its output.
pub fn is_hung_up(source: &impl Waitable) -> bool {
    let looked = poll_one(source, PollFlags::empty(), Duration::ZERO);
    looked.is_none_or(|flags| flags.intersects(PollFlags::HUP | PollFlags::ERR))
}

/// Whether the peer has closed the connection or its output, or does so within this time.
pub fn input_ends_within(input: &impl Waitable, time: Duration) -> bool {
    let ended = PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR;
    poll_one(input, PollFlags::RDHUP, time).is_some_and(|flags| flags.intersects(ended))
}

/// Whether a pipe has no reader, or loses it within this time.
pub fn reader_is_gone_within(output: &impl Waitable, time: Duration) -> bool {
    poll_one(output, PollFlags::empty(), time).is_some_and(|flags| flags.contains(PollFlags::ERR))
}

/// Whether input is available or has ended, or that happens within this time.
pub fn is_readable_within(source: &impl Waitable, time: Duration) -> bool {
    poll_one(source, PollFlags::IN, time).is_some_and(|flags| !flags.is_empty())
}

/// Whether there is room for output, or the output has no reader.
pub fn has_room(output: &impl Waitable) -> bool {
    let looked = poll_one(output, PollFlags::OUT, Duration::ZERO);
    looked.is_some_and(|flags| !flags.is_empty())
}

/// Number of unread bytes in a pipe or socket.
pub fn unread_bytes(input: &impl Waitable) -> usize {
    let unread = rustix::io::ioctl_fionread(input).unwrap_or(0);
    usize::try_from(unread).unwrap_or(0)
}

/// Number of bytes written to a pipe or socket that the peer has not read. Exact for a pipe; for a socket, some systems
/// return the memory in use. `None` if the system does not report it.
pub fn unread_by_peer(output: &impl Waitable) -> Option<usize> {
    os::unread_by_peer(output.as_fd())
}

/// Requests this size for a pipe. If the user's quota of large pipes is used up, the pipe keeps its size.
pub fn set_pipe_size(pipe: &impl Waitable, bytes: usize) {
    let _ = os::set_pipe_size(pipe.as_fd(), bytes);
}

/// The readiness within this time, empty if there is none; `None` if it cannot be polled.
fn poll_one(source: &impl Waitable, what: PollFlags, time: Duration) -> Option<PollFlags> {
    let mut polled = [PollFd::from_borrowed_fd(source.as_fd(), what)];
    let time = Timespec::try_from(time).unwrap_or_default();
    poll(&mut polled, Some(&time)).ok()?;
    Some(polled[0].revents())
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, Read, Write};

    use super::*;

    const ONE: Token = Token(1);
    const TWO: Token = Token(2);

    fn now(reactor: &Reactor) -> Vec<Event> {
        let mut events = Vec::new();
        reactor.wait(Wait::No, &mut events).unwrap();
        events
    }

    fn pipe(reactor: &Reactor) -> (Source<PipeReader>, io::PipeWriter) {
        let (reader, writer) = io::pipe().unwrap();
        (Source::new(reactor, reader, ONE), writer)
    }

    #[test]
    fn what_the_other_end_reads_is_seen_though_there_is_no_more_room() {
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(&[b'x'; 5000]).unwrap();
        (&reader).read_exact(&mut [0; 999]).unwrap();
        assert_eq!(unread_by_peer(&writer), Some(4001));

        let (mut ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        set_pipe_size(&ours, 1 << 20);
        while ours.write(&[b'x'; 32 << 10]).is_ok() {}
        let full = unread_by_peer(&ours).unwrap();
        theirs.read_exact(&mut [0; 40 << 10]).unwrap();
        let fuller = unread_by_peer(&ours).unwrap();
        assert!(fuller < full, "{fuller} of {full}");
        assert!(unread_bytes(&theirs) > 0);
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(unread_by_peer(&file), None);
    }

    #[test]
    fn input_is_told_until_it_is_read_and_only_if_it_is_wanted() {
        let reactor = Reactor::new().unwrap();
        let (source, mut writer) = pipe(&reactor);
        writer.write_all(b"ab").unwrap();
        assert_eq!(now(&reactor), []);
        source.set_interest(Interest::READ).unwrap();
        for _ in 0..2 {
            let events = now(&reactor);
            assert!(events[0].readable && !events[0].hangup && events[0].token == ONE);
            (&*source).read_exact(&mut [0]).unwrap();
        }
        assert_eq!(now(&reactor), []);
        drop(writer);
        assert!(now(&reactor)[0].readable && now(&reactor)[0].hangup);
        source.set_interest(Interest::NONE).unwrap();
        assert_eq!(now(&reactor), [], "not even its end");
    }

    #[test]
    fn the_end_is_told_though_nobody_reads_and_a_half_close_is_none() {
        let reactor = Reactor::new().unwrap();
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let source = Source::with(&reactor, ours, TWO, Interest::HANGUP).unwrap();
        theirs.write_all(b"unread").unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(now(&reactor), []);
        assert!(!is_hung_up(&source));
        drop(theirs);
        assert!(now(&reactor)[0].hangup && is_hung_up(&source));
    }

    #[test]
    fn room_is_told_when_it_is_made() {
        let reactor = Reactor::new().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        crate::stdio::set_nonblocking(&writer).unwrap();
        let source = Source::with(&reactor, writer, ONE, Interest::WRITE).unwrap();
        assert!(now(&reactor)[0].writable);
        let mut filled = 0;
        while let Ok(count) = (&*source).write(&[0; 4096]) {
            filled += count;
        }
        assert_eq!((now(&reactor), has_room(&source)), (vec![], false));
        reader.read_exact(&mut vec![0; filled]).unwrap();
        assert!(now(&reactor)[0].writable && has_room(&source));
    }

    #[test]
    fn a_dropped_source_is_told_no_more_though_a_copy_of_it_is_open() {
        let reactor = Reactor::new().unwrap();
        let (source, mut writer) = pipe(&reactor);
        let copy = source.try_clone().unwrap();
        source.set_interest(Interest::READ).unwrap();
        writer.write_all(b"x").unwrap();
        drop(source);
        assert_eq!(now(&reactor), []);
        let copy = Source::with(&reactor, copy, TWO, Interest::READ).unwrap();
        assert_eq!(now(&reactor)[0].token, TWO);
        drop(copy);
    }

    #[test]
    fn a_wait_ends_with_its_time_and_not_before_and_the_next_has_its_own() {
        let reactor = Reactor::new().unwrap();
        let mut events = Vec::new();
        let start = Instant::now();
        for millis in [30, 10, 40, 0] {
            let until = start + Duration::from_millis(millis);
            // It may be woken early: then it is not over.
            while !reactor.wait(Wait::Until(until), &mut events).unwrap() {}
            assert!(Instant::now() >= until && events.is_empty());
        }
        let (source, mut writer) = pipe(&reactor);
        source.set_interest(Interest::READ).unwrap();
        writer.write_all(b"x").unwrap();
        let later = Wait::Until(Instant::now() + Duration::from_secs(3600));
        assert!(!reactor.wait(later, &mut events).unwrap());
        assert_eq!(events.len(), 1);
        assert!(!reactor.wait(Wait::Forever, &mut events).unwrap());
        assert_eq!(events.len(), 1);
    }

    #[test]
    fn a_file_is_ready_whenever_it_is_wanted() {
        let reactor = Reactor::new().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        let file = Source::new(&reactor, file, ONE);
        for _ in 0..2 {
            file.set_interest(Interest::READ).unwrap();
            let mut events = Vec::new();
            assert!(!reactor.wait(Wait::Forever, &mut events).unwrap());
            assert!(events[0].token == ONE && events[0].readable && !events[0].writable);
            file.set_interest(Interest::NONE).unwrap();
            assert_eq!(now(&reactor), []);
        }
        file.set_interest(Interest::WRITE).unwrap();
        drop(file);
        assert_eq!(now(&reactor), []);
    }

    #[test]
    fn a_reader_that_writes_no_more_is_told_only_if_that_is_wanted() {
        let reactor = Reactor::new().unwrap();
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let source = Source::with(&reactor, ours, ONE, Interest::HANGUP).unwrap();
        theirs.write_all(b"unread").unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(now(&reactor), []);
        let half_close = Interest {
            half_close: true,
            ..Interest::HANGUP
        };
        source.set_interest(half_close).unwrap();
        assert!(now(&reactor)[0].readable && !now(&reactor)[0].hangup);
    }

    #[test]
    fn a_cancelled_time_wakes_nobody() {
        let reactor = Reactor::new().unwrap();
        let mut events = Vec::new();
        let (source, mut writer) = pipe(&reactor);
        source.set_interest(Interest::READ).unwrap();
        writer.write_all(b"x").unwrap();
        let soon = Instant::now() + Duration::from_millis(150);
        assert!(!reactor.wait(Wait::Until(soon), &mut events).unwrap());
        (&*source).read_exact(&mut [0]).unwrap();
        reactor.cancel_alarm();
        crate::events::sleep(&[], &[], Some(Duration::from_millis(200))).unwrap();
        assert_eq!(now(&reactor), []);
        let later = Instant::now() + Duration::from_millis(150);
        while !reactor.wait(Wait::Until(later), &mut events).unwrap() {}
        assert!(Instant::now() >= later);
    }

    #[test]
    fn a_time_that_is_over_is_told_though_there_is_always_something_to_read() {
        let reactor = Reactor::new().unwrap();
        let (source, mut writer) = pipe(&reactor);
        source.set_interest(Interest::READ).unwrap();
        writer.write_all(b"x").unwrap();
        for millis in [10, 150] {
            let until = Instant::now() + Duration::from_millis(millis);
            let mut events = Vec::new();
            while !reactor.wait(Wait::Until(until), &mut events).unwrap() {
                assert!(Instant::now() < until + Duration::from_secs(60));
            }
        }
    }

    #[test]
    fn the_end_of_a_process_and_a_bell_from_a_thread_wake() {
        let reactor = Reactor::new().unwrap();
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let process = Rc::new(ProcessRef::open(child.id()).unwrap());
        let exit = Exit::of(&process).map(|exit| {
            let source = Source::with(&reactor, exit, ONE, Interest::READ).unwrap();
            assert_eq!(now(&reactor), []);
            source
        });
        child.kill().unwrap();
        let mut events = Vec::new();
        if exit.is_some() {
            reactor.wait(Wait::Forever, &mut events).unwrap();
            assert!(events[0].token == ONE && events[0].readable);
        }
        child.wait().unwrap();
        drop(exit);
        let bell = std::sync::Arc::new(crate::events::Waker::new().unwrap());
        let rings = std::sync::Arc::clone(&bell);
        let bell = Source::with(&reactor, bell, TWO, Interest::READ).unwrap();
        std::thread::spawn(move || rings.wake());
        reactor.wait(Wait::Forever, &mut events).unwrap();
        assert_eq!(events[0].token, TWO);
        bell.clear();
        assert_eq!(now(&reactor), []);
    }
}

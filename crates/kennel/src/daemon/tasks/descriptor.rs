//! What can be read, written, or has ended.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;

use super::others_first;
use super::round::Round;
use super::slab::{Number, Slab};

/// So many are heard of at once.
const AT_ONCE: usize = 128;

/// Something to read, or the end of it.
const INPUT: EventFlags = EventFlags::IN.union(EventFlags::RDHUP).union(ENDED);
const ROOM: EventFlags = EventFlags::OUT.union(ENDED);
/// It has ended both ways. That is told in any case.
const ENDED: EventFlags = EventFlags::HUP.union(EventFlags::ERR);

/// All that the loop waits for.
pub(super) struct Descriptors {
    epoll: OwnedFd,
    sources: RefCell<Slab<Rc<Source>>>,
    happened: RefCell<Vec<Event>>,
}

impl Descriptors {
    pub(super) fn new() -> io::Result<Descriptors> {
        Ok(Descriptors {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            sources: RefCell::default(),
            happened: RefCell::new(Vec::with_capacity(AT_ONCE)),
        })
    }

    /// Wakes whoever waits for what has happened; sleeps until something has, if it may.
    pub(super) fn wake_those_ready(&self, may_sleep: bool) {
        let mut happened = self.happened.borrow_mut();
        happened.clear();
        let at_once = Timespec::default();
        let at_most = (!may_sleep).then_some(&at_once);
        match epoll::wait(&self.epoll, spare_capacity(&mut happened), at_most) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => panic!("an event loop without events: {errno}"),
        }
        let sources = self.sources.borrow();
        for event in happened.iter() {
            // One that was dropped meanwhile is not there any more.
            if let Some(source) = sources.get(Number::from_u64(event.data.u64())) {
                source.happened(event.flags);
            }
        }
    }
}

/// What has happened to one of them, and who waits for that.
struct Source {
    ready: Cell<EventFlags>,
    reads: Waits,
    writes: Waits,
    watches: Waits,
}

/// One who waits.
type Waits = RefCell<Option<Waker>>;

impl Source {
    fn happened(&self, flags: EventFlags) {
        self.ready.set(self.ready.get() | flags);
        let whom = [
            (INPUT, &self.reads),
            (ROOM, &self.writes),
            (ENDED, &self.watches),
        ];
        for (what, waits) in whom {
            if flags.intersects(what)
                && let Some(waker) = &*waits.borrow()
            {
                waker.wake_by_ref();
            }
        }
    }

    fn poll(&self, what: EventFlags, waits: &Waits, context: &Context<'_>) -> Poll<()> {
        if self.ready.get().intersects(what) {
            return Poll::Ready(());
        }
        let mut waits = waits.borrow_mut();
        match &mut *waits {
            Some(waker) => waker.clone_from(context.waker()),
            None => *waits = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    fn is_over(&self, what: EventFlags) {
        self.ready.set(self.ready.get() - what);
    }
}

/// A descriptor that the loop waits for. One task may wait for its input, one for room, one for its end.
pub(in crate::daemon) struct Descriptor<F: AsFd> {
    inner: F,
    usual: EventFlags,
    number: Number,
    source: Rc<Source>,
    round: Rc<Round>,
    /// There was more to be read than was read.
    more: Cell<bool>,
}

impl<F: AsFd> Descriptor<F> {
    /// One that is read.
    pub(in crate::daemon) fn of_input(inner: F) -> io::Result<Descriptor<F>> {
        Descriptor::new(inner, EventFlags::IN | EventFlags::RDHUP)
    }

    /// One that is only written.
    pub(in crate::daemon) fn of_output(inner: F) -> io::Result<Descriptor<F>> {
        Descriptor::new(inner, EventFlags::empty())
    }

    fn new(inner: F, usual: EventFlags) -> io::Result<Descriptor<F>> {
        let round = Round::here();
        let source = Rc::new(Source {
            ready: Cell::new(EventFlags::empty()),
            reads: Waits::default(),
            writes: Waits::default(),
            watches: Waits::default(),
        });
        let kept = Rc::clone(&source);
        let number = round.descriptors.sources.borrow_mut().insert(|_| kept);
        let Descriptors { epoll, sources, .. } = &round.descriptors;
        let data = EventData::new_u64(number.to_u64());
        if let Err(errno) = epoll::add(epoll, &inner, data, usual | EventFlags::ET) {
            sources.borrow_mut().remove(number);
            return Err(errno.into());
        }
        Ok(Descriptor {
            inner,
            usual,
            number,
            source,
            round,
            more: Cell::new(false),
        })
    }

    fn data(&self) -> EventData {
        EventData::new_u64(self.number.to_u64())
    }

    /// Waits until there is something to read, or the end of it.
    pub(in crate::daemon) async fn readable(&self) {
        poll_fn(|context| self.source.poll(INPUT, &self.source.reads, context)).await;
    }

    /// All of it was read: more is news again.
    pub(in crate::daemon) fn was_read(&self) {
        self.source.is_over(EventFlags::IN);
    }

    /// Reads something; 0 at the end. `read` makes room for `room` at least, which is asked for then: if it reads less, that
    /// was all there was.
    /// Whoever has more to say than is read at once lets others have a turn.
    pub(in crate::daemon) async fn read(
        &self,
        room: impl Fn() -> usize,
        mut read: impl FnMut(&F) -> io::Result<usize>,
    ) -> io::Result<usize> {
        if self.more.take() {
            others_first().await;
        }
        loop {
            self.readable().await;
            let room = room();
            let read = read(&self.inner);
            match &read {
                Ok(count) if *count < room => self.was_read(),
                Ok(_) => self.more.set(true),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.was_read();
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => {}
            }
            return read;
        }
    }

    /// Waits until something can be written, or nobody will ever read it. It is waited for only now: one that is always
    /// told of room is woken once more for everything that is read at the other end.
    pub(in crate::daemon) async fn room(&self) -> io::Result<()> {
        let wants = WantsRoom::of(self)?;
        poll_fn(|context| self.source.poll(ROOM, &self.source.writes, context)).await;
        drop(wants);
        Ok(())
    }

    /// Waits until it has ended both ways.
    pub(in crate::daemon) async fn ended(&self) {
        poll_fn(|context| self.source.poll(ENDED, &self.source.watches, context)).await;
    }

    /// Whether it is known to have.
    pub(in crate::daemon) fn has_ended(&self) -> bool {
        self.source.ready.get().intersects(ENDED)
    }

    /// Changes what is waited for. What is there of it is told then.
    fn want(&self, what: EventFlags) -> io::Result<()> {
        let epoll = &self.round.descriptors.epoll;
        let what = what | EventFlags::ET;
        Ok(epoll::modify(epoll, &self.inner, self.data(), what)?)
    }
}

impl<F: AsFd> Drop for Descriptor<F> {
    fn drop(&mut self) {
        let Descriptors { epoll, sources, .. } = &self.round.descriptors;
        // Before it is closed: a process that is just being started may have a copy of it.
        let _ = epoll::delete(epoll, &self.inner);
        let source = sources.borrow_mut().remove(self.number);
        drop(source);
    }
}

impl<F: AsFd> fmt::Debug for Descriptor<F> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{:?}", self.inner.as_fd())
    }
}

impl<F: AsFd> Deref for Descriptor<F> {
    type Target = F;

    fn deref(&self) -> &F {
        &self.inner
    }
}

impl<F: AsFd> AsFd for Descriptor<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

/// As long as this is there, room is waited for, too.
struct WantsRoom<'a, F: AsFd>(&'a Descriptor<F>);

impl<F: AsFd> WantsRoom<'_, F> {
    fn of(descriptor: &Descriptor<F>) -> io::Result<WantsRoom<'_, F>> {
        descriptor.source.is_over(EventFlags::OUT);
        descriptor.want(descriptor.usual | EventFlags::OUT)?;
        Ok(WantsRoom(descriptor))
    }
}

impl<F: AsFd> Drop for WantsRoom<'_, F> {
    fn drop(&mut self) {
        let _ = self.0.want(self.0.usual);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::super::{first_of, moments, run, spawn};
    use super::*;

    fn pair() -> (UnixStream, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (ours, theirs)
    }

    /// Reads up to four bytes at once.
    async fn some_of(descriptor: &Descriptor<UnixStream>) -> Vec<u8> {
        let mut bytes = [0; 4];
        let read = descriptor.read(|| 4, |mut stream| stream.read(&mut bytes));
        let count = read.await.unwrap();
        bytes[..count].to_vec()
    }

    /// Whether it does not come by itself.
    async fn is_waited_for(what: impl Future) -> bool {
        first_of! {
            _ = what => false,
            () = moments::after(Duration::from_millis(20)) => true,
        }
    }

    #[test]
    fn all_that_is_said_is_read_however_much_at_once_and_then_the_end() {
        run(async {
            let (ours, mut theirs) = pair();
            let ours = Descriptor::of_input(ours).unwrap();
            assert!(is_waited_for(some_of(&ours)).await);
            theirs.write_all(b"0123456789").unwrap();
            assert_eq!(some_of(&ours).await, b"0123");
            assert_eq!(some_of(&ours).await, b"4567");
            assert_eq!(some_of(&ours).await, b"89");
            assert!(is_waited_for(some_of(&ours)).await);
            let reads = spawn(async move { (some_of(&ours).await, some_of(&ours).await) });
            moments::after(Duration::from_millis(1)).await;
            theirs.write_all(b"ab").unwrap();
            moments::after(Duration::from_millis(1)).await;
            drop(theirs);
            assert_eq!(reads.await, Some((b"ab".to_vec(), Vec::new())));
        })
        .unwrap();
    }

    #[test]
    fn room_comes_when_it_is_made_and_wakes_nobody_who_does_not_ask() {
        run(async {
            let (ours, mut theirs) = pair();
            let ours = Descriptor::of_input(ours).unwrap();
            for _ in 0..2 {
                let mut filled = 0;
                while let Ok(count) = (&*ours).write(&[0; 4096]) {
                    filled += count;
                }
                assert!(is_waited_for(ours.room()).await);
                theirs.read_exact(&mut vec![0; filled]).unwrap();
                // It was not asked for when it came.
                assert!(is_waited_for(ours.readable()).await);
                ours.room().await.unwrap();
            }
            theirs.write_all(b"x").unwrap();
            assert_eq!(some_of(&ours).await, b"x");
        })
        .unwrap();
    }

    #[test]
    fn the_end_is_seen_though_nobody_reads_and_a_half_close_is_none() {
        run(async {
            let (ours, mut theirs) = pair();
            let ours = Descriptor::of_input(ours).unwrap();
            theirs.write_all(b"unread").unwrap();
            theirs.shutdown(std::net::Shutdown::Write).unwrap();
            ours.readable().await;
            assert!(is_waited_for(ours.ended()).await);
            drop(theirs);
            ours.ended().await;
            assert_eq!(some_of(&ours).await, b"unre");
            assert_eq!(some_of(&ours).await, b"ad");
            assert_eq!(some_of(&ours).await, b"");
        })
        .unwrap();
    }

    #[test]
    fn what_is_dropped_wakes_nobody_and_the_next_has_its_own_events() {
        run(async {
            let (ours, mut theirs) = pair();
            let copy = ours.try_clone().unwrap();
            let first = Descriptor::of_input(ours).unwrap();
            theirs.write_all(b"first").unwrap();
            drop(first);
            let (ours, _their_end) = pair();
            let second = Descriptor::of_input(ours).unwrap();
            assert!(is_waited_for(second.readable()).await);
            let again = Descriptor::of_input(copy).unwrap();
            assert_eq!(some_of(&again).await, b"firs");
        })
        .unwrap();
    }

    #[test]
    fn what_is_refused_is_forgotten_and_takes_nothing_along() {
        run(async {
            let (ours, mut theirs) = pair();
            let first = Descriptor::of_input(ours).unwrap();
            assert!(Descriptor::of_input(first.as_fd()).is_err(), "twice");
            theirs.write_all(b"x").unwrap();
            assert_eq!(some_of(&first).await, b"x");
            let file = std::fs::File::open("/dev/null").unwrap();
            assert!(Descriptor::of_input(file).is_err());
            let (ours, mut theirs) = pair();
            let ours = Descriptor::of_input(ours).unwrap();
            theirs.write_all(b"x").unwrap();
            assert_eq!(some_of(&ours).await, b"x");
        })
        .unwrap();
    }
}

//! What the shim sleeps on. The kernel remembers it (epoll): a wake costs what happened, not what could.

use std::cell::Cell;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;

use super::lines::CHUNK;

/// What is said, and the end of it, of what is read to the last byte each time: told once, and not looked at again when
/// we sleep. Whoever reads it tells how that went ([`Watched::was_read`]).
pub(crate) const NEWS: EventFlags = EventFlags::IN
    .union(EventFlags::RDHUP)
    .union(EventFlags::ET);

/// Who can wake the shim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Who {
    Signals,
    Starter,
    Stdin,
    Stdout,
    Stderr,
    ServerIn,
    ServerOut,
    ServerErr,
    Warden,
    Election,
    Daemon,
    Alarm,
}

impl Who {
    const ALL: [Who; 12] = [
        Who::Signals,
        Who::Starter,
        Who::Stdin,
        Who::Stdout,
        Who::Stderr,
        Who::ServerIn,
        Who::ServerOut,
        Who::ServerErr,
        Who::Warden,
        Who::Election,
        Who::Daemon,
        Who::Alarm,
    ];
}

/// Everything that is waited for.
#[derive(Debug, Clone)]
pub(super) struct Watch(Rc<OwnedFd>);

impl Watch {
    pub(super) fn new() -> io::Result<Watch> {
        Ok(Watch(Rc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?)))
    }

    /// Waits for input of something that stays open as long as the shim lives.
    pub(super) fn add(&self, fd: BorrowedFd<'_>, who: Who) -> io::Result<()> {
        Ok(epoll::add(&self.0, fd, data(who), EventFlags::IN)?)
    }

    /// The same for something that may be waited for already.
    pub(super) fn add_once(&self, fd: BorrowedFd<'_>, who: Who) -> io::Result<()> {
        match epoll::add(&self.0, fd, data(who), EventFlags::IN) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Something to be waited for when it is [wanted](Watched::want).
    pub(super) fn over<F: AsFd>(&self, inner: F, who: Who) -> Watched<F> {
        Watched {
            inner,
            who,
            watch: self.clone(),
            told: Cell::new(Told::Nothing),
        }
    }

    /// Sleeps until something happens; forgets what happened before.
    pub(super) fn sleep(
        &self,
        happened: &mut Vec<Event>,
        most: Option<Duration>,
    ) -> io::Result<()> {
        happened.clear();
        happened.reserve(Who::ALL.len());
        let most = most.and_then(|most| Timespec::try_from(most).ok());
        match epoll::wait(&self.0, spare_capacity(happened), most.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

fn data(who: Who) -> EventData {
    EventData::new_u64(who as u64)
}

/// Whom an event is about.
pub(super) fn who(event: &Event) -> Option<Who> {
    Who::ALL.get(event.data.u64() as usize).copied()
}

/// Something that is waited for, or not, as it is wanted; dropping it ends that first.
///
/// Closing a descriptor does not, while a process that is just being started has a copy of it.
#[derive(Debug)]
pub(super) struct Watched<F: AsFd> {
    inner: F,
    who: Who,
    watch: Watch,
    told: Cell<Told>,
}

/// What the kernel knows of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Nothing,
    /// Errors and hangups are told in any case.
    Wanted(EventFlags),
    /// It has no events: a file, or `/dev/null`. It is always ready.
    Refused,
}

impl<F: AsFd> Watched<F> {
    /// Waits for this from now on; for nothing at all, not even its end, with `None`. `true` if it is ready
    /// whenever it is asked, and never an event.
    pub(super) fn want(&self, events: Option<EventFlags>) -> io::Result<bool> {
        let wanted = events.map_or(Told::Nothing, Told::Wanted);
        let told = self.told.get();
        if told == wanted {
            return Ok(false);
        }
        let epoll = &self.watch.0;
        let outcome = match (told, wanted) {
            (Told::Refused, Told::Nothing) => return Ok(false),
            (Told::Refused, _) => return Ok(true),
            (Told::Nothing, Told::Wanted(events)) => {
                epoll::add(epoll, &self.inner, data(self.who), events)
            }
            (Told::Wanted(_), Told::Wanted(events)) => {
                epoll::modify(epoll, &self.inner, data(self.who), events)
            }
            _ => epoll::delete(epoll, &self.inner),
        };
        match outcome {
            Ok(()) => {
                self.told.set(wanted);
                Ok(false)
            }
            Err(Errno::PERM) => {
                self.told.set(Told::Refused);
                Ok(true)
            }
            Err(errno) => Err(errno.into()),
        }
    }
}

impl<F: AsFd> Watched<F> {
    /// Less than there was room for is all that there was: more is news again.
    pub(super) fn was_read(&self, read: &io::Result<usize>) {
        self.was_read_of(read, CHUNK);
    }

    /// The same of one that had this much room.
    pub(super) fn was_read_of(&self, read: &io::Result<usize>, room: usize) {
        let all = match read {
            Ok(count) => *count < room,
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        };
        if !all {
            self.tell_again();
        }
    }

    /// What is there now is news.
    pub(super) fn tell_again(&self) {
        if let Told::Wanted(events) = self.told.get() {
            // What cannot be told is seen when it is wanted next.
            let _ = epoll::modify(&self.watch.0, &self.inner, data(self.who), events);
        }
    }
}

impl<F: AsFd> Drop for Watched<F> {
    fn drop(&mut self) {
        let _ = self.want(None);
    }
}

impl<F: AsFd> Deref for Watched<F> {
    type Target = F;

    fn deref(&self) -> &F {
        &self.inner
    }
}

impl<F: AsFd> DerefMut for Watched<F> {
    fn deref_mut(&mut self) -> &mut F {
        &mut self.inner
    }
}

impl<F: AsFd> AsFd for Watched<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn pipe() -> (OwnedFd, OwnedFd) {
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap()
    }

    /// Who has something to say right now.
    fn happened(watch: &Watch) -> Vec<Who> {
        let mut events = Vec::new();
        watch.sleep(&mut events, Some(Duration::ZERO)).unwrap();
        events.iter().filter_map(who).collect()
    }

    #[test]
    fn only_what_is_wanted_wakes_and_not_even_a_hangup_otherwise() {
        let watch = Watch::new().unwrap();
        let (reader, writer) = pipe();
        let reader = watch.over(reader, Who::Stdin);
        drop(writer);
        assert!(happened(&watch).is_empty());
        for _ in 0..2 {
            assert!(!reader.want(Some(EventFlags::IN)).unwrap());
            assert_eq!(happened(&watch), [Who::Stdin]);
            assert!(!reader.want(None).unwrap());
            assert!(happened(&watch).is_empty());
        }
    }

    #[test]
    fn what_is_dropped_is_not_heard_any_more_though_somebody_holds_a_copy() {
        let watch = Watch::new().unwrap();
        let (reader, writer) = pipe();
        let copy = reader.try_clone().unwrap();
        rustix::io::write(&writer, b"x").unwrap();
        let reader = watch.over(reader, Who::ServerOut);
        reader.want(Some(EventFlags::IN)).unwrap();
        assert_eq!(happened(&watch), [Who::ServerOut]);
        drop(reader);
        assert!(happened(&watch).is_empty());
        // The next one may have its number.
        let again = watch.over(copy, Who::Stdin);
        again.want(Some(EventFlags::IN)).unwrap();
        assert_eq!(happened(&watch), [Who::Stdin]);
    }

    #[test]
    fn what_has_no_events_is_ready_whenever_it_is_wanted() {
        let watch = Watch::new().unwrap();
        let file = watch.over(File::open("/dev/null").unwrap(), Who::Stdin);
        for _ in 0..2 {
            assert!(file.want(Some(EventFlags::IN)).unwrap());
            assert!(!file.want(None).unwrap());
        }
        assert!(happened(&watch).is_empty());
    }

    #[test]
    fn everyone_is_known_again_by_the_event() {
        for known in Who::ALL {
            let watch = Watch::new().unwrap();
            let (_reader, writer) = pipe();
            let writer = watch.over(writer, known);
            writer.want(Some(EventFlags::OUT)).unwrap();
            assert_eq!(happened(&watch), [known]);
        }
    }
}

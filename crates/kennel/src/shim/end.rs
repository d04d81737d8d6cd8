//! How a session ends, and what it says about that.

use std::os::fd::AsFd;
use std::process::ExitCode;

use kennel_sys::Signal;
use kennel_sys::starter::Role;
use kennel_sys::tree::Exit;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How the shim ends.
pub(super) enum End {
    /// The app has closed its side, and everything was answered.
    AppIsDone(Option<Exit>),
    /// The app is gone; how that was seen, unless it closed its side as well.
    AppIsGone(Option<Gone>),
    /// The app has closed its side, and does not read the rest of what it was answered.
    Unread,
    Signal(Signal),
    /// The server cannot be started at all.
    Refused(u8),
}

/// How it was seen that the app is gone, where it did not close its side.
#[derive(Debug, Clone, Copy)]
pub(super) enum Gone {
    /// The process of this role ended.
    Starter(Role),
    /// Nobody reads our stdout.
    Reader,
}

impl Gone {
    /// For the person who wonders why the session ended.
    fn words(self) -> &'static str {
        match self {
            Gone::Starter(Role::Parent) => {
                "the session ends: the process that started it is gone, and no ancestor holds the other end of its stdin \
                 or stdout; KENNEL_PARENT_WATCH=off would keep it until stdin closes"
            }
            Gone::Starter(Role::App) => {
                "the session ends: the app behind its launchers is gone, and no ancestor holds the other end of its stdin \
                 or stdout; KENNEL_PARENT_WATCH=off would keep it until stdin closes"
            }
            Gone::Starter(Role::StdinPeer) => {
                "the session ends: the process that made its stdin is gone, and no ancestor holds the other end; \
                 KENNEL_PARENT_WATCH=off would keep it until stdin closes"
            }
            Gone::Reader => "the session ends: nobody reads its stdout any more",
        }
    }
}

impl End {
    /// The app is gone. Who closed its side of `stdin` as well has told us by that.
    pub(super) fn without_app(stdin: &impl AsFd, gone: Gone) -> End {
        End::AppIsGone((!has_hung_up(stdin)).then_some(gone))
    }

    /// Says why, where neither EOF nor a signal does. Never waits for a reader.
    pub(super) fn say_why(&self) {
        if let End::AppIsGone(Some(gone)) = self {
            crate::fail(gone.words());
        }
        if let End::Unread = self {
            crate::fail(
                "the session ends: the app closed its stdin and does not read the rest of its stdout",
            );
        }
    }

    pub(super) fn code(self) -> ExitCode {
        ExitCode::from(match self {
            End::AppIsDone(None | Some(Exit::Code(0))) | End::AppIsGone(_) => 0,
            End::AppIsDone(Some(Exit::Code(code))) => u8::try_from(code).unwrap_or(1),
            End::AppIsDone(Some(Exit::Signal(signal))) => 128u8.wrapping_add(signal as u8),
            End::Unread => 1,
            End::Signal(signal) => 128u8.wrapping_add(signal.as_raw() as u8),
            End::Refused(code) => code,
        })
    }
}

/// Whether nobody can write to it any more.
pub(super) fn has_hung_up(input: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(input, PollFlags::RDHUP)];
    let polled = poll(&mut fds, Some(&Timespec::default()));
    let ended = PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR;
    polled.is_ok() && fds[0].revents().intersects(ended)
}

//! How a session ends, and what it says about that.

use std::borrow::Cow;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use kennel_core::engine;
use kennel_core::session::ServerExit;
use kennel_sys::Signal;
use kennel_sys::io::{Waitable, input_ends_within};
use kennel_sys::starter::Role;
use kennel_sys::stdio::Output;

/// A process that is killed closes its descriptors one after the other: what it closes last is closed within this time.
const CLOSE_TIME: Duration = Duration::from_millis(200);

/// How the shim ends.
pub(super) enum End {
    /// The engine decided so.
    Decided(engine::shim::End),
    /// The app is gone; how that was seen, unless it closed its side as well.
    AppIsGone(Option<NoticedBy>),
    /// Our stdout takes nothing, and not because its reader is gone: its disk is full, for example.
    CannotWrite(io::Error),
    Signal(Signal),
}

/// How it was seen that the app is gone, where it did not close its side.
#[derive(Debug, Clone, Copy)]
pub(super) enum NoticedBy {
    /// The process of this role ended.
    Starter(Role),
    /// Nobody reads our stdout.
    Reader,
}

impl NoticedBy {
    /// For the person who wonders why the session ended.
    fn message(self) -> &'static str {
        match self {
            NoticedBy::Starter(Role::Parent) => {
                "the session ends: the process that started it is gone, and no ancestor holds the other end of its stdin \
                 or stdout; KENNEL_PARENT_WATCH=off would keep it until stdin closes"
            }
            NoticedBy::Starter(Role::App) => {
                "the session ends: the app behind its launchers is gone, and no ancestor holds the other end of its stdin \
                 or stdout; KENNEL_PARENT_WATCH=off would keep it until stdin closes"
            }
            NoticedBy::Starter(Role::StdinPeer) => {
                "the session ends: the process that made its stdin is gone, and no ancestor holds the other end; \
                 KENNEL_PARENT_WATCH=off would keep it until stdin closes"
            }
            NoticedBy::Reader => "the session ends: nobody reads its stdout any more",
        }
    }
}

impl End {
    /// The app is gone. Who closed its side of `stdin` as well has told us by that.
    pub(super) fn after_app_gone(stdin: &impl Waitable, noticed_by: NoticedBy) -> End {
        End::AppIsGone((!input_ends_within(stdin, CLOSE_TIME)).then_some(noticed_by))
    }

    /// A write to `stdout` failed.
    pub(super) fn from_stdout_error(
        stdin: &impl Waitable,
        stdout: &Output,
        error: io::Error,
    ) -> End {
        match stdout.reader_is_gone(&error) {
            true => End::after_app_gone(stdin, NoticedBy::Reader),
            false => End::CannotWrite(error),
        }
    }

    /// Says why, where neither EOF nor a signal does. Never waits for a reader.
    pub(super) fn report(&self) {
        let words: Cow<'_, str> = match self {
            End::AppIsGone(Some(noticed_by)) => noticed_by.message().into(),
            End::CannotWrite(error) => {
                format!("the session ends: cannot write to stdout: {error}").into()
            }
            End::Decided(engine::shim::End::Unread) => {
                "the session ends: the app closed its stdin and does not read the rest of its stdout"
                    .into()
            }
            End::Decided(engine::shim::End::Refused { why: Some(why), .. }) => why.into(),
            End::Decided(_) | End::AppIsGone(None) | End::Signal(_) => return,
        };
        crate::fail(&words);
    }

    pub(super) fn code(self) -> ExitCode {
        ExitCode::from(match self {
            End::AppIsGone(_) => 0,
            End::CannotWrite(_) => 1,
            End::Decided(end) => match end {
                engine::shim::End::AppDone(None) => 0,
                engine::shim::End::AppDone(Some(ServerExit::Code(code))) => {
                    u8::try_from(code).unwrap_or(1)
                }
                engine::shim::End::AppDone(Some(ServerExit::Signal(signal))) => {
                    128u8.wrapping_add(signal as u8)
                }
                engine::shim::End::Unread => 1,
                engine::shim::End::Refused { code, .. } => code,
            },
            End::Signal(signal) => 128u8.wrapping_add(signal.as_raw() as u8),
        })
    }
}

/// Whether nobody can write to it any more.
pub(super) fn writer_is_gone(input: &impl Waitable) -> bool {
    input_ends_within(input, Duration::ZERO)
}

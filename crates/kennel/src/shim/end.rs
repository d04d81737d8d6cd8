//! How a session ends, and its message about that.

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

/// Maximum time to wait for stdin to close too: a killed process closes its descriptors one after the other.
const MAX_CLOSE_TIME: Duration = Duration::from_millis(200);

/// How the shim ends.
pub(super) enum End {
    /// The engine decided so.
    Decided(engine::shim::End),
    /// The app is gone; how that was noticed, unless stdin is closed as well.
    AppIsGone(Option<NoticedBy>),
    /// A write to stdout failed though it has a reader: its disk is full, for example.
    CannotWrite(io::Error),
    Signal(Signal),
}

/// How the end of the app was noticed while stdin is open.
#[derive(Debug, Clone, Copy)]
pub(super) enum NoticedBy {
    /// The process of this role ended.
    Starter(Role),
    /// Our stdout has no reader.
    Reader,
}

impl NoticedBy {
    /// The message that explains the end of the session.
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
            NoticedBy::Reader => "the session ends: its stdout has no reader any more",
        }
    }
}

impl End {
    /// How the session ends after the app is gone. No message is needed if `stdin` is closed as well.
    pub(super) fn after_app_gone(stdin: &impl Waitable, noticed_by: NoticedBy) -> End {
        End::AppIsGone((!input_ends_within(stdin, MAX_CLOSE_TIME)).then_some(noticed_by))
    }

    /// How the session ends after a failed write to `stdout`.
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

    /// Reports why the session ends, unless EOF or a signal is the reason. Never waits for a reader.
    pub(super) fn report(&self) {
        let message: Cow<'_, str> = match self {
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
        crate::fail(&message);
    }

    /// The exit code of the shim.
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

/// Whether no process can write to it any more.
pub(super) fn writer_is_gone(input: &impl Waitable) -> bool {
    input_ends_within(input, Duration::ZERO)
}

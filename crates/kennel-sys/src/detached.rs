//! The policy for detached services, and the reasons to keep one.

use std::fmt;
use std::str::FromStr;

/// The detached processes that outlive their server's tree. A process is detached if it left the server's session
/// (`setsid`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Detached {
    /// Processes that listen on a socket and serve a process outside the tree, and known services (`gpg-agent`, `adb`,
    /// build daemons).
    #[default]
    Auto,
    /// Like [`Auto`](Detached::Auto), for a server with ports, which may detach itself: after its direct process has
    /// ended, its detached processes are the server, and only known services are kept.
    AutoGuard,
    /// All of them.
    Keep,
    /// None.
    End,
}

/// The error for text that is not a [`Detached`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not one of auto, keep, end")]
pub struct UnknownDetached(String);

impl fmt::Display for Detached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Detached::Auto => "auto",
            Detached::AutoGuard => "auto-guard",
            Detached::Keep => "keep",
            Detached::End => "end",
        })
    }
}

impl FromStr for Detached {
    type Err = UnknownDetached;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Detached::Auto),
            "auto-guard" => Ok(Detached::AutoGuard),
            "keep" => Ok(Detached::Keep),
            "end" => Ok(Detached::End),
            other => Err(UnknownDetached(other.to_owned())),
        }
    }
}

/// Why a detached process outlived its tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A process outside the tree was connected to it.
    Used,
    /// It is a known service that several sessions share.
    Known,
    /// It listens, but its connections cannot be seen: it is in another network namespace, or there is no `sock_diag`.
    Unseen,
    /// The policy is [`Detached::Keep`].
    Asked,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Used => "used",
            Reason::Known => "known",
            Reason::Unseen => "unseen",
            Reason::Asked => "asked",
        })
    }
}

impl FromStr for Reason {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = [Reason::Used, Reason::Known, Reason::Unseen, Reason::Asked];
        let fits = |reason: &Reason| reason.to_string() == text;
        all.into_iter().find(fits).ok_or(())
    }
}

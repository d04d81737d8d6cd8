//! The owner: a process outside whose life bounds the server's.

use std::io;
use std::process::Command;

use kennel_sys::process::{Identity, ProcessRef};

use crate::refusal::Refusal;

/// Why a value names no owner.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OwnerError {
    /// 0 or negative: that means a group of processes, or nobody.
    #[error("{0} is no process: give the pid of the process that owns this server")]
    NoProcess(i64),
    /// The server itself.
    #[error(
        "pid {0} is this server itself, which cannot own itself: give the pid of the process that started it"
    )]
    Myself(u32),
    /// Neither a pid nor a written-down identity.
    #[error("{0:?} is not a pid: give the pid of the process that owns this server")]
    Malformed(String),
}

/// An owner as it was found. A [`Guard`](crate::Guard) finds its own; this is for programs that watch
/// over a server from outside.
#[derive(Debug)]
pub enum Owner {
    /// It lives, and is this one, whoever has its pid later.
    Alive(ProcessRef),
    /// Gone before we looked.
    Gone,
}

impl Owner {
    /// The owner that a flag or variable names: by its pid, or as [`announce_owner`] wrote it.
    pub fn named(text: &str) -> Result<Owner, Refusal> {
        parse(text)?
            .capture()
            .map_err(Refusal::io("look at the owner"))
    }
}

/// What a flag or variable says: a pid, or an identity as [`announce_owner`] writes it.
pub(crate) fn parse(text: &str) -> Result<Named, OwnerError> {
    let malformed = || OwnerError::Malformed(text.to_owned());
    if let Ok(identity) = text.parse::<Identity>() {
        return match identity.pid() {
            0 => Err(OwnerError::NoProcess(0)),
            pid if pid == std::process::id() => Err(OwnerError::Myself(pid)),
            _ => Ok(Named::Identity(identity)),
        };
    }
    let number: i64 = text.trim().parse().map_err(|_| malformed())?;
    match u32::try_from(number) {
        Ok(0) => Err(OwnerError::NoProcess(0)),
        Err(_) if number < 0 => Err(OwnerError::NoProcess(number)),
        Err(_) => Err(malformed()),
        Ok(pid) if pid == std::process::id() => Err(OwnerError::Myself(pid)),
        Ok(pid) => Ok(Named::Pid(pid)),
    }
}

/// An owner as it was named, to be captured at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Named {
    Pid(u32),
    Identity(Identity),
}

impl Named {
    pub(crate) fn capture(self) -> io::Result<Owner> {
        let found = match self {
            Named::Identity(identity) => ProcessRef::find(&identity)?,
            // Many a tool shows the number of a thread.
            Named::Pid(pid) => match ProcessRef::of_thread(pid) {
                Ok(process) => Some(process),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            },
        };
        Ok(found.map_or(Owner::Gone, Owner::Alive))
    }
}

/// For the side that spawns: makes this process the owner of what `command` starts, through the
/// variable `name`. Of this one command only: neither our own environment nor a later command's has it.
///
/// The value is more than the pid: should we end, and our pid be used again before the server looks,
/// it still sees that its owner is gone.
pub fn announce_owner(command: &mut Command, name: &str) -> io::Result<()> {
    command.env(name, ProcessRef::me()?.identity().to_string());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_positive_number_that_is_not_ours_names_an_owner() {
        assert_eq!(parse("4711"), Ok(Named::Pid(4711)));
        assert_eq!(parse(" 4711\n"), Ok(Named::Pid(4711)));
        assert_eq!(parse("0"), Err(OwnerError::NoProcess(0)));
        assert_eq!(parse("-1"), Err(OwnerError::NoProcess(-1)));
        let me = std::process::id();
        assert_eq!(parse(&me.to_string()), Err(OwnerError::Myself(me)));
        for text in [
            "",
            "abc",
            "12abc",
            "1.5",
            "99999999999999999999",
            "4294967296",
            "1:2",
        ] {
            assert_eq!(parse(text), Err(OwnerError::Malformed(text.to_owned())));
        }
    }

    #[test]
    fn the_number_of_a_thread_names_its_process() {
        // A test runs in a thread of its own.
        let thread = std::fs::read_link("/proc/thread-self").unwrap();
        let thread = thread.file_name().unwrap().to_str().unwrap();
        let me = std::process::id();
        assert_ne!(thread, me.to_string());
        let owner = Owner::named(thread).unwrap();
        assert!(matches!(owner, Owner::Alive(process) if process.pid() == me));
    }

    #[test]
    fn an_announced_owner_is_an_identity_and_only_the_one_command_has_it() {
        let mut command = Command::new("true");
        announce_owner(&mut command, "DIARY_OWNER").unwrap();
        let value = command.get_envs().find(|(name, _)| *name == "DIARY_OWNER");
        let value = value.unwrap().1.unwrap().to_str().unwrap();
        let identity: Identity = value.parse().unwrap();
        assert_eq!(identity.pid(), std::process::id());
        assert!(std::env::var_os("DIARY_OWNER").is_none());
        assert_eq!(Command::new("true").get_envs().count(), 0);
        // Read by ourselves it is refused: nobody owns itself.
        assert_eq!(parse(value), Err(OwnerError::Myself(std::process::id())));
    }
}

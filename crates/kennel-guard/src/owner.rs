//! The owner: a process outside the server's tree whose end ends the server.

use std::io;
use std::process::Command;

use kennel_sys::process::{Identity, ProcessRef};

use crate::refusal::Refusal;

/// Why a value is not a valid owner.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OwnerError {
    /// 0 or negative, which means a group of processes.
    #[error("{0} is not a pid: give the pid of the process that owns this server")]
    NotPositive(i64),
    /// The server itself.
    #[error(
        "pid {0} is this server, which cannot be its own owner: give the pid of the process that started it"
    )]
    ThisProcess(u32),
    /// Neither a pid nor a process identity.
    #[error("{0:?} is not a pid: give the pid of the process that owns this server")]
    Malformed(String),
}

/// The state of an owner. A [`Guard`](crate::Guard) finds its own; this is for programs that watch over a server from
/// outside.
#[derive(Debug)]
pub enum Owner {
    /// It is alive. The reference stays valid even if its pid is reused.
    Alive(ProcessRef),
    /// It was already gone.
    Gone,
}

impl Owner {
    /// The owner in the value of a flag or variable: a pid, or the text of [`announce_owner`].
    pub fn named(text: &str) -> Result<Owner, Refusal> {
        parse(text)?
            .capture()
            .map_err(Refusal::io("check the owner"))
    }
}

/// Parses the value of a flag or variable: a pid, or an identity as [`announce_owner`] writes it.
pub(crate) fn parse(text: &str) -> Result<Named, OwnerError> {
    let malformed = || OwnerError::Malformed(text.to_owned());
    if let Ok(identity) = text.parse::<Identity>() {
        return match identity.pid() {
            0 => Err(OwnerError::NotPositive(0)),
            pid if pid == std::process::id() => Err(OwnerError::ThisProcess(pid)),
            _ => Ok(Named::Identity(identity)),
        };
    }
    let number: i64 = text.trim().parse().map_err(|_| malformed())?;
    match u32::try_from(number) {
        Ok(0) => Err(OwnerError::NotPositive(0)),
        Err(_) if number < 0 => Err(OwnerError::NotPositive(number)),
        Err(_) => Err(malformed()),
        Ok(pid) if pid == std::process::id() => Err(OwnerError::ThisProcess(pid)),
        Ok(pid) => Ok(Named::Pid(pid)),
    }
}

/// An owner that was parsed, and not opened yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Named {
    Pid(u32),
    Identity(Identity),
}

impl Named {
    pub(crate) fn capture(self) -> io::Result<Owner> {
        let found = match self {
            Named::Identity(identity) => ProcessRef::find(&identity)?,
            // Many tools show the id of a thread instead.
            Named::Pid(pid) => match ProcessRef::of_thread(pid) {
                Ok(process) => Some(process),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            },
        };
        Ok(found.map_or(Owner::Gone, Owner::Alive))
    }
}

/// Makes this process the owner of the server that `command` starts, by setting the variable `name` for this command only.
///
/// The value contains more than the pid: if this process ends and its pid is reused before the server reads the variable,
/// the server still sees that its owner is gone.
pub fn announce_owner(command: &mut Command, name: &str) -> io::Result<()> {
    command.env(name, ProcessRef::me()?.identity().to_string());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_positive_pid_of_another_process_is_an_owner() {
        assert_eq!(parse("4711"), Ok(Named::Pid(4711)));
        assert_eq!(parse(" 4711\n"), Ok(Named::Pid(4711)));
        assert_eq!(parse("0"), Err(OwnerError::NotPositive(0)));
        assert_eq!(parse("-1"), Err(OwnerError::NotPositive(-1)));
        let me = std::process::id();
        assert_eq!(parse(&me.to_string()), Err(OwnerError::ThisProcess(me)));
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
    fn the_id_of_a_thread_means_its_process() {
        // A test runs in its own thread.
        let thread = std::fs::read_link("/proc/thread-self").unwrap();
        let thread = thread.file_name().unwrap().to_str().unwrap();
        let me = std::process::id();
        assert_ne!(thread, me.to_string());
        let owner = Owner::named(thread).unwrap();
        assert!(matches!(owner, Owner::Alive(process) if process.pid() == me));
    }

    #[test]
    fn an_announced_owner_is_an_identity_and_only_that_command_gets_it() {
        let mut command = Command::new("true");
        announce_owner(&mut command, "DIARY_OWNER").unwrap();
        let value = command.get_envs().find(|(name, _)| *name == "DIARY_OWNER");
        let value = value.unwrap().1.unwrap().to_str().unwrap();
        let identity: Identity = value.parse().unwrap();
        assert_eq!(identity.pid(), std::process::id());
        assert!(std::env::var_os("DIARY_OWNER").is_none());
        assert_eq!(Command::new("true").get_envs().count(), 0);
        // The value of this process is refused: a process cannot own itself.
        assert_eq!(
            parse(value),
            Err(OwnerError::ThisProcess(std::process::id()))
        );
    }
}

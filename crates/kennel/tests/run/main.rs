//! `kennel run`, from outside: with a server of its own, and through a daemon.
#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod busy;
mod cleaner;
mod cold;
mod confined;
mod helpers;
mod idle;
mod inherited;
mod limits;
mod overdue;
mod pipes;
mod places;
mod planted;
mod secret;
mod services;
mod shared;
mod shortage;
mod solo;
mod stage;
mod stopped;
mod strangers;
mod unread_stderr;
mod unread_stdout;
mod unseen;

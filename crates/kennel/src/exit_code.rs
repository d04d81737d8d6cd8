//! The exit codes of the commands; `kennel --help` lists them.

use kennel_sys::Signal;

/// Wrong usage, or an action that is refused.
pub(crate) const USAGE: u8 = 2;
/// The command found nothing to work on.
pub(crate) const NOTHING_FOUND: u8 = 3;
/// Another process uses the port.
pub(crate) const PORT_IN_USE: u8 = 98;
/// A program exists and cannot be started, as in a shell.
pub(crate) const CANNOT_START: u8 = 126;
/// A program does not exist, as in a shell.
pub(crate) const COMMAND_NOT_FOUND: u8 = 127;

/// The exit code of a process that a signal ended, as in a shell.
pub(crate) fn of_signal(signal: Signal) -> u8 {
    128u8.wrapping_add(signal.as_raw() as u8)
}

//! What must hold for random bytes, where that needs internals of this crate. The package `kennel-fuzz` calls these
//! functions; each panics if a rule is broken. They are not a part of the program.

mod configuration;
mod lines;
mod record;
mod servers;

/// Checks the splitting of bytes into lines.
pub fn lines(bytes: &[u8]) {
    lines::check(bytes);
}

/// Checks the records of daemons, of process trees and of `wrap`.
pub fn record(bytes: &[u8]) {
    record::check(bytes);
}

/// Checks `servers.toml`.
pub fn servers(bytes: &[u8]) {
    servers::check(bytes);
}

/// Checks the change of an app's configuration. The first byte is a letter for its format.
pub fn configuration(bytes: &[u8]) {
    configuration::check(bytes);
}

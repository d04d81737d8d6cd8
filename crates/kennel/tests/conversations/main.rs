//! What a client hears through Kennel is what it hears directly, to the byte (rule 11): whoever the server,
//! whoever the client, with a server of its own or through a daemon.
#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod lines;
mod odd;
mod sdks;
mod servers;
mod survival;
mod together;
mod ways;

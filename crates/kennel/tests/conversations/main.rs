//! What a client hears through Kennel is what it hears directly, to the byte (rule 11): whoever the server,
//! whoever the client, with a server of its own or through a daemon.
#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod lines;
mod odd;
#[expect(
    dead_code,
    reason = "what answers is a server here, and not the corpus"
)]
#[path = "../../../kennel-core/tests/message/odd.rs"]
mod odd_lines;
mod overheard;
mod sdks;
mod servers;
mod survival;
mod together;
mod ways;

//! The decisions of Kennel.
//!
//! The decisions are plain state machines without clock, files, sockets, threads or environment. Events are passed in,
//! actions are polled, and **every call that depends on time takes `now`**. The same calls with the same times give the
//! same results, so a test can play a year of a server's life in a microsecond and repeat the order of events that
//! failed.
//!
//! | module | decides |
//! |---|---|
//! | [`engine`] | what each process does: which upstream a session has, when it starts, stops and ends |
//! | [`election`] | how a shim finds the daemon of its key, or starts it |
//! | [`lifetime`] | how long a server lives: its clients, its owner, when it ends and why |
//! | [`session`] | what an app gets while the upstream of its session is replaced |
//! | [`mux`] | which client gets which message of a shared server |
//! | [`hello`] | nothing: the protocol between a shim and a daemon |
//! | [`message`] | nothing: it finds the parts of a JSON-RPC line |
//! | [`note`] | nothing: notes for the log |
//! | [`time`] | nothing: the [`Moment`](time::Moment) that the others take |
//!
//! The driver owns the outside world: it watches processes, reads sockets, sleeps until a deadline, and passes in one
//! event at a time.

#![forbid(unsafe_code)]

pub mod election;
pub mod engine;
pub mod hello;
pub mod lifetime;
pub mod message;
pub mod mux;
pub mod note;
pub mod session;
pub mod time;

//! What Kennel decides, and nothing else.
//!
//! Here are the decisions that must be right every time, as plain state machines: no clock, no file,
//! no socket, no thread, no environment. What happened is handed in, what follows is asked for, and
//! **every call that depends on time takes `now`**. The same calls with the same moments always give
//! the same answers, so a test can play a year of a server's life in a microsecond and replay the one
//! order of events that went wrong.
//!
//! | module | what it decides |
//! |---|---|
//! | [`engine`] | what each process does: which upstream a session has, when it starts, stops and ends |
//! | [`election`] | how a shim finds the daemon of its key, or starts it: the next step, and when to give up |
//! | [`lifetime`] | how long a server lives: who is attached, who owns it, when it ends and why |
//! | [`session`] | what an app hears while the upstream behind its session is replaced |
//! | [`mux`] | who hears what while many clients share one server |
//! | [`hello`] | nothing: the wire between a shim and a daemon, as values |
//! | [`message`] | nothing: it finds the parts of one line, which the others decide on |
//! | [`time`] | nothing: it is the [`Moment`](time::Moment) all others are told |
//!
//! The outside world (watching processes, reading sockets, sleeping until a deadline) belongs to the
//! caller, which owns the machine alone and feeds it one event at a time.

#![forbid(unsafe_code)]

pub mod election;
pub mod engine;
pub mod hello;
pub mod lifetime;
pub mod message;
pub mod mux;
pub mod session;
pub mod time;

//! Many clients on one server, as the design tells it: stories line by line, and rules that must hold
//! for every order of events.

mod asks;
mod bounds;
mod calls;
#[path = "../lifetime/chance.rs"]
mod chance;
mod exactness;
mod handshake;
mod latency;
#[path = "../message/lines.rs"]
mod lines;
mod lists;
mod log_levels;
mod loose_ids;
mod malformed;
mod modern;
mod modern_rules;
#[path = "../message/odd.rs"]
mod odd;
mod play;
mod roots;
mod rules;
mod shared_state;
mod snapshot;
mod tasks;
mod turns;
mod twins;
mod world;

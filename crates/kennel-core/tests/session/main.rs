//! A session over several upstreams, as the design tells it: stories line by line, and rules that must
//! hold for every order of events.

mod bounds;
#[path = "../lifetime/chance.rs"]
mod chance;
mod changes;
mod era;
#[path = "../message/lines.rs"]
mod lines;
mod loose_ids;
mod losses;
mod malformed;
mod play;
mod replay;
mod rules;
mod server_requests;
mod standing;
mod stories;
mod world;

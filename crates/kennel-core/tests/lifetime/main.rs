//! The lifetime of a server, as the design tells it: stories with virtual time, and rules that must
//! hold for every order of events.

mod chance;
mod model;
mod rules;
mod stories;
mod world;

//! Free ports for tests that run at the same time.

use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Mutex;

use crate::Rng;

/// Below the ports that the kernel assigns: neither a listener on port 0 nor an outgoing connection of another test gets
/// one of these.
const FIRST: u64 = 16_000;
const COUNT: u64 = 16_000;

/// Marks a port as taken for other tests: an abstract socket name, which disappears with this process.
static TAKEN: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());

/// A port without a listener, which no other test gets while this process lives.
pub fn free_port() -> u16 {
    let mut rng = Rng::of(u64::from(std::process::id()), "ports");
    crate::wait_for("a port that nobody has", || {
        let port = u16::try_from(FIRST + rng.below(COUNT)).expect("a port");
        let name = SocketAddr::from_abstract_name(format!("kennel-test-port-{port}")).ok()?;
        let taken = UnixListener::bind_addr(&name).ok()?;
        TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).ok()?;
        let is_free = match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)) {
            Ok(_) => true,
            Err(error) => error.kind() != std::io::ErrorKind::AddrInUse,
        };
        is_free.then(|| TAKEN.lock().expect("no test panicked here").push(taken))?;
        Some(port)
    })
}

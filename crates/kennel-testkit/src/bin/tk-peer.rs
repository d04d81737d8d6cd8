//! `tk-peer SOCKET`: accepts one connection, prints its peer, then waits for that process to end.
#![expect(clippy::print_stdout, reason = "the answer is for the test that asked")]

use std::os::unix::net::UnixListener;

use kennel_sys::peer::Peer;

fn main() {
    let path = std::env::args_os().nth(1).expect("usage: tk-peer SOCKET");
    let listener = UnixListener::bind(path).expect("a socket");
    println!("ready");
    let (connection, _) = listener.accept().expect("a connection");
    let peer = Peer::of(&connection).expect("a peer");
    println!("pid {}", peer.pid);
    match peer.process {
        None => println!("unseen"),
        Some(process) => {
            println!("seen");
            process.wait(None).expect("an exit event");
            println!("gone");
        }
    }
}

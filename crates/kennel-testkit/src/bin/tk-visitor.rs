//! `tk-visitor SOCKET [no-new-privs] [seccomp]`: connects to a daemon, confines itself as told, says what is on its stdin,
//! and prints what it hears until the daemon closes the connection.

use std::io::Read;
use std::os::unix::net::UnixStream;

use rustix::thread::SecureComputingMode;

fn main() {
    let mut words = std::env::args_os().skip(1);
    let path = words.next().expect("usage: tk-visitor SOCKET [CONFINED]…");
    let mut said = Vec::new();
    std::io::stdin().read_to_end(&mut said).expect("words");
    let socket = UnixStream::connect(path).expect("a daemon");
    for word in words {
        match word.to_str() {
            Some("no-new-privs") => rustix::thread::set_no_new_privs(true).expect("less"),
            // From here on it can read, write and exit.
            Some("seccomp") => {
                rustix::thread::set_secure_computing_mode(SecureComputingMode::Strict)
                    .expect("less");
            }
            _ => panic!("how is {word:?}?"),
        }
    }
    // Not the standard library's calls: those may be others than read and write.
    while !said.is_empty() {
        let count = rustix::io::write(&socket, &said).expect("it listens");
        said.drain(..count);
    }
    let mut heard = [0; 4096];
    while let Ok(count @ 1..) = rustix::io::read(&socket, &mut heard[..]) {
        let _ = rustix::io::write(rustix::stdio::stdout(), &heard[..count]);
    }
}

//! `tk-visitor SOCKET [announce] [no-new-privs] [seccomp]`: connects to a daemon, reads its stdin to the end, confines itself
//! as told, says what was on its stdin, and prints what it hears until the daemon closes the connection. With `announce` it
//! prints `connected` once it is.

use std::io::Read;
use std::os::unix::net::UnixStream;

use rustix::thread::SecureComputingMode;

fn main() {
    let mut words = std::env::args_os().skip(1);
    let path = words.next().expect("usage: tk-visitor SOCKET [CONFINED]…");
    let mut words = words.peekable();
    let socket = UnixStream::connect(path).expect("a daemon");
    if words.next_if(|word| word == "announce").is_some() {
        rustix::io::write(rustix::stdio::stdout(), b"connected\n").expect("a reader");
    }
    let mut said = Vec::new();
    std::io::stdin().read_to_end(&mut said).expect("words");
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

//! `tk-visitor SOCKET [announce] [umask=OCTAL] [no-new-privs] [seccomp]`: connects to a daemon, reads its stdin to the end, confines
//! itself, sends what it read, and prints the answers until the daemon closes the connection. With `announce` it prints
//! `connected` once it is. With `umask=OCTAL` it reads one line, changes its umask, and prints `changed` before the rest.

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
    let umask = words.next_if(|word| word.to_string_lossy().starts_with("umask="));
    if let Some(umask) = umask {
        std::io::stdin()
            .read_line(&mut String::new())
            .expect("a line");
        let umask = umask.to_string_lossy();
        let mode = u32::from_str_radix(&umask["umask=".len()..], 8).expect("octal");
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(mode));
        rustix::io::write(rustix::stdio::stdout(), b"changed\n").expect("a reader");
    }
    let mut said = Vec::new();
    std::io::stdin().read_to_end(&mut said).expect("words");
    for word in words {
        match word.to_str() {
            Some("no-new-privs") => rustix::thread::set_no_new_privs(true).expect("less"),
            // From here on it can only read, write and exit.
            Some("seccomp") => {
                rustix::thread::set_secure_computing_mode(SecureComputingMode::Strict)
                    .expect("less");
            }
            _ => panic!("how is {word:?}?"),
        }
    }
    // Not the standard library's calls, which may be others than read and write.
    while !said.is_empty() {
        let count = rustix::io::write(&socket, &said).expect("it listens");
        said.drain(..count);
    }
    let mut heard = [0; 4096];
    while let Ok(count @ 1..) = rustix::io::read(&socket, &mut heard[..]) {
        let _ = rustix::io::write(rustix::stdio::stdout(), &heard[..count]);
    }
}
